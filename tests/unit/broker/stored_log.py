"""Partitions whose batches lie in WAL objects of a store that records its reads."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from struct import Struct
from types import SimpleNamespace
from typing import cast
from uuid import UUID

from tidelog.broker.fairness.client_memory import AnswerMemory
from tidelog.broker.fairness.turns import SliceTurns
from tidelog.broker.partitions.partitions import Partition
from tidelog.broker.read.fetch_session import FetchTarget
from tidelog.broker.read.fetcher import Fetcher, FetchLimits, Isolation, PartitionRead
from tidelog.broker.read.segments.chunk_reads import ChunkReads
from tidelog.broker.read.segments.cold_reader import ColdReader
from tidelog.broker.read.segments.segment_indexes import SegmentIndexes
from tidelog.broker.read.tiers import TieredLog
from tidelog.broker.read.wal_tier import LogReader, WalTier
from tidelog.broker.tables.tables import Tables
from tidelog.broker.telemetry.fault_log import FaultLog
from tidelog.clock import SystemClock
from tidelog.coordinator.cluster.state.state import ClusterState
from tidelog.entropy import SeededEntropy
from tidelog.identifiers import LeaderEpoch, TopicPartition
from tidelog.records.batch import HEADER_SIZE
from tidelog.records.records import NewRecord, encode_batch
from tidelog.records.validate.rules import BatchLimits
from tidelog.storage.object_store import (
    Buffer,
    ByteRange,
    Condition,
    ObjectMeta,
    ObjectStore,
    StoredObject,
    StoreNotApplied,
    Suffix,
)
from tidelog.storage.stores.memory import MemoryStore
from tidelog.wal.log.extents import Extent, Extents
from tidelog.wal.log.image import PartitionImage
from tidelog.wal.log.partition_log import PartitionLog
from tidelog.wal.read.read_cache import ReadCache, ReadMemory
from tidelog.wal.read.tail_cache import TailCache
from tidelog.workers.offload import InlineOffload

TOPIC_ID = UUID(int=1)
MIB = 1 << 20
_BASE_OFFSET = Struct(">q")


class WatchedStore:
    """A store around another one. `ranges` has the requested ranges as (slot, start, end). Gets
    wait for `open`, and fail while `is_broken`."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self.ranges: list[tuple[int, int, int]] = []
        self.open = asyncio.Event()
        self.open.set()
        self.is_broken = False
        self.given_up = 0

    @property
    def url(self) -> str:
        return self._store.url

    @property
    def bytes_asked(self) -> int:
        return sum(end - start for _, start, end in self.ranges)

    async def get(self, key: str, byte_range: ByteRange | Suffix | None = None) -> StoredObject:
        assert isinstance(byte_range, ByteRange)
        end = byte_range.start + byte_range.length
        self.ranges.append((slot_of(key), byte_range.start, end))
        try:
            await self.open.wait()
        except asyncio.CancelledError:
            self.given_up += 1
            raise
        if self.is_broken:
            raise StoreNotApplied(key, "the store is away")
        return await self._store.get(key, byte_range)

    async def head(self, key: str) -> ObjectMeta:
        return await self._store.head(key)

    async def put(
        self, key: str, data: Buffer | Sequence[Buffer], condition: Condition | None = None
    ) -> str:
        return await self._store.put(key, data, condition)

    def list(self, prefix: str = "", start_after: str = "") -> AsyncIterator[ObjectMeta]:
        return self._store.list(prefix, start_after)

    async def delete(self, *keys: str) -> None:
        await self._store.delete(*keys)

    async def close(self) -> None:
        await self._store.close()


def key_of(slot: int) -> str:
    return f"wal/0-1/{slot:020d}.wal"


def slot_of(key: str) -> int:
    return int(key.rpartition("/")[2].removesuffix(".wal"))


class StoredLog:
    """A WAL of `slots` objects, each with one batch of each partition, by partition; and readers.

    `sizes`: the payload of each partition's batches.
    """

    def __init__(
        self, slots: int, sizes: Sequence[int], *, read_cache_bytes: int = 64 * MIB
    ) -> None:
        self.memory = MemoryStore(SystemClock())
        self.store = WatchedStore(self.memory)
        self.cache = ReadCache(ReadMemory(read_cache_bytes))
        self.reader = LogReader(self.store, TailCache(0), self.cache)
        self.answers = AnswerMemory(1 << 30)
        self.fetcher = Fetcher(
            log_without_tables(self.reader),
            SystemClock(),
            lambda: True,
            FaultLog(SystemClock()),
            self.answers,
            SliceTurns(),
        )
        self.extents = [Extents() for _ in sizes]
        self.object_bytes = 0
        self._slots = slots
        self._batches = [bytes(encode_batch([NewRecord(value=bytes(size))])) for size in sizes]
        self._partitions: list[Partition] = []

    async def write(self) -> None:
        """Put the WAL objects."""
        for slot in range(self._slots):
            data = bytearray(100)
            for extents, template in zip(self.extents, self._batches, strict=True):
                batch = bytearray(template)
                _BASE_OFFSET.pack_into(batch, 0, slot)
                extents.append(Extent(slot, slot, 0, key_of(slot), len(data), len(batch)))
                data += batch
            data += bytes(100)
            self.object_bytes = len(data)
            await self.memory.put(key_of(slot), data)
        for number, extents in enumerate(self.extents):
            image = PartitionImage(
                TopicPartition(TOPIC_ID, number),
                LeaderEpoch(0),
                self._slots,
                0,
                0,
                (),
                (),
                False,
                (),
                extents,
            )
            log = PartitionLog.from_image(image)
            self._partitions.append(Partition("flights", log, BatchLimits()))

    async def fetch(
        self, offsets: dict[int, int], *, partition_bytes: int = MIB, bytes_max: int = 50 * MIB
    ) -> list[PartitionRead]:
        """One fetch. Returns the offsets by partition."""
        targets = [
            FetchTarget((TOPIC_ID, number), offset, partition_bytes, -1, -1)
            for number, offset in offsets.items()
        ]
        return await self.fetcher.fetch(
            targets,
            lambda target: self._partitions[target.key[1]],
            Isolation.READ_UNCOMMITTED,
            FetchLimits(1, bytes_max, 0),
        )

    async def read(self, partitions: Sequence[int], *, partition_bytes: int = MIB) -> int:
        """Read partitions to their ends, as a client does. Returns the number of fetches."""
        offsets = dict.fromkeys(partitions, 0)
        fetches = 0
        while any(offset < self._slots for offset in offsets.values()):
            fetches += 1
            for read in await self.fetch(offsets, partition_bytes=partition_bytes):
                number = read.target.key[1]
                assert read.code == 0, read
                for offset in offsets_in(read):
                    assert offset == offsets[number]
                    offsets[number] += 1
        return fetches

    async def spoil(self, slot: int, partition: int) -> None:
        """Change a byte of a batch in the store."""
        extent = self.extents[partition][slot]
        whole = bytearray((await self.memory.get(extent.key)).data)
        whole[extent.position + HEADER_SIZE] ^= 1
        await self.memory.put(extent.key, whole)


def log_without_tables(reader: LogReader) -> TieredLog:
    """A log without records in tables."""
    store, offload = MemoryStore(SystemClock()), InlineOffload()
    state = cast(ClusterState, SimpleNamespace(topics={}))
    tables = Tables(lambda: state, store, SystemClock(), SeededEntropy(1), offload, 600.0)
    indexes = SegmentIndexes(store, offload, 0)
    chunks = ChunkReads(store, offload, ReadMemory(0), indexes)
    return TieredLog(ColdReader(tables, chunks), WalTier(reader, tables))


def offsets_in(read: PartitionRead) -> list[int]:
    """The base offsets of the batches that were read."""
    found = []
    data = b"".join(read.found.buffers)
    position = 0
    while position < len(data):
        found.append(_BASE_OFFSET.unpack_from(data, position)[0])
        position += 12 + int.from_bytes(data[position + 8 : position + 12], "big")
    return found


async def settle() -> None:
    """Let all tasks run that can."""
    for _ in range(50):
        await asyncio.sleep(0)
