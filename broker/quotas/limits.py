"""Which quota holds for a client, and which clients share it. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple, TypeAlias

from tidelog.coordinator.cluster.records.client_quotas import (
    DEFAULT_NAME,
    QuotaEntity,
    QuotaKey,
)

Quotas: TypeAlias = Mapping[QuotaEntity, Mapping[str, float]]


class Sharers(NamedTuple):
    """The clients that share a quota: those of a user, of a client id, or of both."""

    user: str | None
    client_id: str | None


class Limit(NamedTuple):
    value: float
    sharers: Sharers


def limit_of(quotas: Quotas, key: QuotaKey, user: str, client_id: str) -> Limit | None:
    """The most specific quota of a client; None if none holds for it.

    A client without an id is one with the empty id: defaults hold for it.
    """
    for entity, sharers in _by_precedence(user, client_id):
        value = quotas.get(entity, {}).get(key)
        if value is not None:
            return Limit(value, sharers)
    return None


def _by_precedence(user: str, client_id: str) -> Iterator[tuple[QuotaEntity, Sharers]]:
    """The entities whose quota may hold, in Kafka's order, each with the clients that share it.

    Under a default quota the same clients share as under a quota of their own.
    """
    both, alone = Sharers(user, client_id), Sharers(user, None)
    yield QuotaEntity(user, client_id), both
    yield QuotaEntity(user, DEFAULT_NAME), both
    yield QuotaEntity(user), alone
    yield QuotaEntity(DEFAULT_NAME, client_id), both
    yield QuotaEntity(DEFAULT_NAME, DEFAULT_NAME), both
    yield QuotaEntity(DEFAULT_NAME), alone
    yield QuotaEntity(None, client_id), Sharers(None, client_id)
    yield QuotaEntity(None, DEFAULT_NAME), Sharers(None, client_id)
