"""Quotas of clients as the metadata log has them: the entities and the numbers."""

from __future__ import annotations

import ipaddress
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Final

NAME_BYTES_MAX: Final = 1024
"""Each name of an entity, in UTF-8: it bounds the state."""
DEFAULT_NAME: Final = ""
"""Stands for all names without quotas of their own. Kafka's protocol says null, its tools say
`<default>`."""


class EntityType(StrEnum):
    """The kinds of names in an entity, by Kafka's words."""

    USER = "user"
    CLIENT_ID = "client-id"
    IP = "ip"


class QuotaKey(StrEnum):
    """The limited uses, by Kafka's names of their quotas."""

    PRODUCER_BYTE_RATE = "producer_byte_rate"
    CONSUMER_BYTE_RATE = "consumer_byte_rate"
    REQUEST_PERCENTAGE = "request_percentage"
    CONTROLLER_MUTATION_RATE = "controller_mutation_rate"
    CONNECTION_CREATION_RATE = "connection_creation_rate"


WHOLE_MAX: Final[Mapping[QuotaKey, int]] = MappingProxyType(
    {
        QuotaKey.PRODUCER_BYTE_RATE: 2**63 - 1,
        QuotaKey.CONSUMER_BYTE_RATE: 2**63 - 1,
        QuotaKey.CONNECTION_CREATION_RATE: 2**31 - 1,
    }
)
"""The quotas that are whole numbers, with their greatest values."""
KEYS_OF_IP: Final = frozenset({QuotaKey.CONNECTION_CREATION_RATE})
KEYS_OF_CLIENT: Final = frozenset(QuotaKey) - KEYS_OF_IP
_FRACTION_MAX: Final = 1e-6


@dataclass(frozen=True, slots=True)
class QuotaEntity:
    """A user, a client id, a client id of a user, or an address.

    None: the entity does not name it. DEFAULT_NAME: it is about all that have no quotas of their
    own.
    """

    user: str | None = None
    client_id: str | None = None
    ip: str | None = None

    def named(self) -> Iterator[tuple[EntityType, str]]:
        """The types and names of the entity."""
        for kind, name in zip(EntityType, (self.user, self.client_id, self.ip), strict=True):
            if name is not None:
                yield kind, name

    def fault(self) -> str | None:
        """Why there are no quotas of this entity; None if there can be."""
        if self.ip is None:
            if self.user is None and self.client_id is None:
                return "Invalid empty client quota entity"
        elif self.user is not None or self.client_id is not None:
            return (
                "Invalid quota entity combination, IP entity should not be combined with User or"
                " ClientId"
            )
        elif self.ip != DEFAULT_NAME and address(self.ip) is None:
            return f"{self.ip} is not a valid IP address"
        for kind, name in self.named():
            size = len(name.encode(errors="surrogatepass"))
            if size > NAME_BYTES_MAX:
                return f"the name of a {kind} has at most {NAME_BYTES_MAX} bytes, not {size}"
        return None

    def value_fault(self, key: str, value: float) -> str | None:
        """Why the entity cannot have this quota; None if it can."""
        keys = KEYS_OF_CLIENT if self.ip is None else KEYS_OF_IP
        if key not in keys:
            return f"Invalid configuration key {key}"
        if not math.isfinite(value):
            return f"Quota {key} must be a finite number"
        if value <= 0:
            return f"Quota {key} must be greater than 0"
        whole_max = WHOLE_MAX.get(QuotaKey(key))
        if whole_max is None:
            return None
        if value > whole_max:
            return f"Proposed value for {key} is too large: at most {whole_max}"
        if value % 1 > _FRACTION_MAX:
            return f"{key} cannot be a fractional value."
        return None

    def __str__(self) -> str:
        """The form for messages: user alice, client-id <default>."""
        return ", ".join(f"{kind} {name or '<default>'}" for kind, name in self.named())


def address(text: str) -> str | None:
    """The usual form of an address, that of connections; None if it is none."""
    try:
        found = ipaddress.ip_address(text)
    except ValueError:
        return None
    return str(getattr(found, "ipv4_mapped", None) or found)
