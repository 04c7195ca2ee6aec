"""The reads of a roll: batches of extents, and the transactions that they belong to.

A roll takes extents from the tail cache without disturbing it. It reads the others from WAL objects
by ranges, past the consumers' caches, since each is rolled only once. Small partitions that are
rolled one after the other lie side by side in the same objects; `gather` reads for all at a time.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence

from tidelog.concurrency import read_all
from tidelog.storage.object_store import Buffer, ByteRange, ObjectStore, StoreError
from tidelog.storage.superseded import required
from tidelog.wal.log.extents import Extent
from tidelog.wal.read.index import batch_index, read_batch_tail
from tidelog.wal.read.ordinals import Ordinals
from tidelog.wal.read.read_cache import ReadCache, ReadMemory, StoredRange
from tidelog.wal.read.read_plan import Demand, PlannedRead, plan_reads
from tidelog.wal.read.tail_cache import TailCache
from tidelog.wal.read.verify import StoredBatches
from tidelog.workers.offload import Offload

READS_AT_ONCE_MAX = 8
GATHERED_BYTES_MAX = 8 * 1024 * 1024
"""Bytes of WAL objects that are held for the partitions to be rolled next."""
GATHERED_EXTENTS_MAX = 4096
INDEXED_BATCHES_MAX = 1 << 18
"""Ordinals of batches that stay in memory, of the last requested objects: 16 bytes each."""
_BATCHES_AN_INDEX = 32
"""The approximate memory of an index beside its ordinals, in batches."""


class RollSource:
    """Reads extents and ordinals for one broker's rolls."""

    def __init__(self, store: ObjectStore, tail: TailCache, offload: Offload) -> None:
        self._store = store
        self._tail = tail
        self._offload = offload
        self._at_once = asyncio.Semaphore(READS_AT_ONCE_MAX)
        self._indexes: OrderedDict[str, Ordinals] = OrderedDict()
        self._indexed_batches = 0
        self._gathered = ReadCache(ReadMemory(GATHERED_BYTES_MAX))
        self.bytes_read = 0
        """Bytes read from the store."""

    async def read(self, extents: Sequence[Extent], *, again: bool = False) -> list[StoredBatches]:
        """The extents' bytes, not yet verified, as views.

        They go to another process without a copy.
        `again`: read them from the store, past all caches. Raises StoreError and MissingObject.
        """
        found = [None if again else self._held(extent) for extent in extents]
        missing = [extent for extent, data in zip(extents, found, strict=True) if data is None]
        fetched = iter(await self._fetch(missing))
        return [
            StoredBatches(extent, memoryview(next(fetched) if data is None else data))
            for extent, data in zip(extents, found, strict=True)
        ]

    async def gather(self, extents: Iterable[Extent]) -> None:
        """Read the bytes of several partitions in the same objects; neighbours in one range.

        `read` returns them from memory until the next call or `release`, and raises the errors.
        """
        missing = [extent for extent in extents if self._held(extent) is None]
        planned = await self._offload.run(_plan, missing)
        await read_all(self._gather, planned, self._at_once)

    def release(self) -> None:
        """Release the gathered bytes."""
        self._gathered = ReadCache(ReadMemory(GATHERED_BYTES_MAX))

    async def ordinals(self, keys: Iterable[str]) -> Mapping[str, Ordinals]:
        """The batches' ordinals, from these objects' indexes. Raises StoreError, CorruptObject."""
        found = {}
        for key in sorted(keys):
            ordinals = self._indexes.get(key)
            if ordinals is None:
                ordinals = await self._read_index(key)
                self._hold_index(key, ordinals)
            else:
                self._indexes.move_to_end(key)
            found[key] = ordinals
        return found

    def _hold_index(self, key: str, ordinals: Ordinals) -> None:
        self._indexes[key] = ordinals
        self._indexed_batches += len(ordinals.positions) + _BATCHES_AN_INDEX
        while self._indexed_batches > INDEXED_BATCHES_MAX:
            _, forgotten = self._indexes.popitem(last=False)
            self._indexed_batches -= len(forgotten.positions) + _BATCHES_AN_INDEX

    def _held(self, extent: Extent) -> Buffer | None:
        """An extent's bytes, if they are in memory."""
        key, position, length = extent.key, extent.position, extent.length
        cached = self._tail.peek(key, position, length)
        if cached is not None:
            return cached
        gathered = self._gathered.get(key, position, length)
        return None if gathered is None else gathered.view(position, length)

    async def _gather(self, planned: PlannedRead) -> None:
        key, start, end = planned
        try:
            stored = await self._store.get(key, ByteRange(start, end - start))
        except StoreError:
            # Each roll that needs the bytes reads them by itself: only that roll gets the error.
            return
        self.bytes_read += len(stored.data)
        self._gathered.put(StoredRange(key, start, stored.data, is_ahead=False))

    async def _fetch(self, extents: Sequence[Extent]) -> list[Buffer]:
        async def read(extent: Extent) -> Buffer:
            with required():
                place = ByteRange(extent.position, extent.length)
                stored = await self._store.get(extent.key, place)
            self.bytes_read += len(stored.data)
            return stored.data

        return await read_all(read, extents, self._at_once)

    async def _read_index(self, key: str) -> Ordinals:
        whole = self._tail.whole(key)
        if whole is not None:
            return await self._offload.run(_decode, key, whole, len(whole))
        return await self._offload.run(_decode, key, *await read_batch_tail(self._store, key))


def _plan(extents: Iterable[Extent]) -> list[PlannedRead]:
    """The reads of each object for these extents, within the memory limit."""
    by_object: dict[str, list[Extent]] = {}
    for extent in extents:
        by_object.setdefault(extent.key, []).append(extent)
    room = GATHERED_BYTES_MAX
    planned = []
    for key, group in by_object.items():
        for each in plan_reads(key, group, Demand(), (), 0):
            if each.end - each.start <= room:
                room -= each.end - each.start
                planned.append(each)
    return planned


def _decode(key: str, tail: Buffer, size: int) -> Ordinals:
    return Ordinals.of(batch_index(key, tail, size))
