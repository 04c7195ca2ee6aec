"""Work without a waiting client takes all of its time, and has no pauses if it has no time."""

from __future__ import annotations

from itertools import pairwise
from math import inf
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.identifiers import TopicPartition
from tidelog.wal.roll.pace import (
    BYTES_A_SECOND_MIN,
    SEGMENT_BYTES,
    RollPriority,
    Throttle,
    priority_of,
    rate_for,
    rate_of,
)
from tidelog.wal.roll.roll_plan import Backlog, Roll, RollReason

PIECES = st.lists(st.floats(0.1, 1000), min_size=1, max_size=20)
SECONDS = st.floats(0.01, 100)
START = 1000.0
HOUR_MS = 3_600_000
MIB = 1024 * 1024


def backlog(wal_bytes: int, age_ms: int = 0, age_ms_max: int = HOUR_MS) -> Backlog:
    place = TopicPartition(UUID(int=1), 0)
    return Backlog(place, wal_bytes, 1, age_ms, 1 << 27, age_ms_max, is_requested=False)


def begins(throttle: Throttle, pieces: list[float], piece_seconds: list[float]) -> list[float]:
    """The begin of each piece, and the earliest begin of a piece behind them all."""
    now, found = START, []
    for size, took in zip(pieces, piece_seconds, strict=True):
        now += throttle.seconds_to_wait(now)
        found.append(now)
        throttle.begin(now)
        now += took
        throttle.note(size)
    return [*found, now + throttle.seconds_to_wait(now)]


@given(PIECES, SECONDS)
def test_work_that_takes_no_time_is_spread_evenly(pieces: list[float], seconds: float) -> None:
    throttle = Throttle(rate_of(sum(pieces), seconds, 1e-9))
    first, *_, end = begins(throttle, pieces, [0.0] * len(pieces))
    assert first == START, "the first does not wait"
    assert end - first == pytest.approx(seconds)


@given(PIECES, SECONDS, st.floats(0, 2))
def test_work_is_part_of_the_time_and_has_no_pauses_if_it_takes_all_the_time(
    pieces: list[float], seconds: float, share: float
) -> None:
    """`share`: the part of the available time that the work itself takes."""
    took = [share * seconds * piece / sum(pieces) for piece in pieces]
    throttle = Throttle(rate_of(sum(pieces), seconds, 1e-9))
    first, *_, end = begins(throttle, pieces, took)
    assert end - first == pytest.approx(max(1.0, share) * seconds)


@given(PIECES, SECONDS, st.data())
def test_the_pace_does_not_catch_up_after_a_late_piece(
    pieces: list[float], seconds: float, data: st.DataObject
) -> None:
    """Between two begins there is always as much time as the piece between them is worth."""
    count = len(pieces)
    took = data.draw(st.lists(st.floats(0, seconds), min_size=count, max_size=count))
    rate = rate_of(sum(pieces), seconds, 1e-9)
    found = begins(Throttle(rate), pieces, took)
    for (before, after), piece in zip(pairwise(found), pieces, strict=True):
        assert after - before >= piece / rate - 1e-6


@given(st.floats(0.1, 100), st.floats(0.1, 100), st.floats(0, 1))
def test_another_rate_counts_for_the_rest_of_a_pause(
    rate: float, later: float, share: float
) -> None:
    throttle = Throttle(rate)
    throttle.begin(START)
    throttle.note(1.0)
    now = START + share / rate
    throttle.renew(later, now)
    assert throttle.seconds_to_wait(now) == pytest.approx((1 - share) / later, abs=1e-9)
    throttle.renew(inf, now)
    assert throttle.seconds_to_wait(now) == 0


def test_without_time_there_are_no_pauses() -> None:
    pieces = [1e12] * 5
    assert begins(Throttle(rate_of(1e12, 0, 1.0)), pieces, [0.0] * 5) == [START] * 6
    assert rate_of(1e12, -1, 1.0) == inf


def test_the_pace_has_a_minimum() -> None:
    assert rate_for([Roll(backlog(1), RollReason.SIZE)], 1e9) == BYTES_A_SECOND_MIN


def test_awaited_and_overdue_work_gets_the_core_at_once() -> None:
    due = Roll(backlog(1, HOUR_MS), RollReason.AGE)
    assert rate_for([due], 30) < inf
    assert rate_for([due, Roll(backlog(1), RollReason.REQUEST)], 30) == inf
    overdue = Roll(backlog(1, HOUR_MS * 9 // 8), RollReason.AGE)
    assert (
        priority_of(Roll(backlog(1, HOUR_MS * 9 // 8 - 1), RollReason.AGE))
        is RollPriority.BACKGROUND
    )
    assert priority_of(overdue) is RollPriority.OVERDUE
    assert rate_for([due, overdue], 30) == inf


def test_the_pace_keeps_rolls_from_becoming_overdue() -> None:
    """Most due bytes have half a minute. A tenth of them have a second and a quarter."""
    usual = [Roll(backlog(900 * MIB), RollReason.SIZE)] * 10
    fresh = Roll(backlog(99 * MIB, 10_000, 10_000), RollReason.AGE)
    assert rate_for(usual, 30) == pytest.approx(10 * 901 * MIB / 30)
    assert rate_for([*usual, fresh], 30) == pytest.approx((10 * 901 + 100) * MIB / 30)
    assert rate_for([usual[0], fresh], 30) == pytest.approx(100 * MIB / 1.25)


@given(st.lists(st.integers(0, 1024), min_size=1, max_size=100), st.integers(0, 200))
def test_the_due_backlog_stays_within_the_inflow_of_the_spread(
    sizes_mib: list[int], inflow_mib: int
) -> None:
    """All partitions grow while they are rolled, more slowly than a machine can roll. The story
    goes in seconds, like the agenda's looks: the rate follows the due bytes, and the machine rolls
    400 MiB/s."""
    seconds, machine = 30.0, 400 * MIB
    held = [float(size * MIB) for size in sizes_mib]
    allowed = max(sum(held), inflow_mib * MIB * seconds) + len(held) * SEGMENT_BYTES
    for second in range(600):
        held = [size + inflow_mib * MIB / len(held) for size in held]
        due = [Roll(backlog(int(size)), RollReason.SIZE) for size in held]
        left = min(rate_for(due, seconds), machine)
        for number in range(len(held)):
            done = min(left, held[number])
            held[number] -= done
            left -= done
        assert sum(held) <= allowed, second
    assert sum(held) <= inflow_mib * MIB * seconds + 1
