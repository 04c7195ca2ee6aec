"""Retention: the log start that age and size limits demand, and the segments below it. Pure.

Kafka's rules, applied to runs of records (segments of the table, slots of the WAL) instead of
segment files. Retention deletes whole runs from the oldest on, while a run is too old or the log
too large. It keeps records at or above the last stable offset.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from tidelog.storage.segment.segment import Segment, SegmentName
from tidelog.storage.table.table_state import TableSegment

UNLIMITED = -1


class RetentionPolicy(NamedTuple):
    """A topic's retention limits; a negative number means unlimited."""

    retention_ms: int
    retention_bytes: int


class RetentionRun(NamedTuple):
    """Records that retention keeps or deletes together."""

    base_offset: int
    last_offset: int
    latest_ms: int | None
    """The latest timestamp of the records. None means unknown: age then never deletes the run."""
    size_bytes: int


def run_of(stored: TableSegment) -> RetentionRun:
    """The run of a table segment.

    If no row has a timestamp, the time counts when the segment was added, as the file's time in
    Kafka.
    """
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
    """The partition's log start after retention: `log_start`, or an offset above it.

    `runs` are all of the partition's, ascending and without overlap. Runs wholly below the log
    start are ignored. Without a size limit, no run behind the first kept one is read. The result is
    the base of the first kept run, or the end of the last deleted run.
    """
    held: Iterable[RetentionRun] = (run for run in runs if run.last_offset >= log_start)
    excess = 0
    if policy.retention_bytes >= 0:
        held = list(held)
        excess = sum(run.size_bytes for run in held) - policy.retention_bytes
    start = log_start
    for run in held:
        excess -= run.size_bytes
        too_much = policy.retention_bytes >= 0 and excess >= 0
        if run.last_offset >= last_stable_offset or not (too_much or is_old(run, policy, now_ms)):
            # Offsets without a record may lie between the deleted runs and this one.
            return start if start == log_start else max(start, run.base_offset)
        start = run.last_offset + 1
    return start


def segments_below(segments: Sequence[TableSegment], log_start: int) -> tuple[SegmentName, ...]:
    """The segments wholly below the log start, which may be removed from the table."""
    below = []
    for stored in segments:
        name = stored.segment.name
        if name.last_offset >= log_start:
            break
        below.append(name)
    return tuple(below)


def share_below(segment: Segment, log_start: int) -> float:
    """The approximate share of a segment's rows below the log start, judged by offsets."""
    span = segment.last_row + 1 - segment.first_row
    return min(1.0, max(0.0, (log_start - segment.first_row) / span))


def is_old(run: RetentionRun, policy: RetentionPolicy, now_ms: int) -> bool:
    """Whether the run's newest record is older than the policy keeps."""
    if policy.retention_ms < 0 or run.latest_ms is None:
        return False
    return now_ms - run.latest_ms > policy.retention_ms
