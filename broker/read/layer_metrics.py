"""Prometheus families of the store and of reads."""

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
from tidelog.errors import CorruptObject
from tidelog.storage.stores.metered import StoreStatistics
from tidelog.wal.read.read_cache import ReadMemory
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
            seconds.add_metric([name], seen.latencies.buckets(), seen.latencies.seconds)
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


def _counter(name: str, doc: str, value: float) -> Metric:
    return CounterMetricFamily(name, doc, value=value)
