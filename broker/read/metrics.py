"""Prometheus families of consumers' reads."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from tidelog.broker.read.object_reads import ObjectReads
from tidelog.broker.read.segments.chunk_reads import ChunkReads
from tidelog.broker.read.segments.segment_indexes import SegmentIndexes
from tidelog.wal.read.read_cache import ReadMemory
from tidelog.wal.read.tail_cache import TailCache


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
