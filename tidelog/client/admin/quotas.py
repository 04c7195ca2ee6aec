"""An administrator's requests about the quotas of clients."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

from tidelog.client.errors import check, check_read
from tidelog.client.pool import Client
from tidelog.protocol.schemas.security.quotas import (
    AlterClientQuotasRequest,
    DescribeClientQuotasRequest,
    QuotaAlteration,
    QuotaEntityPart,
    QuotaFilter,
    QuotaOperation,
)

DEFAULT: Final = "<default>"
"""Stands for all names without quotas of their own. The protocol says null, Kafka's tools say
this."""
_USER, _CLIENT_ID, _IP = "user", "client-id", "ip"
_EXACTLY, _DEFAULT = 0, 1


class LimitedClient(NamedTuple):
    """Whom quotas limit: a user, a client id, a client id of a user, or an address.

    A name may be DEFAULT. None: the quotas do not depend on it.
    """

    user: str | None = None
    client_id: str | None = None
    ip: str | None = None

    def parts(self) -> Iterator[tuple[str, str | None]]:
        """The types and names of the protocol's entity."""
        for kind, name in zip((_USER, _CLIENT_ID, _IP), self, strict=True):
            if name is not None:
                yield kind, None if name == DEFAULT else name

    def __str__(self) -> str:
        return ", ".join(f"{kind} {name or DEFAULT}" for kind, name in self.parts())


async def describe_quotas(
    client: Client, chosen: LimitedClient
) -> dict[LimitedClient, dict[str, float]]:
    """The quotas of all clients that have the chosen names, by the quotas' names.

    Raises ReadRefused, RequestFailed.
    """
    filters = [
        QuotaFilter(entity_type=kind, match_type=_DEFAULT if name is None else _EXACTLY, match=name)
        for kind, name in chosen.parts()
    ]
    answer = await client.request_any(DescribeClientQuotasRequest(components=filters))
    check_read("quotas", answer.error_code, answer.error_message)
    return {
        _limited(entry.entity): {each.key: each.value for each in entry.values}
        for entry in answer.entries or ()
    }


async def alter_quotas(
    client: Client, limited: LimitedClient, changes: Mapping[str, float | None]
) -> None:
    """Set quotas by their names, or remove them (None); the others stay.

    Raises:
        RequestRefused: nothing was changed.
        RequestFailed: no answer; the request may be repeated.
    """
    operations = [
        QuotaOperation(key=name, value=value or 0.0, remove=value is None)
        for name, value in changes.items()
    ]
    entity = [QuotaEntityPart(entity_type=kind, entity_name=name) for kind, name in limited.parts()]
    alteration = QuotaAlteration(entity=entity, ops=operations)
    answer = await client.request_any(AlterClientQuotasRequest(entries=[alteration]))
    for result in answer.entries:
        check(f"quotas of {limited}", result.error_code, result.error_message)


def _limited(entity: list[QuotaEntityPart]) -> LimitedClient:
    names = {
        part.entity_type: DEFAULT if part.entity_name is None else part.entity_name
        for part in entity
    }
    return LimitedClient(names.get(_USER), names.get(_CLIENT_ID), names.get(_IP))
