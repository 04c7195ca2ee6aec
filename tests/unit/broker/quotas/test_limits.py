"""Which quota holds for a client: Kafka's order of precedence, as a table."""

from __future__ import annotations

from itertools import combinations

import pytest

from tidelog.broker.quotas.limits import Limit, Sharers, limit_of
from tidelog.coordinator.cluster.records.client_quotas import (
    DEFAULT_NAME,
    QuotaEntity,
    QuotaKey,
)

KEY = QuotaKey.PRODUCER_BYTE_RATE
BY_PRECEDENCE = [
    (QuotaEntity("alice", "app"), Sharers("alice", "app")),
    (QuotaEntity("alice", DEFAULT_NAME), Sharers("alice", "app")),
    (QuotaEntity("alice"), Sharers("alice", None)),
    (QuotaEntity(DEFAULT_NAME, "app"), Sharers("alice", "app")),
    (QuotaEntity(DEFAULT_NAME, DEFAULT_NAME), Sharers("alice", "app")),
    (QuotaEntity(DEFAULT_NAME), Sharers("alice", None)),
    (QuotaEntity(None, "app"), Sharers(None, "app")),
    (QuotaEntity(None, DEFAULT_NAME), Sharers(None, "app")),
]
OTHERS = [QuotaEntity("bob", "app"), QuotaEntity("bob"), QuotaEntity(None, "tool")]


@pytest.mark.parametrize("position", range(8))
def test_each_level_holds_without_the_levels_above(position: int) -> None:
    entity, sharers = BY_PRECEDENCE[position]
    below = {each: {KEY: 9.0} for each, _ in BY_PRECEDENCE[position + 1 :]}
    quotas = {entity: {KEY: 5.0}, **below, **{each: {KEY: 1.0} for each in OTHERS}}
    assert limit_of(quotas, KEY, "alice", "app") == Limit(5.0, sharers)


def test_the_most_specific_of_any_levels_holds() -> None:
    rank = {entity: number for number, (entity, _) in enumerate(BY_PRECEDENCE)}
    for count in range(1, 9):
        for chosen in combinations(BY_PRECEDENCE, count):
            quotas = {entity: {KEY: float(rank[entity])} for entity, _ in reversed(chosen)}
            found = limit_of(quotas, KEY, "alice", "app")
            assert found == Limit(float(rank[chosen[0][0]]), chosen[0][1])


def test_each_quota_is_looked_up_for_itself() -> None:
    quotas = {
        QuotaEntity("alice", "app"): {"request_percentage": 5.0},
        QuotaEntity("alice"): {KEY: 7.0},
    }
    assert limit_of(quotas, KEY, "alice", "app") == Limit(7.0, Sharers("alice", None))
    assert limit_of(quotas, QuotaKey.CONSUMER_BYTE_RATE, "alice", "app") is None
    assert limit_of(quotas, KEY, "bob", "app") is None


def test_a_client_without_an_id_does_not_escape_the_defaults() -> None:
    quotas = {
        QuotaEntity("alice", DEFAULT_NAME): {KEY: 5.0},
        QuotaEntity(None, DEFAULT_NAME): {KEY: 7.0},
    }
    assert limit_of(quotas, KEY, "alice", "") == Limit(5.0, Sharers("alice", ""))
    assert limit_of(quotas, KEY, "bob", "") == Limit(7.0, Sharers(None, ""))
