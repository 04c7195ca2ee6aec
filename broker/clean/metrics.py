"""What a broker's retention and log cleaner have done, counted and as Prometheus families."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector


@dataclass(slots=True)
class CleanerMetrics:
    """All since the broker started."""

    log_starts_moved: int = 0
    """By retention; not those by DeleteRecords."""
    segments_expired: int = 0
    expired_bytes: int = 0
    compactions: int = 0
    """Rounds that went through."""
    records_compacted: int = 0
    """Dropped, since a later one has their key, or as tombstones that have served."""
    merges: int = 0
    segments_replaced: int = 0
    bytes_moved: int = 0
    """Of rows read, as they are in memory, and of segments written."""
    bytes_written: int = 0
    refusals: int = 0
    """Changes of tables that others had made impossible."""
    failures: int = 0
    """Each is tried again."""
    dirty_ratio_max: float = 0.0
    """Of the compacted logs, when they were last looked at."""


class CleanerCollector(Collector):
    """Retention, log compaction and merges."""

    def __init__(self, metrics: CleanerMetrics) -> None:
        self._metrics = metrics

    def collect(self) -> Iterator[Metric]:
        """The families."""
        metrics = self._metrics
        counters = (
            ("log_starts_moved", "Log starts that retention moved.", metrics.log_starts_moved),
            ("segments_expired", "Segments below the log start.", metrics.segments_expired),
            ("expired_bytes", "Bytes of them.", metrics.expired_bytes),
            ("compactions", "Rounds of log compaction.", metrics.compactions),
            ("records_compacted", "Records that compaction dropped.", metrics.records_compacted),
            ("merges", "Times that small segments were merged.", metrics.merges),
            ("segments_replaced", "Segments that others replaced.", metrics.segments_replaced),
            ("moved_bytes", "Bytes read and written for that.", metrics.bytes_moved),
            ("written_bytes", "Bytes of segments written for that.", metrics.bytes_written),
            ("refusals", "Changes of tables that others came before.", metrics.refusals),
            ("failures", "Failures; each is tried again.", metrics.failures),
        )
        for name, doc, value in counters:
            yield CounterMetricFamily(f"tidelog_cleaner_{name}", doc, value=value)
        yield GaugeMetricFamily(
            "tidelog_cleaner_dirty_ratio_max",
            "The largest share of a compacted log that is not compacted.",
            value=metrics.dirty_ratio_max,
        )

    def describe(self) -> Iterable[Metric]:
        """Nothing in advance."""
        return ()
