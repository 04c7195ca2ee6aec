"""The tier of records that no table has yet: batches in WAL objects, or copies in memory.

A reader reads only listed extents, and extents are listed once they are durable. So a reader never
sees a record that is not durable. Bytes from the store are checked (offsets, lengths, checksums)
before any reader gets them. Bytes in the tail cache are the very bytes that were acknowledged.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TypeAlias

from tidelog.broker.read.object_reads import ObjectReads
from tidelog.broker.read.tiers import LogPiece, LogRange, LogSlice, ReadAhead, interleaved
from tidelog.broker.tables.table_source import TableSource, missing_extent
from tidelog.errors import CorruptObject, MissingObject, TidelogError
from tidelog.records.batch import LENGTH_PREFIX_SIZE
from tidelog.storage.object_store import ObjectNotFound, ObjectStore, StoreError
from tidelog.storage.superseded import Superseded
from tidelog.wal.log.extents import Extent, Place
from tidelog.wal.log.partition_log import PartitionLog
from tidelog.wal.read.read_cache import ReadCache, StoredRange
from tidelog.wal.read.tail_cache import TailCache
from tidelog.wal.read.verify import verify

AHEAD_BYTES_MAX = 16 * 1024 * 1024
"""Bytes that are read ahead for all partitions of one fetch together."""
CURSORS_MAX = 10_000
_BASE_AND_LENGTH = struct.Struct(">qi")
_INT32 = struct.Struct(">i")


Loaded: TypeAlias = Mapping[Place, memoryview | CorruptObject | StoreError]
"""The result for the extent at a place: its bytes, or the error of the read."""


class LogReader:
    """One broker's reads of extents: from the tail cache, the read cache or the store.

    `held` never waits; `load` reads the missing ones.
    """

    def __init__(
        self,
        store: ObjectStore,
        tail: TailCache,
        read_cache: ReadCache,
    ) -> None:
        self._tail = tail
        self._read_cache = read_cache
        self._reads = ObjectReads(store, read_cache)

    @property
    def reads(self) -> ObjectReads:
        """The reads from the store, for metrics."""
        return self._reads

    async def close(self) -> None:
        """Cancel the reads under way."""
        await self._reads.close()

    async def load(self, extents: Iterable[Extent]) -> Loaded:
        """Read extents from the store, in few ranges. They also enter the read cache.

        An extent that cannot be read or proved has its error in place of its bytes. If it is wrong
        in a range that others share, it is read once more by itself.
        """
        loaded: dict[Place, memoryview | CorruptObject | StoreError] = {}
        shared, alone = [], []
        for extent in {each.place: each for each in extents}.values():
            data = self.held(extent)
            if data is not None:
                loaded[extent.place] = data
            elif self._read_cache.covers(extent.key, extent.position, extent.length):
                alone.append(extent)
            else:
                shared.append(extent)
        outcomes = await self._reads.read(shared) if shared else {}
        for extent in shared:
            outcome = outcomes[extent.place]
            data_or_error = _proven(extent, outcome)
            if isinstance(data_or_error, CorruptObject) and isinstance(outcome, StoredRange):
                outcome.doubted.add(extent.position)
                alone.append(extent)
            else:
                loaded[extent.place] = data_or_error
        outcomes = await self._reads.read(alone, alone=True) if alone else {}
        for extent in alone:
            loaded[extent.place] = _proven(extent, outcomes[extent.place])
        return loaded

    def has(self, extent: Extent) -> bool:
        """True if an extent's bytes are in memory; asking counts as no use of them."""
        return extent.key in self._tail or self._read_cache.covers(
            extent.key, extent.position, extent.length
        )

    def whole(self, key: str) -> memoryview | None:
        """A whole object, if the tail cache has it."""
        return self._tail.whole(key)

    async def read_extent(self, extent: Extent) -> memoryview:
        """One extent's bytes, from memory or the store. Raises CorruptObject or StoreError."""
        outcome = (await self.load([extent]))[extent.place]
        if isinstance(outcome, TidelogError):
            raise outcome
        return outcome

    def held(self, extent: Extent) -> memoryview | None:
        """An extent's bytes, if they are in memory.

        Bytes that were read back are checked at their first use; wrong ones count as absent.
        """
        key, position, length = extent.key, extent.position, extent.length
        data = self._tail.get(key, position, length)
        if data is not None:
            return data
        found = self._read_cache.get(key, position, length)
        if found is None or position in found.doubted:
            return None
        if position in found.proven and extent.adoption is None:
            return found.view(position, length)
        self._reads.used(extent)
        proven = _proven(extent, found)
        if isinstance(proven, memoryview):
            return proven
        found.doubted.add(position)
        return None


def _proven(
    extent: Extent, outcome: StoredRange | StoreError
) -> memoryview | CorruptObject | StoreError:
    """The checked bytes of an extent."""
    if isinstance(outcome, ObjectNotFound):
        missing = MissingObject(extent.key, "it is missing")
        missing.__cause__ = outcome
        return missing
    if isinstance(outcome, StoreError):
        return outcome
    data = outcome.view(extent.position, extent.length)
    try:
        # Each read stamps an adopted batch: other partitions may have adopted the cached bytes too.
        verified = verify(extent, data)
    except CorruptObject as error:
        return error
    outcome.proven.add(extent.position)
    return memoryview(verified.data).toreadonly()


class WalTier:
    """One broker's readers of extents. A `LogTier`; its pieces' parts are extents."""

    def __init__(self, reader: LogReader, tables: TableSource) -> None:
        self._reader = reader
        self._tables = tables
        # The positions of sequential readers, so that they need not walk an extent from its start.
        self._cursors: dict[tuple[str, int, int], int] = {}

    def end(self, wanted: LogRange) -> int:
        return wanted.upper

    def slice(
        self, wanted: LogRange, *, at_least_one: bool, loaded: Loaded, goes_on: bool
    ) -> LogSlice:
        log, _, offset, upper, bytes_max = wanted
        found, held = LogSlice(next_offset=offset), self._reader.held
        for extent in log.extents.from_offset(offset):
            if extent.base_offset >= upper:
                break
            if found.size_bytes >= bytes_max and (found.buffers or not at_least_one):
                found.is_cut = True
                break
            data = held(extent)
            if data is None:
                outcome = loaded.get(extent.place)
                if isinstance(outcome, TidelogError):
                    if found.buffers or goes_on:
                        break
                    raise outcome
                data = outcome
            if data is None:
                found.missing = self._piece(log, extent)
                break
            room, size = bytes_max - found.size_bytes, len(data)
            start = self._start(data, extent, offset) if offset > extent.base_offset else 0
            if extent.last_offset < upper and size - start <= room:
                end, following = size, extent.last_offset + 1
            else:
                is_first = at_least_one and not found.buffers
                end, following = _end(data, start, upper, room, is_first)
            if end > start:
                found.buffers.append(data[start:end])
                found.size_bytes += end - start
                found.next_offset = following if end < size else extent.last_offset + 1
            if end < size:
                self._remember(extent, following, end)
                found.is_cut = following < upper
                break
        return found

    async def load(self, pieces: Sequence[LogPiece]) -> Loaded:
        """Read extents, as few ranges; these also enter the read cache (`LogReader.load`)."""
        extents: list[Extent] = [piece.part for piece in pieces]
        loaded = dict(await self._reader.load(extents))
        for piece, extent in zip(pieces, extents, strict=True):
            if isinstance(loaded.get(extent.place), MissingObject):
                missing = await missing_extent(self._tables, piece.log, extent)
                if isinstance(missing, Superseded):
                    del loaded[extent.place]
        return loaded

    def lacking(self, wanted: LogRange) -> Iterator[LogPiece]:
        """The next extent that is not in memory, and later ones that lie mostly in the range."""
        log, _, offset, upper, bytes_max = wanted
        room = bytes_max
        for extent in log.extents.from_offset(offset):
            is_next = room == bytes_max
            if extent.base_offset >= upper or (2 * room < extent.length and not is_next):
                return
            room -= extent.length
            if not self._reader.has(extent):
                yield self._piece(log, extent)

    def read_ahead(self, readers: Sequence[ReadAhead]) -> None:
        """Begin to read ahead, readers in turn: twice the bytes of each reader's last answer."""
        room, chosen = AHEAD_BYTES_MAX, list[Extent]()
        ranges = [
            wanted._replace(bytes_max=min(2 * answered_bytes, wanted.bytes_max))
            for wanted, answered_bytes, _ in readers
        ]
        for piece in interleaved([self.lacking(wanted) for wanted in ranges]):
            room -= piece.length
            if room < 0:
                break
            chosen.append(piece.part)
        self._reader.reads.read_ahead(chosen)

    def _piece(self, log: PartitionLog, extent: Extent) -> LogPiece:
        return LogPiece(self, log, extent.key, extent.length, extent)

    def _start(self, data: memoryview, extent: Extent, offset: int) -> int:
        """The position of the batch with `offset`, which is not the first one; batches within an
        extent have no gaps."""
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
        if len(self._cursors) >= CURSORS_MAX:
            self._cursors.pop(next(iter(self._cursors)))
        self._cursors[(extent.key, extent.position, next_offset)] = position


def _end(
    data: memoryview, start: int, upper: int, bytes_max: int, at_least_one: bool
) -> tuple[int, int]:
    """The end of the last whole batch, and the next batch's base offset (-1 at the extent's end).

    The batch is below `upper` and within `bytes_max`.
    """
    position, size, unpack = start, len(data), _BASE_AND_LENGTH.unpack_from
    limit = start + bytes_max
    while position < size:
        base_offset, length = unpack(data, position)
        following = position + LENGTH_PREFIX_SIZE + length
        if base_offset >= upper or (following > limit and not (at_least_one and position == start)):
            return position, base_offset
        position = following
    return position, -1
