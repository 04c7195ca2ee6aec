"""A merge takes the objects with the fewest live bytes, as soon as there are too many."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from tests.properties.wal.batches import topic_partition
from tidelog.identifiers import TopicPartition
from tidelog.wal.log.extents import Extent, Extents
from tidelog.wal.roll.merge_plan import MERGED_EXTENT_BYTES, MergePlan, WalMergeLimits, plan_merge

LIMITS = WalMergeLimits(objects_max=4, bytes_max=1_000_000, sources_max=1000)


def log_of(*places: tuple[str, int]) -> Extents:
    """One extent for each object and length."""
    return Extents(
        Extent(offset, offset, 0, key, 64, length) for offset, (key, length) in enumerate(places)
    )


def plan(
    *logs: Extents,
    old: str = "abcdefghijklmnopqrstuvwxyz",
    damaged: str = "",
    limits: WalMergeLimits = LIMITS,
) -> MergePlan | None:
    named = {topic_partition(number): log for number, log in enumerate(logs)}
    return plan_merge(named, lambda key: key in old, damaged, limits)


def test_few_objects_are_left_alone() -> None:
    assert plan(log_of(("a", 1), ("b", 1), ("c", 1), ("d", 1))) is None
    assert plan() is None


def test_a_merge_takes_the_emptiest_objects_until_half_of_the_limit_is_left() -> None:
    found = plan(log_of(("a", 9), ("b", 1), ("c", 1), ("d", 8), ("e", 1)))
    assert found is not None
    keys = [extent.key for run in found.runs for extent in run.extents]
    assert (keys, found.objects, found.size_bytes) == (["b", "c", "d", "e"], 4, 11)


def test_consecutive_batches_of_a_partition_become_one_extent() -> None:
    found = plan(
        log_of(("a", 1), ("b", 1), ("x", 400_000), ("c", 1), ("d", 1)),
        log_of(("a", 2), ("b", 2), ("d", 2), ("e", 1)),
    )
    assert found is not None
    lengths = [(run.partition, len(run.extents)) for run in found.runs]
    first, second = topic_partition(0), topic_partition(1)
    assert lengths == [(first, 2), (first, 2), (second, 4)]


def test_objects_that_may_not_go_yet_are_not_moved() -> None:
    log = log_of(*((key, 1) for key in "abcdefgh"))
    assert plan(log, old="abcd") is None
    found = plan(log, old="abcdef")
    assert found is not None
    assert {e.key for run in found.runs for e in run.extents} <= set("abcdef")


def test_damaged_objects_are_left_where_they_are() -> None:
    found = plan(log_of(*((key, 1) for key in "abcdefgh")), damaged="ac")
    assert found is not None
    assert {e.key for run in found.runs for e in run.extents}.isdisjoint("ac")


def test_full_objects_are_worth_their_number() -> None:
    assert plan(log_of(*((key, 300_000) for key in "abcdefgh"))) is None


def test_a_merged_extent_is_no_larger_than_one_read() -> None:
    limits = replace(LIMITS, bytes_max=64 * MERGED_EXTENT_BYTES)
    half = MERGED_EXTENT_BYTES // 2
    found = plan(log_of(*((key, half) for key in "abcdefgh")), limits=limits)
    assert found is not None
    assert all(sum(e.length for e in run.extents) <= 2 * half for run in found.runs)
    assert sum(len(run.extents) for run in found.runs) == found.objects


@given(
    st.lists(
        st.lists(st.tuples(st.integers(0, 40), st.integers(1, 50_000)), max_size=30), max_size=8
    ),
    st.integers(2, 12),
    st.integers(2, 12),
)
def test_merging_ends_with_few_objects_or_full_objects(
    logs: list[list[tuple[int, int]]], objects_max: int, sources_max: int
) -> None:
    """Merging again and again, as the merger does, comes to an end and leaves few objects."""
    limits = WalMergeLimits(objects_max, bytes_max=100_000, sources_max=sources_max)
    held: dict[TopicPartition, Extents] = {
        topic_partition(number): log_of(*((f"{slot:03}", length) for slot, length in sorted(log)))
        for number, log in enumerate(logs)
    }
    for merged in range(100):
        plan = plan_merge(held, lambda _: True, (), limits)
        if plan is None:
            break
        assert plan.objects <= min(sources_max, plan.old_objects)
        for run in plan.runs:
            size = sum(extent.length for extent in run.extents)
            last = run.extents[-1].last_offset
            moved = Extent(run.extents[0].base_offset, last, 0, f"m{merged}", 64, size)
            assert held[run.partition].relocate(moved)
    else:
        raise AssertionError("merging never ends")
    live: dict[str, int] = {}
    for log in held.values():
        for extent in log:
            live[extent.key] = live.get(extent.key, 0) + extent.length
    full = sum(live.values()) // (limits.worth_bytes // 2) + 1
    assert len(live) <= objects_max + full
