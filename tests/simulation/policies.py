"""The losses that a run's topics allow: by retention, by DeleteRecords, by log compaction."""

from __future__ import annotations

import random
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TopicPolicy:
    """The policy of one topic. Without any limit, committed records stay for ever."""

    retention_ms: int | None = None
    retention_bytes: int | None = None
    is_trimmed: bool = False
    """Whether clients ask for records to be deleted."""
    compacts: bool = False
    delete_retention_ms: int = 20_000
    max_compaction_lag_ms: int | None = None
    """After this time, every record that has a later one with its key is gone."""

    @property
    def trims(self) -> bool:
        """Whether the log's start may move."""
        return self.is_trimmed or self.retention_ms is not None or self.retention_bytes is not None

    def configs(self) -> dict[str, str]:
        """The topic's settings."""
        found = {}
        if self.compacts:
            found["cleanup.policy"] = "compact,delete" if self.trims else "compact"
            found["min.cleanable.dirty.ratio"] = "0.2"
            found["delete.retention.ms"] = str(self.delete_retention_ms)
        if self.max_compaction_lag_ms is not None:
            found["max.compaction.lag.ms"] = str(self.max_compaction_lag_ms)
        if self.retention_ms is not None:
            found["retention.ms"] = str(self.retention_ms)
        if self.retention_bytes is not None:
            found["retention.bytes"] = str(self.retention_bytes)
        return found


def policies_of(seed: int, workload: str) -> dict[str, TopicPolicy]:
    """The losses of a workload's topics in this run. Topics that groups consume lose only records
    that compaction takes: a member must still consume each record."""
    chance = random.Random(f"policies {seed}")
    compacted = TopicPolicy(
        compacts=True,
        delete_retention_ms=chance.choice((15_000, 30_000)),
        max_compaction_lag_ms=chance.choice((None, 5000)),
    )
    found = {"events": compacted}
    trimmed = chance.choice(
        (
            TopicPolicy(retention_ms=20_000),
            TopicPolicy(retention_ms=3000),
            TopicPolicy(retention_bytes=chance.choice((10_000, 50_000))),
            TopicPolicy(is_trimmed=True),
            TopicPolicy(retention_ms=20_000, is_trimmed=True),
        )
    )
    if workload == "log":
        found["orders"] = trimmed
    if workload == "transactions":
        found["derived"] = trimmed
    return found
