"""Quotas hold within 5 % of their value: clients that obey their throttle times, in virtual time.

A client asks, waits for as long as it was told, and asks again. The first window is filled at once,
as in Kafka: so a rate is measured behind it.

As in Kafka, the request that exceeds a quota is served, and its client waits afterwards. Clients
that share a quota can exceed it by one request each in a window. They stay within 5 % if these
requests are small beside the quota of a window.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable

import pytest

from tests.unit.broker.quotas.test_client_quotas import with_quotas
from tidelog.broker.quotas.client_quotas import ClientQuotas, QuotaClient
from tidelog.coordinator.cluster.records.client_quotas import QuotaEntity

ALICE = QuotaEntity("alice")
DEVIATION_MAX = 0.05
WINDOW_SECONDS = 11
MEASURED_SECONDS = 200

Step = Callable[[QuotaClient, random.Random, float], tuple[float, float]]
"""Makes one request. Returns the cost, and the seconds until the next request."""


def rate_of(quotas: ClientQuotas, step: Step, clients: int, seed: int) -> float:
    """The use of all clients of a user per second, from the second window on."""
    chance = random.Random(seed)
    waiting = [(chance.random(), number) for number in range(clients)]
    heapq.heapify(waiting)
    used = 0.0
    while waiting[0][0] < WINDOW_SECONDS + MEASURED_SECONDS:
        now, number = heapq.heappop(waiting)
        use, pause = step(quotas.of("alice", f"app {number}"), chance, now)
        if now >= WINDOW_SECONDS:
            used += use
        heapq.heappush(waiting, (now + pause, number))
    return used / MEASURED_SECONDS


def produce(client: QuotaClient, chance: random.Random, now: float) -> tuple[float, float]:
    size = chance.randint(1_000, 60_000)
    return size, client.produce_ms(size, now) / 1000 + chance.uniform(0.001, 0.01)


def fetch(client: QuotaClient, chance: random.Random, now: float) -> tuple[float, float]:
    size = min(chance.randint(1_000, 60_000), client.fetch_bytes_max)
    waits_ms, has_records = client.fetch_ms(size, now)
    return size * has_records, waits_ms / 1000 + chance.uniform(0.001, 0.01)


def work(client: QuotaClient, chance: random.Random, now: float) -> tuple[float, float]:
    busy = chance.uniform(0.001, 0.03)
    return busy * 100, client.request_ms(busy, now + busy) / 1000 + busy


def mutate(client: QuotaClient, chance: random.Random, now: float) -> tuple[float, float]:
    waits_ms = client.mutation_ms(now)
    if waits_ms:
        return 0, waits_ms / 1000
    assert client.mutations is not None
    partitions = chance.randint(1, 12)
    client.mutations.charge(partitions, now)
    return partitions, chance.uniform(0.01, 0.1)


@pytest.mark.parametrize("clients", [1, 7])
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    ("key", "value", "step"),
    [
        ("producer_byte_rate", 200_000.0, produce),
        ("consumer_byte_rate", 200_000.0, fetch),
        ("request_percentage", 15.0, work),
        ("controller_mutation_rate", 5.0, mutate),
    ],
)
def test_the_rate_of_clients_that_want_more_is_their_quota(
    key: str, value: float, step: Step, seed: int, clients: int
) -> None:
    quotas = with_quotas({ALICE: {key: value * clients}})
    rate = rate_of(quotas, step, clients, seed)
    assert rate == pytest.approx(value * clients, rel=DEVIATION_MAX)
    assert quotas.metrics.throttled.items()[0][0] == key


def test_clients_that_share_a_small_quota_exceed_it_by_a_request_each_in_a_window() -> None:
    quotas = with_quotas({ALICE: {"producer_byte_rate": 200_000.0}})
    rate = rate_of(quotas, produce, clients=7, seed=1)
    assert 200_000 < rate < 200_000 + 7 * 60_000 / (WINDOW_SECONDS - 1)


@pytest.mark.parametrize(
    ("key", "step"),
    [
        ("producer_byte_rate", produce),
        ("consumer_byte_rate", fetch),
        ("request_percentage", work),
        ("controller_mutation_rate", mutate),
    ],
)
def test_clients_that_want_less_are_not_slowed_down(key: str, step: Step) -> None:
    ample = with_quotas({ALICE: {key: 1e12}})
    free = rate_of(ample, step, 3, seed=5)
    roomy = with_quotas({ALICE: {key: 1.5 * free}})
    assert rate_of(roomy, step, 3, seed=5) == pytest.approx(free, rel=DEVIATION_MAX)
    assert roomy.metrics.throttled.items() == []
