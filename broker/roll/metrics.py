"""The metrics of a broker's rolls, and their Prometheus families."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from tidelog.wal.roll.roll_plan import RollReason


@dataclass(slots=True)
class RollMetrics:
    """Totals since the incarnation began; the last three are present values."""

    rolls: Counter[RollReason] = field(default_factory=Counter)
    """Rolls of partitions, by their reasons."""
    segments: int = 0
    segment_bytes: int = 0
    """Stored bytes."""
    rows: int = 0
    raw_bytes: int = 0
    """Bytes of keys, values and headers."""
    wal_bytes: int = 0
    """Bytes of the record batches that were read, including aborted ones and markers."""
    seconds: float = 0.0
    """Time spent on rolls, with waits for the store but without pauses."""
    commits: int = 0
    refusals: int = 0
    """Commits that were not valid any more because the table had advanced (E2)."""
    failures: int = 0
    """Failed rolls, each of which is retried."""
    stopped: int = 0
    """Partitions whose roll met a corrupt object."""
    backlog_partitions: int = 0
    backlog_bytes: int = 0
    """WAL bytes of decided records that the table does not have."""


class RollCollector(Collector):
    """The metrics of the path from the WAL into the tables."""

    def __init__(self, metrics: RollMetrics) -> None:
        self._metrics = metrics

    def collect(self) -> Iterator[Metric]:
        metrics = self._metrics
        rolls = CounterMetricFamily(
            "tidelog_rolls", "Rolls of partitions, by their reasons.", labels=["reason"]
        )
        for reason in RollReason:
            rolls.add_metric([reason.value], metrics.rolls[reason])
        yield rolls
        for name, doc, value in (
            ("segments", "Stored segments.", metrics.segments),
            ("segment_bytes", "Bytes of stored segments.", metrics.segment_bytes),
            ("rows", "Records in stored segments.", metrics.rows),
            ("raw_bytes", "Bytes of keys, values and headers in them.", metrics.raw_bytes),
            ("wal_bytes", "Bytes of rolled record batches.", metrics.wal_bytes),
            (
                "seconds",
                "Time of rolls, with waits for the store but without pauses.",
                metrics.seconds,
            ),
            ("commits", "Commits to tables.", metrics.commits),
            ("refusals", "Commits refused because the table had advanced.", metrics.refusals),
            ("failures", "Failed rolls, each of which is retried.", metrics.failures),
        ):
            yield CounterMetricFamily(f"tidelog_roll_{name}", doc, value=value)
        for name, doc, value in (
            (
                "stopped_partitions",
                "Partitions that are not rolled because of a corrupt object.",
                metrics.stopped,
            ),
            (
                "backlog_partitions",
                "Partitions with decided records that the table does not have.",
                metrics.backlog_partitions,
            ),
            ("backlog_bytes", "WAL bytes of these records.", metrics.backlog_bytes),
        ):
            yield GaugeMetricFamily(f"tidelog_roll_{name}", doc, value=value)

    def describe(self) -> Iterable[Metric]:
        """Nothing: all names are fixed and unique."""
        return ()
