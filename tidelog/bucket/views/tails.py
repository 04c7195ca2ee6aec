"""Reads partitions' tails from WAL objects: few ranges, in parallel, in offset order.

A missing object raises MissingObject. The table may have all of its records by now. So the reader
takes a new view and looks again (rule F4).
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from typing import TypeAlias

import pyarrow as pa

from tidelog.bucket.views.partition_view import PartitionView
from tidelog.bucket.views.tail_rows import (
    TailBatches,
    rows_of,
)
from tidelog.concurrency import read_all
from tidelog.identifiers import TopicPartition
from tidelog.records.parse.varints import Booleans, Integers
from tidelog.records.row_columns import ROW_SCHEMA
from tidelog.storage.object_store import Buffer, ByteRange, ObjectStore
from tidelog.storage.superseded import required
from tidelog.wal.format.slot_index import SlotIndex
from tidelog.wal.log.extents import Extent
from tidelog.wal.read.index import read_batch_index
from tidelog.wal.read.ordinals import IndexedBatches, Ordinals, extent_ordinals, index_batches
from tidelog.wal.read.read_plan import Demand, PlannedRead, plan_reads, windows
from tidelog.wal.read.verify import StoredBatches, VerifiedBatches, verify
from tidelog.workers.offload import Offload

READS_AT_ONCE_MAX = 16
WINDOW_BYTES = 16 * 1024 * 1024
"""The bytes of batches in memory for each reader of a partition; one extent may be larger."""
INDEX_CACHE_BYTES = 64 * 1024 * 1024

Keep: TypeAlias = Callable[[TailBatches, Integers], Booleans]
"""True for each batch of an extent that the reader shows, by headers and ordinals."""


class TailReader:
    """Reads tails. One reader may serve many partitions at once, which share its limits."""

    def __init__(self, store: ObjectStore, offload: Offload) -> None:
        self._store = store
        self._offload = offload
        self._at_once = asyncio.Semaphore(READS_AT_ONCE_MAX)
        self._indexes: OrderedDict[str, SlotIndex] = OrderedDict()
        self._index_bytes = 0

    async def batches(self, extents: Iterable[Extent]) -> AsyncIterator[VerifiedBatches]:
        """The extents' batches, in their order. Neighbours in one object take one read.

        Raises MissingObject and other CorruptObjects, and StoreError.
        """
        for window in windows(extents, WINDOW_BYTES):
            for extent, data in await self._read(window):
                yield await self._offload.run(verify, extent, data)

    async def rows(
        self,
        view: PartitionView,
        start: int = 0,
        upper: int | None = None,
        *,
        columns: Sequence[str] = ROW_SCHEMA.names,
        committed: bool = True,
        keep: Keep | None = None,
    ) -> AsyncIterator[pa.RecordBatch]:
        """The tail's rows at offsets [start, upper), by offset, some MiB at a time.

        With `committed`, committed rows up to the last stable offset; otherwise all rows up to the
        high watermark, also aborted ones. `keep` replaces this choice. The column `transaction`
        costs one more read for each object. Raises the errors of `batches`.
        """
        end = view.last_stable_offset if committed and keep is None else view.high_watermark
        end = end if upper is None else min(end, upper)
        start = max(start, view.log_start, view.table_next)
        aborted = view.aborted if committed else []
        wanted = (each for each in view.tail.from_offset(start) if each.base_offset < end)
        names = list(columns)
        async for verified in self.batches(wanted):
            extent, batches = verified.extent, TailBatches.of(verified)
            ordinals = kept = None
            if keep is not None or "transaction" in names:
                ordinals = await self._ordinals(extent, batches)
                kept = None if keep is None else keep(batches, ordinals)
            pieces = rows_of(extent, verified.data, batches, start, end, aborted, ordinals, kept)
            while (rows := await self._offload.run(_next, pieces)) is not None:
                yield rows.select(names)

    async def _ordinals(self, extent: Extent, batches: TailBatches) -> Integers:
        known = None
        if extent.adoption is None:
            known = await self._offload.run(Ordinals.of, await self._index(extent.key))
        return extent_ordinals(extent, batches.positions, batches.headers["attributes"], known)

    async def indexed(self, key: str, partition: TopicPartition) -> IndexedBatches:
        """A partition's batches in the index of a WAL object. Raises the errors of `batches`."""
        return await self._offload.run(index_batches, await self._index(key), partition)

    async def _index(self, key: str) -> SlotIndex:
        index = self._indexes.get(key)
        if index is not None:
            self._indexes.move_to_end(key)
            return index
        async with self._at_once:
            index = await read_batch_index(self._store, self._offload, key)
        if key not in self._indexes:
            self._indexes[key] = index
            self._index_bytes += _size_of(index)
        while self._index_bytes > INDEX_CACHE_BYTES and len(self._indexes) > 1:
            _, forgotten = self._indexes.popitem(last=False)
            self._index_bytes -= _size_of(forgotten)
        return index

    async def _read(self, window: Sequence[Extent]) -> list[StoredBatches]:
        by_object: dict[str, list[Extent]] = {}
        for extent in window:
            by_object.setdefault(extent.key, []).append(extent)
        planned = [
            read
            for key, extents in by_object.items()
            for read in plan_reads(key, extents, Demand(), (), 0)
        ]
        ranges = await read_all(self._read_range, planned, self._at_once)
        held = list(zip(planned, ranges, strict=True))
        return [StoredBatches(extent, _cut(extent, held)) for extent in window]

    async def _read_range(self, planned: PlannedRead) -> Buffer:
        key, start, end = planned
        with required():
            return (await self._store.get(key, ByteRange(start, end - start))).data


def _cut(extent: Extent, held: Sequence[tuple[PlannedRead, Buffer]]) -> memoryview:
    """An extent's bytes; fewer if its object ends too early."""
    begin, end = extent.position, extent.position + extent.length
    for (key, start, following), data in held:
        if key == extent.key and start <= begin and end <= following:
            return memoryview(data)[begin - start : end - start]
    raise AssertionError(f"{extent} was not planned")


def _size_of(index: SlotIndex) -> int:
    return index.layout.size - index.layout.index_position


def _next(rows: Iterator[pa.RecordBatch]) -> pa.RecordBatch | None:
    return next(rows, None)
