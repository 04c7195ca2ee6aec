"""The choice of segments to compact and to merge, their cleaned ranges, and the known keys."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import pytest

from tests.unit.storage.keyed_log import POLICY, Kept, KeyedLog
from tests.unit.storage.segments import listed
from tidelog.storage.clean import key_offsets, segment_rewriting
from tidelog.storage.clean.compaction import (
    MERGED_SEGMENTS_MIN,
    RANGES_MAX,
    DirtyLog,
    Round,
    SegmentMergeLimits,
    dirty_log,
    joined_ranges,
    small_run,
)
from tidelog.storage.clean.key_offsets import NO_OFFSET, KeyOffsets
from tidelog.storage.segment import segment_writer
from tidelog.storage.segment.segment import CleanedRange, Segment
from tidelog.storage.table.table_change import add_action, read_add
from tidelog.storage.table.table_state import TableSegment

T = TypeVar("T")
HOUR = 3_600_000


def run(story: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(story)


def stored(
    base: int,
    last: int,
    *cleaned: tuple[int, int],
    size: int = 1000,
    latest: int | None = 1_000,
    added_ms: int = 5_000,
) -> TableSegment:
    """A segment of partition 0."""
    segment = replace(
        listed(0, base, last, base, latest),
        size_bytes=size,
        cleaned=tuple(CleanedRange(*each) for each in cleaned),
    )
    return TableSegment(segment, added_ms)


# Dirty parts of a log.


def test_a_segment_without_a_clean_mark_is_dirty() -> None:
    log = [stored(0, 9), stored(10, 19)]
    assert dirty_log(log, POLICY, 0, 9_000) == DirtyLog(0, 20, 0, 2000, 1_000)
    assert dirty_log([], POLICY, 0, 9_000) is None
    assert dirty_log([stored(0, 9, (10, 1))], POLICY, 0, 9_000) is None


def test_a_segment_may_be_clean_in_part() -> None:
    log = [stored(0, 9, (10, 1)), stored(10, 19, (15, 1)), stored(20, 29)]
    assert dirty_log(log, POLICY, 0, 9_000) == DirtyLog(15, 30, 1500, 1500, 1_000)
    # The log start may lie behind the cleaned part.
    assert dirty_log(log, POLICY, 18, 9_000) == DirtyLog(18, 30, 800, 1200, 1_000)


def test_the_first_young_segment_ends_the_dirty_log() -> None:
    policy = POLICY._replace(min_compaction_lag_ms=HOUR)
    now_ms = 10 * HOUR
    log = [stored(0, 9), stored(10, 19, latest=now_ms - HOUR), stored(20, 29)]
    found = dirty_log(log, policy, 0, now_ms)
    assert found is not None
    assert found.end == 30
    log[1] = stored(10, 19, latest=now_ms - HOUR + 1)
    found = dirty_log(log, policy, 0, now_ms)
    assert found is not None
    assert found.end == 10
    # A segment without timestamps is as old as its entry in the table.
    log[0] = stored(0, 9, latest=None, added_ms=now_ms)
    assert dirty_log(log, policy, 0, now_ms) is None


def test_a_round_is_due_by_the_dirty_ratio_or_by_the_dirty_age() -> None:
    half = DirtyLog(10, 20, 500, 500, 1_000)
    assert not half.is_due(POLICY, 9_000)
    assert half.is_due(POLICY._replace(min_cleanable_dirty_ratio=0.49), 9_000)
    assert not half.is_due(POLICY._replace(max_compaction_lag_ms=8_000), 9_000)
    assert half.is_due(POLICY._replace(max_compaction_lag_ms=7_999), 9_000)


# The clean ranges of segments after a round.


def round_to(end: int, now_ms: int = 1_000) -> Round:
    return Round(0, end, 0, now_ms, 100)


def test_ranges_keep_the_time_of_the_round_that_compacted_them_first() -> None:
    segments = [stored(0, 9, (5, 950), (10, 960)).segment, stored(10, 19).segment]
    assert list(round_to(20).cleaned_after(segments)) == [(5, 950), (10, 960), (20, 1_000)]


def test_the_rest_of_a_segment_stays_dirty_if_a_round_ends_within_the_segment() -> None:
    segments = [stored(0, 9, (10, 950)).segment, stored(10, 19).segment]
    assert list(round_to(15).cleaned_after(segments)) == [(10, 950), (15, 1_000)]


def test_tombstones_go_when_their_time_is_over_and_leave_nothing_to_wait_for() -> None:
    segment = stored(0, 9, (4, 900), (8, 901)).segment
    assert round_to(10).expired_before(segment) == [(0, 4)]
    assert list(round_to(10).cleaned_after([segment])) == [(4, 1_000), (8, 901), (10, 1_000)]


def test_ranges_are_joined_where_that_loses_nothing() -> None:
    ranges = [CleanedRange(5, 1), CleanedRange(7, 1), CleanedRange(9, 2)]
    assert joined_ranges(ranges, 3) == ((7, 1), (9, 2))
    # Without tombstones their times do not matter.
    assert joined_ranges(ranges, 0) == ((9, 2),)


def test_the_oldest_of_too_many_ranges_share_the_later_time() -> None:
    ranges = [CleanedRange(10 * n, n) for n in range(1, RANGES_MAX + 3)]
    found = joined_ranges(ranges, 1)
    assert len(found) == RANGES_MAX
    assert found[:2] == ((30, 3), (40, 4))


def test_a_tombstone_is_not_kept_longer_because_younger_tombstones_join() -> None:
    async def story() -> None:
        log = KeyedLog()
        await log.append([Kept(0, b"a", None), Kept(1, b"x", b"")], 2)
        await log.compact(1_000)
        for number, now_ms in ((2, 1_050), (3, 1_099), (4, 1_100), (5, 1_149), (6, 1_150)):
            await log.append([Kept(number, b"b", None)], number + 1)
            await log.compact(now_ms)
            assert (await log.records())[0].offset == (0 if now_ms < 1_100 else 1)
        # The tombstone at offset 6 replaces all earlier ones.
        assert [record.offset for record in await log.records()] == [1, 6]
        await log.append([Kept(7, b"c", b"")], 8)
        await log.compact(1_249)
        assert [record.offset for record in await log.records()] == [1, 6, 7]
        await log.append([Kept(8, b"d", b"")], 9)
        await log.compact(1_250)
        assert [record.offset for record in await log.records()] == [1, 7, 8]

    run(story())


def test_a_merge_keeps_the_expiry_times_of_tombstones() -> None:
    async def story() -> None:
        log = KeyedLog()
        for number in range(MERGED_SEGMENTS_MIN):
            await log.append([Kept(number, b"%d" % number, None)], number + 1)
            await log.compact(1_000 + number, target_bytes=1)
        assert len(log.segments) == MERGED_SEGMENTS_MIN
        assert await log.merge(SegmentMergeLimits(1 << 20, HOUR)) == 1
        (merged,) = log.segments
        assert merged.segment.cleaned == tuple((n + 1, 1_000 + n) for n in range(8))
        await log.append([Kept(8, b"x", b"")], 9)
        await log.compact(1_103)
        assert [record.offset for record in await log.records()] == [4, 5, 6, 7, 8]

    run(story())


def test_a_round_that_has_no_room_for_all_keys_ends_where_its_keys_do(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(segment_writer, "ROW_GROUP_ROWS", 1)
    monkeypatch.setattr(segment_rewriting, "READ_BYTES", 1)

    async def story() -> None:
        log = KeyedLog()
        keys = (b"a", b"b", b"a", b"b", None, b"a")
        await log.append([Kept(n, key, b"") for n, key in enumerate(keys)], 6)
        found = await log.compact(1_000, map_bytes=1)
        assert found is not None
        assert (found.first_dirty, found.end) == (0, 1)
        (only,) = log.segments
        assert only.segment.cleaned == ((1, 1_000),)
        assert [record.offset for record in await log.records()] == [0, 1, 2, 3, 4, 5]
        left = []
        while (found := await log.compact(1_000, map_bytes=1)) is not None:
            left.append([record.offset for record in await log.records()])
        assert left == [[0, 1, 2, 3, 4, 5], [1, 2, 3, 4, 5], [2, 3, 4, 5], [3, 5]]

    run(story())


def test_clean_segments_that_lose_nothing_are_not_written_again() -> None:
    async def story() -> None:
        log = KeyedLog()
        await log.append([Kept(0, b"a", b""), Kept(1, b"b", b"")], 2)
        await log.compact(1_000, target_bytes=1)
        await log.append([Kept(2, b"c", b"")], 3)
        before = log.segments[0]
        await log.compact(1_050, target_bytes=1)
        assert log.segments[0] is before
        await log.append([Kept(3, b"b", b"")], 4)
        await log.compact(1_050, target_bytes=1)
        assert [record.offset for record in await log.records()] == [0, 2, 3]

    run(story())


# Which segments are merged.


def sizes(*each: int, **options: Any) -> list[TableSegment]:
    return [stored(10 * n, 10 * n + 9, size=size, **options) for n, size in enumerate(each)]


def merged(segments: list[TableSegment], bytes_max: int = 800) -> list[int]:
    found = small_run(segments, SegmentMergeLimits(bytes_max, HOUR))
    return [each.segment.name.base_offset // 10 for each in found]


@pytest.mark.parametrize(
    ("segments", "expected"),
    [
        ([], []),
        ([100] * 3, []),
        # Enough segments to make half of the largest size.
        ([100] * 4, [0, 1, 2, 3]),
        ([100] * 20, [0, 1, 2, 3, 4, 5, 6, 7]),
        # Or many small ones.
        ([10] * 7, []),
        ([10] * 8, [*range(8)]),
        # Large segments stay, and the small ones between them are too few.
        ([201, 100, 100, 201, 100, 100, 201], []),
        ([800, 201, *[100] * 4, 500], [2, 3, 4, 5]),
        # A segment of more than half the size is written again only together with as many bytes.
        ([90, *[10] * 8], [1, 2, 3, 4, 5, 6, 7, 8]),
        ([80, *[10] * 8], [*range(9)]),
    ],
)
def test_small_consecutive_segments_are_merged(segments: list[int], expected: list[int]) -> None:
    assert merged(sizes(*segments)) == expected


def test_a_row_is_written_again_a_few_times_at_most() -> None:
    """Merge after each of a thousand small segments."""
    segments: list[TableSegment] = []
    written = 0
    for number in range(1000):
        segments.append(stored(number, number, size=10))
        while run_ := small_run(segments, SegmentMergeLimits(10_000, HOUR)):
            first = segments.index(run_[0])
            size = sum(each.segment.size_bytes for each in run_)
            base, last = run_[0].segment.name.base_offset, run_[-1].segment.name.last_offset
            segments[first : first + len(run_)] = [stored(base, last, size=size)]
            written += size
    assert written <= 5 * 10_000
    assert len(segments) < 40


def test_merged_segments_hold_no_longer_time_than_allowed() -> None:
    segments = [
        stored(10 * n, 10 * n + 9, size=100, latest=latest)
        for n, latest in enumerate((0, HOUR, HOUR + 1, HOUR + 1, HOUR + 1, HOUR + 1))
    ]
    assert merged(segments) == [1, 2, 3, 4, 5]


def test_clean_segments_dirty_segments_and_segments_without_timestamps_stay_apart() -> None:
    clean = [stored(10 * n, 10 * n + 9, (10 * n + 10, 5), size=100) for n in range(4)]
    dirty = [stored(10 * n, 10 * n + 9, size=100) for n in range(3, 7)]
    assert merged([*clean[:3], *dirty]) == [3, 4, 5, 6]
    assert merged(sizes(*[100] * 10, latest=None)) == []


# Keys.


def test_the_latest_offset_of_each_key_is_known() -> None:
    keys = KeyOffsets()
    keys.add(pa.array([b"a", b"b", b"a", None, b""], pa.binary()), np.arange(5))
    keys.add(pa.array([b"b", b"c"], pa.binary()), np.array([3, 9]))
    asked = pa.array([b"c", b"a", b"", b"d", None, b"b"], pa.binary())
    assert keys.latest(asked).tolist() == [9, 2, 4, NO_OFFSET, NO_OFFSET, 3]
    chunks = pa.chunked_array([asked[:2], asked[2:]])
    assert keys.latest(chunks).tolist() == [9, 2, 4, NO_OFFSET, NO_OFFSET, 3]
    assert len(keys) == 4


def test_memory_of_keys_grows_by_distinct_keys_not_by_repetitions() -> None:
    keys = KeyOffsets()
    same = pa.array([b"key" * 10] * 100, pa.binary())
    for _ in range(10):
        keys.add(same, np.arange(100))
    assert not keys.fills(1_000)
    keys.add(pa.array([b"%030d" % n for n in range(100)], pa.binary()), np.arange(100))
    assert keys.fills(1_000)


def test_keys_fill_one_arrow_array_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    """However much memory they may take. Beyond 2 GiB Arrow raises an error of its own."""
    monkeypatch.setattr(key_offsets, "KEYS_BYTES_MAX", 3_000)
    keys = KeyOffsets()
    same = pa.array([b"key" * 10] * 100, pa.binary())
    keys.add(same, np.arange(100))
    assert not keys.fills(1 << 40)
    keys.add(pa.array([b"%030d" % n for n in range(100)], pa.binary()), np.arange(100))
    assert keys.fills(1 << 40)
    assert len(keys) == 101


def test_no_keys_are_no_keys() -> None:
    keys = KeyOffsets()
    keys.add(pa.array([None, None], pa.binary()), np.arange(2))
    assert len(keys) == 0
    assert keys.latest(pa.array([b"a", None], pa.binary())).tolist() == [NO_OFFSET, NO_OFFSET]


def test_a_segments_statistics_come_back_from_the_log() -> None:
    segment: Segment = stored(10, 19, (15, 3), (20, 4)).segment
    assert read_add("key", add_action(segment, 1, False)) == segment
