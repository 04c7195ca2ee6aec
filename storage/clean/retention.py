"""Retention: where a partition's log is to begin by age and size, and which segments are below it.

Pure. Kafka's rules, for runs of records (segments of the table, slots of the WAL) in place of its
segment files: from the oldest run on, one that is too old or too much goes whole, and the first
that is neither ends it. What is not decided yet (at or above the last stable offset) stays.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from tidelog.storage.segment.segment import Segment, SegmentName
from tidelog.storage.table.table_state import TableSegment

UNLIMITED = -1


class RetentionPolicy(NamedTuple):
    """How much of its past a topic keeps; negative numbers mean all of it."""

    retention_ms: int
    retention_bytes: int


class RetentionRun(NamedTuple):
    """Records that are kept or deleted together."""

    base_offset: int
    last_offset: int
    latest_ms: int | None
    """The latest timestamp of its records; None where none is known, so that age never deletes
    it."""
    size_bytes: int


def run_of(stored: TableSegment) -> RetentionRun:
    """A segment of the table. Where no row has a timestamp, the segment's own counts, as the
    file's does in Kafka."""
    segment, name = stored.segment, stored.segment.name
    latest = stored.added_ms if segment.timestamp_max is None else segment.timestamp_max
    return RetentionRun(name.base_offset, name.last_offset, latest, segment.size_bytes)


def log_start_after(
    runs: Iterable[RetentionRun],
    policy: RetentionPolicy,
    log_start: int,
    last_stable_offset: int,
    now_ms: int,
) -> int:
    """Where the log is to begin: at `log_start` still, or behind what retention deletes.

    `runs`: all of the partition's, ascending, without overlap; those wholly below the log start do
    not count. It is the base of the first run that is kept, or the end of the last that goes.
    """
    held = [run for run in runs if run.last_offset >= log_start]
    excess = sum(run.size_bytes for run in held) - policy.retention_bytes
    start = log_start
    for run in held:
        excess -= run.size_bytes
        too_much = policy.retention_bytes >= 0 and excess >= 0
        if run.last_offset >= last_stable_offset or not (too_much or is_old(run, policy, now_ms)):
            # Between what went and this, there may be offsets without a record.
            return start if start == log_start else max(start, run.base_offset)
        start = run.last_offset + 1
    return start


def segments_below(segments: Sequence[TableSegment], log_start: int) -> tuple[SegmentName, ...]:
    """The segments that lie wholly below the log start: they can be removed from the table."""
    below = []
    for stored in segments:
        name = stored.segment.name
        if name.last_offset >= log_start:
            break
        below.append(name)
    return tuple(below)


def share_below(segment: Segment, log_start: int) -> float:
    """About which share of a segment's rows lies below the log start, by their offsets."""
    span = segment.last_row + 1 - segment.first_row
    return min(1.0, max(0.0, (log_start - segment.first_row) / span))


def is_old(run: RetentionRun, policy: RetentionPolicy, now_ms: int) -> bool:
    """Whether the run's newest record is older than the policy keeps."""
    if policy.retention_ms < 0 or run.latest_ms is None:
        return False
    return now_ms - run.latest_ms > policy.retention_ms
