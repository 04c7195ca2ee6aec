"""Which commits a table takes, and how its segments are found."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from tests.unit.storage.segments import STAMP, TOPIC_ID, advance, commit_of, listed
from tidelog.errors import CorruptObject
from tidelog.storage.segment.segment import Segment
from tidelog.storage.table.table_change import PartitionChange
from tidelog.storage.table.table_state import TableSegment, TableState


def table(*changes: PartitionChange) -> TableState:
    """A table with one commit a change."""
    state = TableState(TOPIC_ID)
    for version, change in enumerate(changes):
        state.apply(f"key {version}", version, commit_of(change, first=version == 0))
    return state


A, B, C = listed(0, 0, 9, 1), listed(0, 15, 19, 2), listed(0, 20, 29, 3)


def three() -> TableState:
    return table(advance(0, 0, 12, A), advance(0, 12, 20, B), advance(0, 20, 40, C))


def reason(state: TableState, change: PartitionChange) -> str:
    refusal = state.refusal([change])
    assert refusal is not None
    assert refusal.partition == change.partition
    version = state.version
    with pytest.raises(CorruptObject, match="some key"):
        state.apply("some key", version + 1, commit_of(change))
    assert state.version == version
    return refusal.reason


def test_rows_are_added_exactly_where_the_table_ends() -> None:
    state = three()
    assert state.partition(0).next_offset == 40
    assert state.refusal([advance(0, 40, 50, listed(0, 40, 49, 4))]) is None
    for base in (39, 41, 0):
        change = advance(0, base, 60, listed(0, 45, 49, 4))
        assert reason(state, change) == f"the table ends at offset 40, not at {base}"


def test_a_range_without_rows_is_an_advance_too() -> None:
    state = three()
    state.apply("key", 3, commit_of(advance(0, 40, 1000)))
    assert state.partition(0).next_offset == 1000
    assert state.segment_count == 3


def test_a_partition_begins_at_offset_0() -> None:
    state = three()
    assert state.refusal([advance(5, 0, 10, listed(5, 3, 9))]) is None
    assert reason(state, advance(5, 3, 10, listed(5, 3, 9))) == (
        "the table ends at offset 0, not at 3"
    )


@pytest.mark.parametrize(
    ("segments", "next_offset"),
    [
        ([listed(0, 40, 50)], 50),
        ([listed(0, 39, 45)], 50),
        ([listed(0, 40, 45), listed(0, 45, 49)], 50),
        ([listed(0, 46, 49), listed(0, 40, 45)], 50),
        ([listed(1, 40, 45)], 50),
        ([], 40),
    ],
)
def test_appended_segments_lie_in_order_within_the_advance(
    segments: Sequence[Segment], next_offset: int
) -> None:
    assert three().refusal([advance(0, 40, next_offset, *segments)]) is not None


def test_segments_without_an_advance_are_refused() -> None:
    change = PartitionChange(partition=0, appended=(listed(0, 40, 45),))
    assert "does not advance" in reason(three(), change)


def test_only_segments_of_the_table_can_be_removed() -> None:
    state = three()
    removal = PartitionChange(partition=0, removed=(A.name,))
    state.apply("key", 3, commit_of(removal))
    assert [stored.segment for stored in state.partition(0).segments] == [B, C]
    assert state.removed == {A.name: STAMP}
    assert state.partition(0).next_offset == 40
    assert "is not in the table" in reason(state, removal)
    twice = PartitionChange(partition=0, removed=(B.name, B.name))
    assert "twice" in reason(state, twice)
    elsewhere = PartitionChange(partition=1, removed=(B.name,))
    assert "is not in the table" in reason(state, elsewhere)


def test_compaction_puts_one_segment_in_the_place_of_many() -> None:
    state = three()
    merged = listed(0, 0, 29, 9)
    names = (A.name, B.name, C.name)
    state.apply(
        "key", 3, commit_of(PartitionChange(partition=0, removed=names, rewritten=(merged,)))
    )
    assert [stored.segment for stored in state.partition(0).segments] == [merged]
    assert state.segment_count == 1
    assert set(state.removed) == set(names)


def test_a_rewrite_makes_no_segment_younger() -> None:
    """Retention and compaction take records without timestamps to be as old as their segment."""
    first, rest = listed(0, 0, 19, 9), listed(0, 20, 29, 9)
    state = TableState(TOPIC_ID)
    for version, change in enumerate(
        (
            advance(0, 0, 12, A),
            advance(0, 12, 20, B),
            advance(0, 20, 40, C),
            PartitionChange(partition=0, removed=(A.name, B.name, C.name), rewritten=(first, rest)),
        )
    ):
        commit = commit_of(change, first=version == 0)
        state.apply("key", version, replace(commit, timestamp_ms=STAMP + 1000 * version))
    ages = [stored.added_ms - STAMP for stored in state.partition(0).segments]
    assert ages == [1000, 2000]


def test_a_compacted_segment_may_not_overlap_others_or_reach_beyond() -> None:
    state = three()

    def merge(removed: list[Segment], *added: Segment) -> PartitionChange:
        names = tuple(segment.name for segment in removed)
        return PartitionChange(partition=0, removed=names, rewritten=added)

    assert "overlaps" in reason(state, merge([A, C], listed(0, 0, 29, 9)))
    assert "overlaps" in reason(state, merge([A, B], listed(0, 0, 20, 9)))
    assert "does not lie" in reason(state, merge([C], listed(0, 20, 35, 9)))
    assert "place of none" in reason(state, merge([], listed(0, 10, 12, 9)))
    assert "another partition" in reason(state, merge([A], listed(1, 0, 9, 9)))
    assert state.refusal([merge([A, B], listed(0, 0, 14, 9), listed(0, 15, 19, 8))]) is None


def test_a_change_of_one_partition_that_is_refused_refuses_the_commit() -> None:
    state = three()
    good, bad = advance(1, 0, 5), advance(0, 0, 5)
    refusal = state.refusal([good, bad])
    assert refusal is not None
    assert refusal.partition == 0
    with pytest.raises(CorruptObject, match="key 3"):
        state.apply("key 3", 3, commit_of(good, bad))
    assert state.partition(1).next_offset == 0


def test_the_latest_come_first_and_of_equals_the_first() -> None:
    times = [5, 9, None, 9, 7, -1]
    segments = [listed(0, 10 * n, 10 * n + 9, n, time) for n, time in enumerate(times)]
    state = table(*(advance(0, 10 * n, 10 * n + 10, each) for n, each in enumerate(segments)))

    def latest_first(offset: int) -> list[int]:
        found = state.partition(0).latest_first(offset)
        return [segment.name.base_offset // 10 for segment in found]

    # A record without a timestamp has -1, as in Kafka.
    assert latest_first(0) == [1, 3, 4, 0, 2, 5]
    assert latest_first(19) == [1, 3, 4, 2, 5]
    assert latest_first(20) == [3, 4, 2, 5]
    assert latest_first(60) == []
    assert list(state.partition(1).latest_first(0)) == []
    copied = state.partition(0).copy()
    assert list(copied.latest_first(0)) == list(state.partition(0).latest_first(0))
    assert copied.since(9) == state.partition(0).since(9) == segments[1]
    # A replacement does not change an iteration that has begun.
    going = state.partition(0).latest_first(0)
    assert next(going) == segments[1]
    names = tuple(segment.name for segment in segments)
    merged = listed(0, 0, 59, 9, 9)
    change = PartitionChange(partition=0, removed=names, rewritten=(merged,))
    state.apply("key", 6, commit_of(change))
    assert list(going) == [segments[n] for n in (3, 4, 0, 2, 5)]
    assert list(state.partition(0).latest_first(0)) == [merged]


def test_versions_follow_each_other_and_the_first_brings_the_metadata() -> None:
    state = TableState(TOPIC_ID)
    with pytest.raises(CorruptObject, match="does not continue version -1"):
        state.apply("key", 0, commit_of(advance(0, 0, 5)))
    with pytest.raises(CorruptObject, match="does not continue"):
        state.apply("key", 1, commit_of(advance(0, 0, 5), first=True))
    state.apply("key", 0, commit_of(advance(0, 0, 5), first=True))
    with pytest.raises(CorruptObject, match="does not continue version 0"):
        state.apply("key", 0, commit_of(advance(0, 5, 6)))
    with pytest.raises(CorruptObject, match="does not continue"):
        state.apply("key", 1, commit_of(advance(0, 5, 6), first=True))


def test_a_commit_with_a_partition_twice_is_a_mistake() -> None:
    with pytest.raises(ValueError, match="each partition once"):
        three().refusal([advance(0, 40, 41), advance(0, 41, 42)])


def test_an_offset_is_found_in_the_segment_that_covers_it_or_the_next() -> None:
    found = three().partition(0)
    expected = {0: A, 9: A, 10: B, 14: B, 15: B, 19: B, 20: C, 29: C, 30: None, 100: None}
    assert {offset: found.at(offset) for offset in expected} == expected
    assert [found.after(segment.name) for segment in (A, B, C)] == [B, C, None]
    assert three().partition(7).at(0) is None


def test_a_time_is_found_in_the_first_segment_that_reaches_the_time() -> None:
    times = [5, 9, None, 7, 20, 3]
    segments = [
        listed(0, 10 * i, 10 * i + 9, i, timestamp_max=time) for i, time in enumerate(times)
    ]
    found = table(advance(0, 0, 100, *segments)).partition(0)
    expected = {0: 0, 5: 0, 6: 1, 9: 1, 10: 4, 20: 4}
    assert {time: segments.index(found.since(time) or A) for time in expected} == expected
    assert found.since(21) is None


def test_removed_segments_are_forgotten_in_time() -> None:
    state = three()
    state.apply("key", 3, commit_of(PartitionChange(partition=0, removed=(A.name,))))
    state.forget_removed(STAMP)
    assert set(state.removed) == {A.name}
    state.forget_removed(STAMP + 1)
    assert state.removed == {}


def test_a_partition_is_not_restored_with_segments_that_overlap() -> None:
    state = TableState(TOPIC_ID)
    overlapping = [TableSegment(listed(0, 0, 10, 1), 0), TableSegment(listed(0, 10, 20, 2), 0)]
    for segments, next_offset in ((overlapping, 30), (overlapping[:1], 10)):
        with pytest.raises(ValueError, match="overlaps, or ends beyond"):
            state.restore(0, next_offset, segments)
