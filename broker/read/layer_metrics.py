"""Prometheus families of the layers below the broker: the store, the WAL, snapshots and reads."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from tidelog.broker.read.chunk_reads import ChunkReads
from tidelog.broker.read.object_reads import ObjectReads
from tidelog.broker.read.segment_indexes import SegmentIndexes
from tidelog.coordinator.snapshots import SnapshotMetrics
from tidelog.errors import CorruptObject
from tidelog.storage.stores.metered import LATENCY_BOUNDS_SECONDS, StoreStatistics
from tidelog.wal.metrics import PUT_SECONDS_BOUNDS, WalMetrics
from tidelog.wal.read.read_memory import ReadMemory
from tidelog.wal.read.tail_cache import TailCache


class StoreCollector(Collector):
    """The requests to the object store; each attempt counts."""

    def __init__(self, statistics: StoreStatistics) -> None:
        self._statistics = statistics

    def collect(self) -> Iterator[Metric]:
        """The families, by operation."""
        label = ["operation"]
        requests = CounterMetricFamily(
            "tidelog_store_operations", "Requests to the object store.", labels=label
        )
        moved = CounterMetricFamily(
            "tidelog_store_bytes", "Bytes read from or written to the object store.", labels=label
        )
        seconds = HistogramMetricFamily(
            "tidelog_store_seconds", "Time of requests to the object store.", labels=label
        )
        outcomes = CounterMetricFamily(
            "tidelog_store_errors",
            "Requests to the object store that did not succeed.",
            labels=["operation", "outcome"],
        )
        for name, seen in self._statistics.operations():
            requests.add_metric([name], seen.requests)
            moved.add_metric([name], seen.bytes_total)
            buckets = cumulative(LATENCY_BOUNDS_SECONDS, seen.latency_buckets)
            seconds.add_metric([name], buckets, seen.seconds_total)
            for outcome, count in list(seen.outcomes.items()):
                if outcome != "ok":
                    outcomes.add_metric([name, outcome], count)
        yield from (requests, moved, seconds, outcomes)

    def describe(self) -> Iterable[Metric]:
        """Nothing in advance."""
        return ()


class UnservedCollector(Collector):
    """Partitions that cannot be served at all or in full."""

    def __init__(self, unserved: Callable[[], Sequence[tuple[str, CorruptObject]]]) -> None:
        """`unserved` returns partitions with their damaged objects; called from any thread."""
        self._unserved = unserved

    def collect(self) -> Iterator[Metric]:
        """The family: a series for each partition and damaged object."""
        family = GaugeMetricFamily(
            "tidelog_partition_unserved",
            "Partitions that cannot be served in full, by the damaged or missing object.",
            labels=["partition", "object"],
        )
        for partition, key in sorted({(name, fault.key) for name, fault in self._unserved()}):
            family.add_metric([partition, key], 1)
        yield family

    def describe(self) -> Iterable[Metric]:
        """Nothing in advance."""
        return ()


class WalCollector(Collector):
    """The metrics of the incarnation's write-ahead log."""

    def __init__(self, metrics: WalMetrics) -> None:
        self._metrics = metrics

    def collect(self) -> Iterator[Metric]:
        """The families."""
        metrics = self._metrics
        yield _counter("tidelog_wal_puts", "WAL objects whose upload began.", metrics.puts)
        yield _counter("tidelog_wal_slots", "Durable WAL objects.", metrics.slots)
        yield _counter("tidelog_wal_bytes", "Bytes of durable WAL objects.", metrics.bytes)
        yield _counter(
            "tidelog_wal_batches", "Record batches in durable WAL objects.", metrics.batches
        )
        yield HistogramMetricFamily(
            "tidelog_wal_put_seconds",
            "Time from a WAL object's upload to its confirmation.",
            buckets=cumulative(PUT_SECONDS_BOUNDS, metrics.put_seconds_buckets),
            sum_value=metrics.put_seconds_sum,
        )

    def describe(self) -> Iterable[Metric]:
        """Nothing in advance."""
        return ()


class SnapshotCollector(Collector):
    """The metrics of snapshots of the coordinators' states."""

    def __init__(self, metrics: SnapshotMetrics) -> None:
        self._metrics = metrics

    def collect(self) -> Iterator[Metric]:
        """The families."""
        metrics = self._metrics
        yield _counter(
            "tidelog_state_snapshots", "Snapshots of coordinators' states.", metrics.written
        )
        yield _counter("tidelog_state_snapshot_bytes", "Bytes of these snapshots.", metrics.bytes)
        yield _counter(
            "tidelog_state_snapshot_seconds",
            "Time from a snapshot's capture until it was durable.",
            metrics.seconds,
        )
        yield _counter(
            "tidelog_state_snapshot_failures",
            "Failed snapshots, each of which is retried.",
            metrics.failures,
        )

    def describe(self) -> Iterable[Metric]:
        """Nothing in advance."""
        return ()


class ReadCollector(Collector):
    """The metrics of consumers' reads from memory and from WAL objects."""

    def __init__(
        self, tail: TailCache, memory: ReadMemory, reads: ObjectReads, chunks: ChunkReads
    ) -> None:
        self._tail = tail
        self._memory = memory
        self._reads = reads
        self._chunks = chunks

    def collect(self) -> Iterator[Metric]:
        """The families."""
        tail, memory, reads = self._tail, self._memory, self._reads
        yield GaugeMetricFamily(
            "tidelog_tail_cache_bytes",
            "Bytes of the newest WAL objects in memory.",
            value=tail.size_bytes,
        )
        yield GaugeMetricFamily(
            "tidelog_read_cache_bytes",
            "Bytes in memory that were read back from WAL objects and segments.",
            value=memory.size_bytes,
        )
        yield _counter("tidelog_tail_cache_hits", "Look-ups that the tail cache served.", tail.hits)
        yield _counter(
            "tidelog_tail_cache_misses", "Look-ups that the tail cache did not serve.", tail.misses
        )
        yield _counter(
            "tidelog_reads_joined", "Extents that came with another reader's read.", reads.joined
        )
        yield _counter(
            "tidelog_read_ahead_bytes",
            "Bytes read before any reader asked for them.",
            reads.ahead_bytes_total + self._chunks.ahead_bytes_total,
        )
        yield _counter(
            "tidelog_read_ahead_wasted_bytes",
            "Bytes read ahead that were dropped before any reader asked for them.",
            memory.wasted_bytes,
        )

    def describe(self) -> Iterable[Metric]:
        """Nothing in advance."""
        return ()


class ColdReadCollector(Collector):
    """The metrics of consumers' reads from segments."""

    def __init__(self, chunks: ChunkReads, indexes: SegmentIndexes) -> None:
        self._chunks = chunks
        self._indexes = indexes

    def collect(self) -> Iterator[Metric]:
        """The families."""
        chunks, indexes = self._chunks, self._indexes
        yield GaugeMetricFamily(
            "tidelog_segment_index_cache_bytes",
            "Approximate bytes of segments' footers in memory.",
            value=indexes.size_bytes,
        )
        yield _counter("tidelog_segment_footers", "Footers of segments read.", indexes.opened)
        yield _counter(
            "tidelog_cold_chunks",
            "Row groups read and encoded as record batches.",
            chunks.encoded,
        )
        yield _counter("tidelog_cold_chunk_bytes", "Bytes of these batches.", chunks.encoded_bytes)
        yield _counter(
            "tidelog_cold_chunk_hits", "Look-ups that found a row group encoded.", chunks.hits
        )
        yield _counter(
            "tidelog_cold_chunks_joined",
            "Row groups that came with another reader's read.",
            chunks.joined,
        )

    def describe(self) -> Iterable[Metric]:
        """Nothing in advance."""
        return ()


def cumulative(bounds: Sequence[float], counts: Sequence[int]) -> list[tuple[str, float]]:
    """The cumulative counts by upper bounds, for Prometheus."""
    total = 0
    buckets: list[tuple[str, float]] = []
    for bound, count in zip((*map(str, bounds), "+Inf"), counts, strict=True):
        total += count
        buckets.append((bound, total))
    return buckets


def _counter(name: str, doc: str, value: float) -> Metric:
    return CounterMetricFamily(name, doc, value=value)
