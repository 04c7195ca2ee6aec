"""What to compact: the dirty end of a compacted log, and small segments that are worth merging.

Pure. Log compaction keeps the latest record of each key. The part of a log that it has gone through
is clean: no key is in it twice. All else in the table is dirty. A round of compaction maps the keys
of the dirty part to their latest offsets and then goes through clean and dirty part from the log's
start on; the segments that it writes say how far they are clean (`CleanedRange`), so there is no
other state to keep, and a round that ended halfway is simply followed by another.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from tidelog.storage.segment.segment import CleanedRange, Segment
from tidelog.storage.table.table_state import TableSegment

RANGES_MAX = 16
"""Of one segment; with more, tombstones of neighbouring ranges are kept equally long."""
MERGED_SEGMENTS_MIN = 8
"""Fewer small segments are left as they are, unless they make a large one."""
MERGED_SEGMENTS_MAX = 1000
_SMALL_SHARE = 4
"""A segment is small while that many of it make no more than the largest that there may be."""


class CompactionPolicy(NamedTuple):
    """A compacted topic's settings, under Kafka's names."""

    min_compaction_lag_ms: int
    max_compaction_lag_ms: int
    min_cleanable_dirty_ratio: float
    delete_retention_ms: int


@dataclass(frozen=True, slots=True)
class DirtyLog:
    """What there is to compact in a partition."""

    first_dirty: int
    """Below it, no key is in the table twice."""
    end: int
    """Behind the last segment that may be compacted already."""
    clean_bytes: int
    dirty_bytes: int
    earliest_ms: int
    """The earliest timestamp of the dirty part."""

    @property
    def ratio(self) -> float:
        """The share of the bytes that is dirty."""
        return self.dirty_bytes / (self.clean_bytes + self.dirty_bytes)

    def is_due(self, policy: CompactionPolicy, now_ms: int) -> bool:
        """Whether a round is worth its cost, or some record has waited for too long."""
        is_late = now_ms - self.earliest_ms > policy.max_compaction_lag_ms
        return is_late or self.ratio > policy.min_cleanable_dirty_ratio


def dirty_log(
    segments: Sequence[TableSegment], policy: CompactionPolicy, log_start: int, now_ms: int
) -> DirtyLog | None:
    """What there is to compact among a partition's segments; None if there is nothing.

    As in Kafka, the first dirty segment with a record younger than `min.compaction.lag.ms`, and all
    behind it, is left alone.
    """
    cleaned = [stored.segment.cleaned_to for stored in segments if stored.segment.cleaned]
    first_dirty = max((log_start, *cleaned))
    clean_bytes = dirty_bytes = 0
    end, earliest = first_dirty, now_ms
    for stored in segments:
        segment = stored.segment
        base, last = segment.name.base_offset, segment.name.last_offset
        if last < log_start:
            continue
        if last < first_dirty:
            clean_bytes += segment.size_bytes
            continue
        low, high = segment.timestamp_min, segment.timestamp_max
        latest = stored.added_ms if high is None else high
        if policy.min_compaction_lag_ms > 0 and latest > now_ms - policy.min_compaction_lag_ms:
            break
        dirty = (last + 1 - max(base, first_dirty)) * segment.size_bytes // (last + 1 - base)
        clean_bytes += segment.size_bytes - dirty
        dirty_bytes += max(dirty, 1)
        earliest = min(earliest, stored.added_ms if low is None else low)
        end = last + 1
    if end == first_dirty:
        return None
    return DirtyLog(first_dirty, end, clean_bytes, dirty_bytes, earliest)


class Round(NamedTuple):
    """One round of compaction: from the log's start up to `end`, at one moment."""

    first_dirty: int
    end: int
    log_start: int
    now_ms: int
    delete_retention_ms: int

    def is_expired(self, cleaned: CleanedRange) -> bool:
        """Whether tombstones that were compacted first at that time are to go."""
        return self.now_ms - cleaned.cleaned_ms >= self.delete_retention_ms

    def expired_before(self, segment: Segment) -> list[tuple[int, int]]:
        """The ranges [first, following) of a segment's offsets whose tombstones go now."""
        found = []
        first = segment.name.base_offset
        for cleaned in segment.cleaned:
            if self.is_expired(cleaned):
                found.append((first, cleaned.next_offset))
            first = cleaned.next_offset
        return found

    def cleaned_after(self, segments: Iterable[Segment]) -> Iterator[CleanedRange]:
        """What is clean of these segments after the round. Ranges whose tombstones go now are as
        those of the round itself: none is left in them."""
        reached = 0
        for segment in segments:
            for cleaned in segment.cleaned:
                reached = cleaned.next_offset
                is_expired = self.is_expired(cleaned)
                yield CleanedRange(reached, self.now_ms) if is_expired else cleaned
            following = min(self.end, segment.name.last_offset + 1)
            if following > reached:
                reached = following
                yield CleanedRange(reached, self.now_ms)


def joined_ranges(ranges: Iterable[CleanedRange], tombstones: int) -> tuple[CleanedRange, ...]:
    """Ranges of one segment, as few as say the same; where there are no tombstones, one does."""
    found: list[CleanedRange] = []
    for each in ranges:
        if found and (not tombstones or found[-1].cleaned_ms == each.cleaned_ms):
            found[-1] = CleanedRange(each.next_offset, max(found[-1].cleaned_ms, each.cleaned_ms))
        else:
            found.append(each)
    while len(found) > RANGES_MAX:
        # The oldest: their tombstones go soonest, and are kept a little longer so.
        first, second = found[:2]
        later = max(first.cleaned_ms, second.cleaned_ms)
        found[:2] = [CleanedRange(second.next_offset, later)]
    return tuple(found)


class SegmentMergeLimits(NamedTuple):
    """How large merged segments may become: retention deletes whole ones."""

    bytes_max: int
    span_ms_max: int
    """Between the earliest and the latest timestamp in one."""


def small_run(
    segments: Sequence[TableSegment], limits: SegmentMergeLimits
) -> tuple[TableSegment, ...]:
    """The first consecutive segments that are worth merging into one; none if none are.

    Small ones are merged, as many as make half of the largest size, or MERGED_SEGMENTS_MIN, if none
    is more than half of the whole: so a row is written again only into a segment at least twice as
    large, at most log2(largest / smallest) times.
    """
    for first, head in enumerate(segments):
        if _is_small(head.segment, limits):
            end, size, largest = _run_from(segments, first, limits)
            is_enough = end - first >= MERGED_SEGMENTS_MIN or 2 * size >= limits.bytes_max
            if is_enough and 2 * largest <= size:
                return tuple(segments[first:end])
    return ()


def _run_from(
    segments: Sequence[TableSegment], first: int, limits: SegmentMergeLimits
) -> tuple[int, int, int]:
    """The end of what may be merged with the first segment, its bytes, and those of the largest."""
    head = segments[first].segment
    size = largest = head.size_bytes
    earliest, latest = head.timestamp_min, head.timestamp_max
    end = first + 1
    while end < min(len(segments), first + MERGED_SEGMENTS_MAX):
        segment = segments[end].segment
        low, high = segment.timestamp_min, segment.timestamp_max
        # Retention goes by when a segment without timestamps was added: a merge would forget that.
        if earliest is None or latest is None or low is None or high is None:
            break
        earliest, latest = min(earliest, low), max(latest, high)
        if (
            not _is_small(segment, limits)
            or size + segment.size_bytes > limits.bytes_max
            or latest - earliest > limits.span_ms_max
            or _is_clean(segment) != _is_clean(head)
        ):
            break
        size += segment.size_bytes
        largest = max(largest, segment.size_bytes)
        end += 1
    return end, size, largest


def _is_small(segment: Segment, limits: SegmentMergeLimits) -> bool:
    return _SMALL_SHARE * segment.size_bytes <= limits.bytes_max


def _is_clean(segment: Segment) -> bool:
    return segment.cleaned_to > segment.name.last_offset
