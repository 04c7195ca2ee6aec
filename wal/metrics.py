"""The counters of the WAL."""

from __future__ import annotations

from dataclasses import dataclass

from tidelog.counts import Durations, counter, histogram, timestamp

PUT_SECONDS_BOUNDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


@dataclass(slots=True)
class WalMetrics:
    """Counters that only grow."""

    puts: int = counter("tidelog_wal_puts", "WAL objects whose upload began.")
    """One per slot; the store counts retries."""
    slots: int = counter("tidelog_wal_slots", "Durable WAL objects.")
    bytes: int = counter("tidelog_wal_bytes", "Bytes of durable WAL objects.")
    batches: int = counter("tidelog_wal_batches", "Record batches in durable WAL objects.")
    put_seconds: Durations = histogram(
        "tidelog_wal_put_seconds",
        "Time from a WAL object's upload to its confirmation.",
        PUT_SECONDS_BOUNDS,
    )


@dataclass(slots=True)
class CheckpointMetrics:
    """Counts of one incarnation's checkpoints."""

    written: int = counter("tidelog_wal_checkpoints", "Checkpoints that were written.")
    failures: int = counter(
        "tidelog_wal_checkpoint_failures", "Failed checkpoints, each of which is retried."
    )
    succeeded_at: float | None = timestamp(
        "tidelog_wal_checkpoint_last_success_timestamp_seconds",
        "When the last checkpoint was durable.",
    )
