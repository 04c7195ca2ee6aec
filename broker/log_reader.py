"""Reads a partition's durable record batches: from the tail cache, else from the store by range.

Only what an extent lists is ever read, and extents are listed when they are durable, so a reader
can see nothing that is not. Bytes from the store are checked (offsets, lengths, checksums) before
anybody gets them; bytes in the cache are the very bytes that were acknowledged.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from tidelog.errors import CorruptObject, TidelogError
from tidelog.records.batch import (
    CRC_POSITION,
    HEADER_SIZE,
    LENGTH_PREFIX_SIZE,
    MAGIC,
    checksum,
)
from tidelog.records.buffers import Buffer
from tidelog.storage.object_store import ByteRange, ObjectNotFound, ObjectStore, StoreError
from tidelog.wal.extents import Extent, Extents
from tidelog.wal.tail_cache import TailCache

LOADS_AT_ONCE_MAX = 8
_BASE_AND_LENGTH = struct.Struct(">qi")
_LAST_OFFSET_DELTA_POSITION = 23
_INT32 = struct.Struct(">i")
_UINT32 = struct.Struct(">I")


@dataclass(slots=True)
class LogSlice:
    """Whole batches from one partition, in offset order. `is_cut`: the next one does not fit.
    `missing`: the next one has to be loaded first."""

    buffers: list[Buffer] = field(default_factory=list)
    size_bytes: int = 0
    is_cut: bool = False
    missing: Extent | None = None


Loaded: TypeAlias = Mapping[tuple[str, int], memoryview | CorruptObject | StoreError]
"""What was read from the store for the extent at (key, position), or why it was not."""


class LogReader:
    """One broker's readers. `slice` never waits; `load` brings what it missed into the cache."""

    def __init__(self, store: ObjectStore, cache: TailCache, cursors_max: int = 10_000) -> None:
        self._store = store
        self._cache = cache
        self._cursors_max = cursors_max
        # Where sequential readers go on, so that they need not walk an extent from its beginning.
        self._cursors: dict[tuple[str, int, int], int] = {}
        self._loads = asyncio.Semaphore(LOADS_AT_ONCE_MAX)

    def slice(
        self,
        extents: Extents,
        offset: int,
        upper: int,
        bytes_max: int,
        *,
        at_least_one: bool,
        loaded: Loaded,
    ) -> LogSlice:
        """The batches from the one that holds `offset` on, below `upper`, up to `bytes_max`.

        The first batch is returned even above `bytes_max` if `at_least_one`. Where a needed extent
        is neither cached nor among those just loaded the slice ends, and names it in `missing`.
        """
        found = LogSlice()
        for extent in extents.from_offset(offset):
            if extent.base_offset >= upper:
                break
            if found.size_bytes >= bytes_max and (found.buffers or not at_least_one):
                found.is_cut = True
                break
            data = self._cache.get(extent.key, extent.position, extent.length)
            if data is None:
                outcome = loaded.get((extent.key, extent.position))
                if isinstance(outcome, TidelogError):
                    if found.buffers:
                        break
                    raise outcome
                data = outcome
            if data is None:
                found.missing = extent
                break
            room = bytes_max - found.size_bytes
            start = self._start(data, extent, offset)
            end, following = _end(data, start, upper, room, at_least_one and not found.buffers)
            if end > start:
                found.buffers.append(data[start:end])
                found.size_bytes += end - start
            if end < len(data):
                self._remember(extent, following, end)
                found.is_cut = following < upper
                break
        return found

    async def load(self, extents: Iterable[Extent]) -> Loaded:
        """Read extents from the store, a few at a time; they also enter the cache.

        An extent that cannot be read or proved right has its error in place of its bytes.
        """
        wanted = {(e.key, e.position): e for e in extents}
        async with asyncio.TaskGroup() as tasks:
            reads = {
                place: tasks.create_task(self._try_load(extent)) for place, extent in wanted.items()
            }
        return {place: read.result() for place, read in reads.items()}

    async def read_extent(self, extent: Extent) -> memoryview:
        """One extent's bytes, from wherever they are. Raises CorruptObject or StoreError."""
        data = self._cache.get(extent.key, extent.position, extent.length)
        return await self._load(extent) if data is None else data

    async def _try_load(self, extent: Extent) -> memoryview | CorruptObject | StoreError:
        try:
            return await self._load(extent)
        except (CorruptObject, StoreError) as error:
            return error

    async def _load(self, extent: Extent) -> memoryview:
        async with self._loads:
            cached = self._cache.get(extent.key, extent.position, extent.length)
            if cached is not None:
                return cached
            try:
                stored = await self._store.get(
                    extent.key, ByteRange(extent.position, extent.length)
                )
            except ObjectNotFound as error:
                raise CorruptObject(extent.key, "the object is missing") from error
            verify_extent(stored.data, extent)
            return self._cache.put(extent.key, stored.data, extent.position)

    def _start(self, data: memoryview, extent: Extent, offset: int) -> int:
        """Where the batch that holds `offset` begins; batches within an extent have no gaps."""
        if offset <= extent.base_offset:
            return 0
        known = self._cursors.get((extent.key, extent.position, offset))
        if known is not None:
            return known
        position, size = 0, len(data)
        while True:
            following = position + LENGTH_PREFIX_SIZE + _INT32.unpack_from(data, position + 8)[0]
            if following >= size or _BASE_AND_LENGTH.unpack_from(data, following)[0] > offset:
                return position
            position = following

    def _remember(self, extent: Extent, next_offset: int, position: int) -> None:
        if len(self._cursors) >= self._cursors_max:
            self._cursors.pop(next(iter(self._cursors)))
        self._cursors[(extent.key, extent.position, next_offset)] = position


def _end(
    data: memoryview, start: int, upper: int, bytes_max: int, at_least_one: bool
) -> tuple[int, int]:
    """Where to stop: the end of the last whole batch below `upper` and within `bytes_max`, and the
    base offset of the batch there (-1 at the extent's end)."""
    position, size, unpack = start, len(data), _BASE_AND_LENGTH.unpack_from
    limit = start + bytes_max
    while position < size:
        base_offset, length = unpack(data, position)
        following = position + LENGTH_PREFIX_SIZE + length
        if base_offset >= upper or (following > limit and not (at_least_one and position == start)):
            return position, base_offset
        position = following
    return position, -1


def verify_extent(data: Buffer, extent: Extent) -> None:
    """Check bytes from the store against what the index says of them. Raises CorruptObject."""
    if len(data) != extent.length:
        raise CorruptObject(
            extent.key,
            f"{len(data)} of {extent.length} bytes at position {extent.position}",
        )
    position, expected = 0, extent.base_offset
    while position < len(data):
        where = f"at position {extent.position + position}"
        if len(data) - position < HEADER_SIZE:
            raise CorruptObject(extent.key, f"a cut record batch {where}")
        base_offset, length = _BASE_AND_LENGTH.unpack_from(data, position)
        following = position + LENGTH_PREFIX_SIZE + length
        if base_offset != expected or data[position + 16] != MAGIC or following > len(data):
            raise CorruptObject(
                extent.key,
                f"a record batch {where} begins at offset {base_offset}, expected {expected}",
            )
        if length < HEADER_SIZE - LENGTH_PREFIX_SIZE:
            raise CorruptObject(extent.key, f"a record batch of length {length} {where}")
        if _UINT32.unpack_from(data, position + CRC_POSITION)[0] != checksum(
            data, position, following
        ):
            raise CorruptObject(extent.key, f"the checksum of the record batch {where} is wrong")
        expected += _INT32.unpack_from(data, position + _LAST_OFFSET_DELTA_POSITION)[0] + 1
        position = following
    if expected != extent.last_offset + 1:
        raise CorruptObject(
            extent.key,
            f"record batches end at offset {expected - 1}, expected {extent.last_offset}",
        )
