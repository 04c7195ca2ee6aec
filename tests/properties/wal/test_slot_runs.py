"""Runs of slots agree with sets of slots."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from tidelog.wal.recover.slot_runs import SlotRun, below, count, extended, runs_of, without

slots = st.sets(st.integers(0, 40))


def members(runs: list[SlotRun]) -> set[int]:
    found = [slot for run in runs for slot in range(run.first, run.end)]
    assert found == sorted(set(found)), "runs ascend, and none is empty or overlaps"
    return set(found)


@given(slots)
def test_runs_are_as_long_as_possible(chosen: set[int]) -> None:
    runs = runs_of(sorted(chosen))
    assert members(runs) == chosen
    assert count(runs) == len(chosen)
    assert all(before.end < after.first for before, after in pairwise(runs))


@given(slots, slots, st.integers(0, 41))
def test_differences_of_runs_equal_differences_of_sets(
    chosen: set[int], others: set[int], end: int
) -> None:
    runs = runs_of(sorted(chosen))
    assert members(without(runs, runs_of(sorted(others)))) == chosen - others
    assert members(below(runs, end)) == {slot for slot in chosen if slot < end}


@given(slots, st.integers(41, 50), st.integers(0, 5))
def test_an_end_that_moves_on_adds_the_slots_between(
    chosen: set[int], since: int, more: int
) -> None:
    runs = extended(runs_of(sorted(chosen)), since + more, since)
    assert members(runs) == chosen | set(range(since, since + more))
