"""What a broker's rolls count, and as Prometheus families."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from tidelog.wal.roll.roll_plan import RollReason


@dataclass(slots=True)
class RollMetrics:
    """Since the incarnation began; the last three as of now."""

    rolls: Counter[RollReason] = field(default_factory=Counter)
    """Of partitions, by why they were begun."""
    segments: int = 0
    segment_bytes: int = 0
    """As stored."""
    rows: int = 0
    raw_bytes: int = 0
    """Keys, values and headers."""
    wal_bytes: int = 0
    """Of the record batches that were taken up, aborted ones and markers too."""
    seconds: float = 0.0
    """Spent on rolls, waits for the store included, pauses not."""
    commits: int = 0
    refusals: int = 0
    """Commits that were not valid any more, since the table had gone on (E2)."""
    failures: int = 0
    """Each is tried again."""
    stopped: int = 0
    """Partitions whose roll has met something corrupt."""
    backlog_partitions: int = 0
    backlog_bytes: int = 0
    """In the WAL and decided, so that the table could have it."""


class RollCollector(Collector):
    """The way from the WAL into the tables."""

    def __init__(self, metrics: RollMetrics) -> None:
        self._metrics = metrics

    def collect(self) -> Iterator[Metric]:
        """The families."""
        metrics = self._metrics
        rolls = CounterMetricFamily(
            "tidelog_rolls", "Rolls of partitions, by why they were begun.", labels=["reason"]
        )
        for reason in RollReason:
            rolls.add_metric([reason.value], metrics.rolls[reason])
        yield rolls
        for name, doc, value in (
            ("segments", "Segments that were stored.", metrics.segments),
            ("segment_bytes", "Bytes of them.", metrics.segment_bytes),
            ("rows", "Records in them.", metrics.rows),
            ("raw_bytes", "Keys, values and headers in them.", metrics.raw_bytes),
            ("wal_bytes", "Bytes of the record batches that were rolled.", metrics.wal_bytes),
            (
                "seconds",
                "Time of rolls without pauses, but with waits for the store.",
                metrics.seconds,
            ),
            ("commits", "Commits to tables.", metrics.commits),
            ("refusals", "Commits that others had come before.", metrics.refusals),
            ("failures", "Rolls that failed and are tried again.", metrics.failures),
        ):
            yield CounterMetricFamily(f"tidelog_roll_{name}", doc, value=value)
        for name, doc, value in (
            (
                "stopped_partitions",
                "Partitions that are not rolled, since something is corrupt.",
                metrics.stopped,
            ),
            (
                "backlog_partitions",
                "Partitions with records that the table could have.",
                metrics.backlog_partitions,
            ),
            ("backlog_bytes", "WAL bytes of them.", metrics.backlog_bytes),
        ):
            yield GaugeMetricFamily(f"tidelog_roll_{name}", doc, value=value)

    def describe(self) -> Iterable[Metric]:
        """Nothing in advance."""
        return ()
