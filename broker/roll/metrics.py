"""The counts of a broker's rolls."""

from __future__ import annotations

from dataclasses import dataclass

from tidelog.counts import counter, gauge, timestamp
from tidelog.wal.roll.roll_plan import RollReason


def _by_reason() -> dict[str, int]:
    return {reason.value: 0 for reason in RollReason}


@dataclass(slots=True)
class RollMetrics:
    """Totals since the incarnation began; the gauges are present values."""

    rolls: dict[str, int] = counter(
        "tidelog_rolls", "Rolls of partitions, by their reasons.", "reason", new=_by_reason
    )
    segments: int = counter("tidelog_roll_segments", "Stored segments.")
    segment_bytes: int = counter("tidelog_roll_segment_bytes", "Bytes of stored segments.")
    """Stored bytes."""
    rows: int = counter("tidelog_roll_rows", "Records in stored segments.")
    raw_bytes: int = counter("tidelog_roll_raw_bytes", "Bytes of keys, values and headers in them.")
    wal_bytes: int = counter("tidelog_roll_wal_bytes", "Bytes of rolled record batches.")
    """Including aborted ones and markers."""
    seconds: float = counter(
        "tidelog_roll_seconds",
        "Time of rolls, with waits for the store but without pauses.",
        new=float,
    )
    commits: int = counter("tidelog_roll_commits", "Commits to tables.")
    succeeded_at: float | None = timestamp(
        "tidelog_roll_last_success_timestamp_seconds", "When the broker last committed to a table."
    )
    refusals: int = counter(
        "tidelog_roll_refusals", "Commits refused because the table had advanced."
    )
    """Rule E2."""
    failures: int = counter("tidelog_roll_failures", "Failed rolls, each of which is retried.")
    stopped: int = gauge(
        "tidelog_roll_stopped_partitions",
        "Partitions that are not rolled because of a corrupt object.",
    )
    backlog_partitions: int = gauge(
        "tidelog_roll_backlog_partitions",
        "Partitions with decided records that the table does not have.",
    )
    backlog_bytes: int = gauge("tidelog_roll_backlog_bytes", "WAL bytes of these records.")
    backlog_limit_bytes: int = gauge(
        "tidelog_roll_backlog_limit_bytes",
        "roll.wal.max.bytes: with more, the broker rolls the largest partitions.",
    )
