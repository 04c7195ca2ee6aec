"""Selects what to compact: the dirty part of a compacted log, and small segments to merge. Pure.

Log compaction keeps the latest record of each key. The clean part of a log has been compacted: no
key is in it twice. The rest of the table is dirty. A round of compaction maps the keys of the dirty
part to their latest offsets, then rewrites clean and dirty part from the log start. The new
segments record how far they are clean (`CleanedRange`). So there is no other state, and another
round simply follows one that ended halfway.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from tidelog.storage.segment.segment import CleanedRange, Segment
from tidelog.storage.table.table_state import TableSegment

RANGES_MAX = 16
"""The most cleaned ranges of a segment. If there are more, neighbours become one range, whose
tombstones are kept equally long."""
MERGED_SEGMENTS_MIN = 8
"""Fewer small segments are not merged, unless they make a large one."""
MERGED_SEGMENTS_MAX = 1000
_SMALL_SHARE = 4
"""A segment is small if this many of it fit into the largest allowed segment."""


class CompactionPolicy(NamedTuple):
    """A compacted topic's settings, under Kafka's names."""

    min_compaction_lag_ms: int
    max_compaction_lag_ms: int
    min_cleanable_dirty_ratio: float
    delete_retention_ms: int


@dataclass(frozen=True, slots=True)
class DirtyLog:
    """The dirty part of a partition's log that may be compacted."""

    first_dirty: int
    """The offset below which the table holds no key twice."""
    end: int
    """The offset after the last segment that may be compacted."""
    clean_bytes: int
    dirty_bytes: int
    earliest_ms: int
    """The earliest timestamp of the dirty part."""

    @property
    def ratio(self) -> float:
        """The dirty share of the bytes."""
        return self.dirty_bytes / (self.clean_bytes + self.dirty_bytes)

    def is_due(self, policy: CompactionPolicy, now_ms: int) -> bool:
        """True if a round is worth its cost, or a record exceeds `max.compaction.lag.ms`."""
        is_late = now_ms - self.earliest_ms > policy.max_compaction_lag_ms
        return is_late or self.ratio > policy.min_cleanable_dirty_ratio


def dirty_log(
    segments: Sequence[TableSegment], policy: CompactionPolicy, log_start: int, now_ms: int
) -> DirtyLog | None:
    """The dirty part of a partition's segments; None if there is none.

    As in Kafka, it ends before the first dirty segment with a record younger than
    `min.compaction.lag.ms`.
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
    """One round of compaction, at the time `now_ms`: from the log start up to `end`."""

    first_dirty: int
    end: int
    log_start: int
    now_ms: int
    delete_retention_ms: int

    def is_expired(self, cleaned: CleanedRange) -> bool:
        """True if this round drops the range's tombstones."""
        return self.now_ms - cleaned.cleaned_ms >= self.delete_retention_ms

    def expired_before(self, segment: Segment) -> list[tuple[int, int]]:
        """The ranges [first, next) of a segment's offsets whose tombstones this round drops."""
        found = []
        first = segment.name.base_offset
        for cleaned in segment.cleaned:
            if self.is_expired(cleaned):
                found.append((first, cleaned.next_offset))
            first = cleaned.next_offset
        return found

    def cleaned_after(self, segments: Iterable[Segment]) -> Iterator[CleanedRange]:
        """The cleaned ranges of these segments after the round.

        A range whose tombstones the round drops gets the round's time, since no tombstone is left
        in it.
        """
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
    """The ranges of one segment, with equal neighbours joined and at most RANGES_MAX in all.

    Without tombstones one range is enough.
    """
    found: list[CleanedRange] = []
    for each in ranges:
        if found and (not tombstones or found[-1].cleaned_ms == each.cleaned_ms):
            found[-1] = CleanedRange(each.next_offset, max(found[-1].cleaned_ms, each.cleaned_ms))
        else:
            found.append(each)
    while len(found) > RANGES_MAX:
        # Join the oldest ranges: their tombstones expire first, and now a little later.
        first, second = found[:2]
        later = max(first.cleaned_ms, second.cleaned_ms)
        found[:2] = [CleanedRange(second.next_offset, later)]
    return tuple(found)


class SegmentMergeLimits(NamedTuple):
    """Limits on merged segments. Retention deletes whole segments, so they stay small."""

    bytes_max: int
    span_ms_max: int
    """The longest span between the earliest and the latest timestamp of one segment."""


def small_run(
    segments: Sequence[TableSegment], limits: SegmentMergeLimits
) -> tuple[TableSegment, ...]:
    """The first consecutive segments that are worth merging into one; empty if there are none.

    A run of small segments is merged if it makes half of the largest size or has
    MERGED_SEGMENTS_MIN segments. No segment may exceed half of the run. So each merge at least
    doubles a row's segment, and a row is rewritten at most log2(largest / smallest) times.
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
    """The end of the run that begins at `first`, its bytes, and those of its largest segment."""
    head = segments[first].segment
    size = largest = head.size_bytes
    earliest, latest = head.timestamp_min, head.timestamp_max
    end = first + 1
    while end < min(len(segments), first + MERGED_SEGMENTS_MAX):
        segment = segments[end].segment
        low, high = segment.timestamp_min, segment.timestamp_max
        # Retention uses the time when a segment without timestamps was added. A merge would lose
        # it.
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
