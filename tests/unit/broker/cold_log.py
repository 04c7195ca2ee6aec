"""One partition whose records are moved from WAL objects into segments, and consumers of it."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import cast
from uuid import UUID

from tidelog.broker.fairness.client_memory import AnswerMemory
from tidelog.broker.fairness.turns import SliceTurns
from tidelog.broker.partitions.partitions import Partition
from tidelog.broker.read.fetch_session import FetchTarget
from tidelog.broker.read.fetcher import Fetcher, FetchLimits, Isolation, PartitionRead
from tidelog.broker.read.offset_lookup import OffsetLookup
from tidelog.broker.read.segments.chunk_reads import ChunkReads
from tidelog.broker.read.segments.cold_reader import ColdReader
from tidelog.broker.read.segments.cold_times import ColdTimes
from tidelog.broker.read.segments.segment_indexes import SegmentIndexes
from tidelog.broker.read.tiers import TieredLog
from tidelog.broker.read.wal_tier import LogReader, WalTier
from tidelog.broker.tables.tables import Tables
from tidelog.broker.telemetry.fault_log import FaultLog
from tidelog.clock import Clock, SystemClock
from tidelog.coordinator.cluster.records.topics import Topic
from tidelog.coordinator.cluster.state.state import ClusterState
from tidelog.entropy import SeededEntropy
from tidelog.identifiers import LeaderEpoch, TopicPartition
from tidelog.records.batch import BatchHeader, iterate_batches
from tidelog.records.records import Record, decode_records
from tidelog.records.row_columns import AbortedRange
from tidelog.records.rows.row_decoding import decode_rows
from tidelog.records.validate.rules import BatchLimits
from tidelog.storage.object_store import ObjectStore
from tidelog.storage.segment.segment import Segment
from tidelog.storage.segment.segment_writer import SegmentWriter
from tidelog.storage.stores.memory import MemoryStore
from tidelog.storage.stores.metered import MeteredStore
from tidelog.storage.table.table_change import PartitionChange, TableAdvance
from tidelog.storage.table.table_log import TableCommitted
from tidelog.storage.table.table_state import PartitionTable
from tidelog.wal.log.extents import Extent, Extents
from tidelog.wal.log.image import PartitionImage
from tidelog.wal.log.leader_epochs import EpochStart
from tidelog.wal.log.partition_log import PartitionLog
from tidelog.wal.log.transactions import AbortedIndexEntry
from tidelog.wal.read.read_cache import ReadCache, ReadMemory
from tidelog.wal.read.tail_cache import TailCache
from tidelog.workers.offload import InlineOffload, Offload

TOPIC_ID = UUID("01234567-89ab-4cde-8f01-23456789abcd")
PARTITION = TopicPartition(TOPIC_ID, 0)
MIB = 1 << 20
WAL_KEY = f"wal/0-1/{0:020d}.wal"


def topics() -> dict[UUID, Topic]:
    """The cluster's topics: the one topic of these tests."""
    return {TOPIC_ID: Topic(TOPIC_ID, "flights", False, {}, ())}


class ColdLog:
    """A log of the given batches in one WAL object; `roll` moves its beginning into the table.

    `wrapped` stands before the store, and the broker uses it instead of the store.
    """

    def __init__(
        self,
        batches: Sequence[bytes | bytearray] = (),
        *,
        wrapped: ObjectStore | None = None,
        epochs: Sequence[tuple[int, int]] = ((0, 0),),
        aborted: Sequence[AbortedRange] = (),
        log_start: int = 0,
        read_cache_bytes: int = 64 * MIB,
        index_cache_bytes: int = MIB,
        limits: BatchLimits | None = None,
        offload: Offload | None = None,
    ) -> None:
        self.clock: Clock = SystemClock()
        self.memory = MemoryStore(self.clock)
        self.store = MeteredStore(wrapped or self.memory, self.clock)
        self.batches = [bytes(batch) for batch in batches]
        self.aborted = aborted
        state = cast(ClusterState, SimpleNamespace(topics=topics()))
        self.entropy = SeededEntropy(1)
        offload = offload or InlineOffload()
        self.tables = Tables(lambda: state, self.store, self.clock, self.entropy, offload, 600.0)
        self.read_memory = ReadMemory(read_cache_bytes)
        self.indexes = SegmentIndexes(self.store, offload, index_cache_bytes)
        self.chunks = ChunkReads(self.store, offload, self.read_memory, self.indexes)
        self.reader = LogReader(self.store, TailCache(0), ReadCache(self.read_memory))
        self.answers = AnswerMemory(1 << 30)
        self.fetcher = Fetcher(
            TieredLog(ColdReader(self.tables, self.chunks), WalTier(self.reader, self.tables)),
            self.clock,
            lambda: True,
            FaultLog(self.clock),
            self.answers,
            SliceTurns(),
        )
        self.lookup = OffsetLookup(ColdTimes(self.tables, self.indexes), self.reader, offload)
        log = PartitionLog.from_image(self._image(epochs, log_start))
        self.partition = Partition("flights", log, limits or BatchLimits())

    def _image(self, epochs: Sequence[tuple[int, int]], log_start: int) -> PartitionImage:
        extents, position = Extents(), 0
        for batch in self.batches:
            header = BatchHeader.parse(batch)
            extents.append(
                Extent(
                    header.base_offset,
                    header.last_offset,
                    header.max_timestamp,
                    WAL_KEY,
                    position,
                    len(batch),
                )
            )
            position += len(batch)
        next_offset = extents.next_offset or 0
        return PartitionImage(
            partition=PARTITION,
            leader_epoch=LeaderEpoch(epochs[-1][0]),
            next_offset=next_offset,
            log_start=log_start,
            table_next=0,
            leader_epochs=tuple(EpochStart(LeaderEpoch(each), start) for each, start in epochs),
            producers=(),
            has_forgotten_producers=False,
            aborted=tuple(AbortedIndexEntry(*each, each.last_offset + 1) for each in self.aborted),
            extents=extents,
        )

    @property
    def log(self) -> PartitionLog:
        return self.partition.log

    @property
    def table(self) -> PartitionTable:
        state = self.tables.get(TOPIC_ID)
        assert state is not None
        return state.partition(0)

    @property
    def requests(self) -> int:
        """Reads from the store so far."""
        return self.store.statistics.get.requests

    async def write(self) -> ColdLog:
        """Put the log's WAL object."""
        await self.memory.put(WAL_KEY, b"".join(self.batches))
        return self

    async def roll(self, next_offset: int, *, segment: bool = True) -> Segment | None:
        """Move the records below an offset into one segment. A batch must begin at the offset."""
        base = self.log.table_next
        chosen = [
            batch
            for batch in self.batches
            if base <= BatchHeader.parse(batch).base_offset < next_offset
        ]
        added = await self.put_segment(b"".join(chosen), base, next_offset) if segment else None
        await self.commit(next_offset, *([] if added is None else [added]))
        self.log.advance_table(next_offset)
        return added

    async def put_segment(self, log: bytes, base: int, next_offset: int) -> Segment | None:
        """Make a segment of batches. Returns None if it would have no rows."""
        writer = SegmentWriter(PARTITION, base)
        for rows in decode_rows(log, aborted=self.aborted):
            writer.write(rows)
        if not writer.row_count:
            return None
        written = writer.finish(next_offset, self.entropy.uuid())
        await self.memory.put(written.segment.key(TOPIC_ID), written.pieces)
        return written.segment

    async def commit(self, next_offset: int, *segments: Segment) -> None:
        """Move the table's end to an offset."""
        state = await self.tables.open(TOPIC_ID)
        advance = TableAdvance(state.partition(0).next_offset, next_offset)
        change = PartitionChange(partition=0, advance=advance, appended=segments)
        assert isinstance(await self.tables.commit(TOPIC_ID, (change,)), TableCommitted)

    async def replace(self, removed: Sequence[Segment], *rewritten: Segment) -> None:
        """Replace some segments by others, as a compaction does."""
        names = tuple(segment.name for segment in removed)
        change = PartitionChange(partition=0, removed=names, rewritten=rewritten)
        assert isinstance(await self.tables.commit(TOPIC_ID, (change,)), TableCommitted)

    async def fetch(
        self,
        offset: int,
        *,
        bytes_max: int = MIB,
        committed: bool = False,
        fetcher: Fetcher | None = None,
    ) -> PartitionRead:
        """Fetch the partition once."""
        reads = await (fetcher or self.fetcher).fetch(
            [FetchTarget((TOPIC_ID, 0), offset, bytes_max)],
            lambda _: self.partition,
            Isolation(committed),
            FetchLimits(1, bytes_max, 0),
        )
        return reads[0]

    async def consume(
        self, offset: int = 0, *, bytes_max: int = MIB, committed: bool = True
    ) -> list[Record]:
        """All records from an offset on, as a client gets them. Each fetch must advance the
        position."""
        found: list[Record] = []
        while offset < self.log.high_watermark:
            read = await self.fetch(offset, bytes_max=bytes_max, committed=committed)
            assert read.code == 0, read
            records, following = received(read, offset)
            assert following > offset, read
            found += records
            offset = following
        return found

    async def close(self) -> None:
        await self.chunks.close()
        await self.reader.close()


def headers_in(read: PartitionRead) -> list[BatchHeader]:
    """The headers of the batches in an answer."""
    return [header for _, header in iterate_batches(b"".join(read.found.buffers))]


def received(read: PartitionRead, offset: int) -> tuple[list[Record], int]:
    """Read an answer as a client does: its records, and the next position (KIP-98)."""
    data = b"".join(read.found.buffers)
    pending = sorted(read.aborted or (), key=lambda each: each.first_offset)
    ignored: set[int] = set()
    found: list[Record] = []
    position = offset
    for start, header in iterate_batches(data):
        while pending and pending[0].first_offset <= header.last_offset:
            ignored.add(pending.pop(0).producer_id)
        batch = data[start : start + header.size_bytes]
        if header.is_control:
            ignored.discard(header.producer_id)
        elif not (header.is_transactional and header.producer_id in ignored):
            found += [each for each in decode_records(batch) if each.offset >= offset]
        assert header.base_offset <= position or not found or header.base_offset > offset
        position = header.last_offset + 1
    return found, position
