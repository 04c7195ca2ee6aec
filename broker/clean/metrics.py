"""The counts of a broker's retention and log cleaner."""

from __future__ import annotations

from dataclasses import dataclass

from tidelog.counts import counter, gauge


@dataclass(slots=True)
class CleanerMetrics:
    """All since the broker started."""

    log_starts_moved: int = counter(
        "tidelog_cleaner_log_starts_moved", "Log starts that retention moved."
    )
    """Not those by DeleteRecords."""
    segments_expired: int = counter(
        "tidelog_cleaner_segments_expired", "Segments below the log start."
    )
    expired_bytes: int = counter("tidelog_cleaner_expired_bytes", "Bytes of them.")
    compactions: int = counter("tidelog_cleaner_compactions", "Rounds of log compaction.")
    """Those that went through."""
    records_compacted: int = counter(
        "tidelog_cleaner_records_compacted", "Records that compaction dropped."
    )
    """A later one has their key, or they are tombstones that have served."""
    merges: int = counter("tidelog_cleaner_merges", "Times that small segments were merged.")
    segments_replaced: int = counter(
        "tidelog_cleaner_segments_replaced", "Segments that others replaced."
    )
    bytes_moved: int = counter("tidelog_cleaner_moved_bytes", "Bytes read and written for that.")
    """Of rows read, as they are in memory, and of segments written."""
    bytes_written: int = counter(
        "tidelog_cleaner_written_bytes", "Bytes of segments written for that."
    )
    refusals: int = counter(
        "tidelog_cleaner_refusals", "Changes of tables that others came before."
    )
    failures: int = counter("tidelog_cleaner_failures", "Failures; each is tried again.")
    dirty_ratio_max: float = gauge(
        "tidelog_cleaner_dirty_ratio_max",
        "The largest share of a compacted log that is not compacted.",
        new=float,
    )
    """When they were last looked at."""
