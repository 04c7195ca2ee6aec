"""Assembles the read path: the tail in memory, WAL objects and segments, with their metrics."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import CollectorRegistry

from tidelog.broker.environment import BrokerEnvironment
from tidelog.broker.fairness.client_memory import AnswerMemory
from tidelog.broker.fairness.turns import SliceTurns
from tidelog.broker.read.fetcher import Fetcher
from tidelog.broker.read.metrics import ColdReadCollector, ReadCollector
from tidelog.broker.read.offset_lookup import OffsetLookup
from tidelog.broker.read.segments.chunk_reads import ChunkReads
from tidelog.broker.read.segments.cold_reader import ColdReader
from tidelog.broker.read.segments.cold_times import ColdTimes
from tidelog.broker.read.segments.segment_indexes import SegmentIndexes
from tidelog.broker.read.tiers import TieredLog
from tidelog.broker.read.wal_tier import LogReader, WalTier
from tidelog.broker.settings.settings import BrokerSettings
from tidelog.broker.tables.tables import Tables
from tidelog.broker.telemetry.fault_log import FaultLog
from tidelog.wal.read.read_cache import ReadCache, ReadMemory
from tidelog.wal.read.tail_cache import TailCache


class ReadPath:
    """The read path of one incarnation."""

    def __init__(self, environment: BrokerEnvironment, settings: BrokerSettings) -> None:
        self._environment = environment
        store, background = environment.store, environment.background
        self.tail = TailCache(settings.integer("tail.cache.bytes"))
        self._memory = ReadMemory(settings.integer("read.cache.bytes"))
        self.log = LogReader(store, self.tail, ReadCache(self._memory))
        """Reads of records that are not in tables yet."""
        self._indexes = SegmentIndexes(
            store, background, settings.integer("segment.index.cache.bytes")
        )
        self.chunks = ChunkReads(store, background, self._memory, self._indexes)
        """The footers of segments."""

    def fetcher(
        self,
        tables: Tables,
        may_serve: Callable[[], bool],
        faults: FaultLog,
        answers: AnswerMemory,
        turns: SliceTurns,
    ) -> Fetcher:
        """A fetcher on this path."""
        log = TieredLog(ColdReader(tables, self.chunks), WalTier(self.log, tables))
        return Fetcher(log, self._environment.clock, may_serve, faults, answers, turns)

    def offset_lookup(self, tables: Tables) -> OffsetLookup:
        """A look-up of offsets by time on this path."""
        return OffsetLookup(
            ColdTimes(tables, self._indexes), self.log, self._environment.background
        )

    def register_metrics(self, registry: CollectorRegistry) -> None:
        """Register the metrics of this path."""
        registry.register(ReadCollector(self.tail, self._memory, self.log.reads, self.chunks))
        registry.register(ColdReadCollector(self.chunks, self._indexes))

    async def close(self) -> None:
        """Cancel the reads under way."""
        await self.log.close()
        await self.chunks.close()
