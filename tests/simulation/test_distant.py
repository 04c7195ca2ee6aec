"""Latencies of producers on a store with slow PUTs, counted in PUTs, in virtual time."""

from __future__ import annotations

import pytest

from tests.simulation.distant import (
    NETWORK_SECONDS,
    TICK_SECONDS,
    Pace,
    commits,
    paced,
)

WAL_LINGER_SECONDS = 0.005
SLACK_SECONDS = 4 * NETWORK_SECONDS + 2 * TICK_SECONDS
PUTS = pytest.mark.parametrize("put_seconds", [0.1, 0.25])
PARTITIONS = pytest.mark.parametrize("partitions", [1, 16])


def lingers(pace: Pace) -> float:
    """The lingers of the client and of the broker together."""
    return pace.linger_seconds + WAL_LINGER_SECONDS + SLACK_SECONDS


@PUTS
@PARTITIONS
def test_a_paced_producer_waits_for_two_puts_at_most(put_seconds: float, partitions: int) -> None:
    """One PUT until a request in flight is answered, and one for the record itself."""
    pace = Pace(records_a_second=1000, partitions=partitions, seconds=4)
    found = paced(put_seconds, pace)
    assert found.percentile(0.99) <= 2 * put_seconds + lingers(pace)
    assert found.percentile(0.5) <= 1.6 * put_seconds + lingers(pace)


@PUTS
@PARTITIONS
def test_a_producer_with_many_requests_in_flight_waits_for_one_put(
    put_seconds: float, partitions: int
) -> None:
    """Like a client without idempotence: one partition a request, and any number of requests in
    flight."""
    pace = Pace(
        records_a_second=1000,
        partitions=partitions,
        seconds=4,
        requests_in_flight_max=1_000_000,
        partitions_a_request=1,
    )
    found = paced(put_seconds, pace)
    assert found.percentile(0.99) <= put_seconds + lingers(pace)


@PUTS
@PARTITIONS
@pytest.mark.parametrize("puts_a_second", [4, 10])
def test_a_limit_of_puts_costs_one_interval_more(
    put_seconds: float, partitions: int, puts_a_second: int
) -> None:
    pace = Pace(records_a_second=1000, partitions=partitions, seconds=6)
    found = paced(put_seconds, pace, wal_puts_per_second_max=puts_a_second)
    interval = 1 / puts_a_second
    # If an interval is longer than two PUTs, it also bounds the rate of answers.
    bound = max(2 * put_seconds, interval) + interval + lingers(pace)
    assert found.percentile(0.99) <= bound
    seconds = pace.seconds + found.latencies[-1]
    assert found.wal_puts <= puts_a_second * (seconds + 1) + 1


@PUTS
def test_five_requests_in_flight_are_all_answered_within_a_put(put_seconds: float) -> None:
    pace = Pace(records_a_second=2000, partitions=1, seconds=10)
    found = paced(put_seconds, pace)
    cycles = (pace.seconds + found.latencies[-1]) / (put_seconds + lingers(pace))
    # Each is sent when the linger of its batch has passed, 5 ms behind the one before.
    assert found.requests >= 4 * cycles


@PUTS
def test_a_commit_is_one_put_and_a_linger(put_seconds: float) -> None:
    took = commits(put_seconds, rounds=10)
    assert len(took) == 10
    assert took[-1] <= put_seconds + WAL_LINGER_SECONDS + SLACK_SECONDS


@PUTS
def test_a_commit_does_not_wait_for_a_budget_that_is_not_used_up(put_seconds: float) -> None:
    took = commits(put_seconds, rounds=10, wal_puts_per_second_max=10)
    assert took[-1] <= put_seconds + WAL_LINGER_SECONDS + SLACK_SECONDS
