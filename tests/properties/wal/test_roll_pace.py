"""Rolls take as long as they may, and make no pauses where there is no time for any."""

from __future__ import annotations

from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.identifiers import TopicPartition
from tidelog.wal.roll_pace import (
    AGE_SHARE_MAX,
    BYTES_A_SECOND_MIN,
    SEGMENT_BYTES,
    RollPace,
    seconds_for,
)
from tidelog.wal.roll_plan import Backlog, Roll, RollReason

SIZES = st.lists(st.integers(0, 1 << 30), min_size=1, max_size=20)
SECONDS = st.floats(0.01, 100)
START = 1000.0


def backlog(wal_bytes: int, age_ms_max: int = 3_600_000) -> Backlog:
    place = TopicPartition(UUID(int=1), 0)
    return Backlog(place, wal_bytes, 1, 0, 1 << 27, age_ms_max, is_requested=False)


def rolls(sizes: list[int]) -> list[Roll]:
    return [Roll(backlog(size), RollReason.SIZE) for size in sizes]


def work_of(sizes: list[int]) -> int:
    return sum(sizes) + SEGMENT_BYTES * len(sizes)


def begins(pace: RollPace, pieces: list[int], piece_seconds: list[float]) -> list[float]:
    """When each piece begins, and when the one behind them all could."""
    now, found = START, []
    for size, took in zip(pieces, piece_seconds, strict=True):
        now += pace.seconds_to_wait(now)
        found.append(now)
        pace.begin(now)
        now += took
        pace.note(size)
    return [*found, now + pace.seconds_to_wait(now)]


@given(SIZES, SECONDS)
def test_rolls_that_take_no_time_are_spread_evenly(sizes: list[int], seconds: float) -> None:
    pieces = [size + SEGMENT_BYTES for size in sizes]
    first, *_, end = begins(RollPace(rolls(sizes), seconds), pieces, [0.0] * len(pieces))
    assert first == START, "the first does not wait"
    expected = min(seconds, work_of(sizes) / BYTES_A_SECOND_MIN)
    assert end - first == pytest.approx(expected)


@given(SIZES, SECONDS, st.floats(0, 2))
def test_work_is_part_of_the_time_and_has_no_pauses_where_it_takes_all_of_it(
    sizes: list[int], seconds: float, share: float
) -> None:
    """`share`: of the time that is there, as much as the work itself takes."""
    pieces = [size + SEGMENT_BYTES for size in sizes]
    there_is = min(seconds, work_of(sizes) / BYTES_A_SECOND_MIN)
    took = [share * there_is * piece / work_of(sizes) for piece in pieces]
    first, *_, end = begins(RollPace(rolls(sizes), seconds), pieces, took)
    assert end - first == pytest.approx(max(1.0, share) * there_is)


@given(SIZES, SECONDS, st.data())
def test_what_was_late_is_not_made_up_for_by_haste(
    sizes: list[int], seconds: float, data: st.DataObject
) -> None:
    """Between two begins there is always as much time as the piece between them is worth."""
    pieces = [size + SEGMENT_BYTES for size in sizes]
    count = len(pieces)
    took = data.draw(st.lists(st.floats(0, seconds), min_size=count, max_size=count))
    found = begins(RollPace(rolls(sizes), seconds), pieces, took)
    rate = max(BYTES_A_SECOND_MIN, work_of(sizes) / seconds)
    for before, after, piece in zip(found, found[1:], pieces, strict=False):
        assert after - before >= piece / rate - 1e-6


def test_without_time_there_are_no_pauses() -> None:
    pieces = [1 << 40] * 5
    assert begins(RollPace(rolls(pieces), 0), pieces, [0.0] * 5) == [START] * 6


@given(st.lists(st.integers(1, 1 << 40), max_size=10), SECONDS)
def test_nobody_waits_much_longer_than_the_age_that_is_due(
    ages_ms: list[int], seconds_max: float
) -> None:
    found = seconds_for([backlog(1, age) for age in ages_ms], seconds_max)
    expected = min([seconds_max, *(AGE_SHARE_MAX * age / 1000 for age in ages_ms)])
    assert found == pytest.approx(expected)
