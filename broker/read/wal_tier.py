"""The tier of what is not in tables yet: batches in WAL objects, or in copies of them in memory."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence

from tidelog.broker.read.log_reader import Loaded, LogReader
from tidelog.broker.read.tiers import LogPiece, LogRange, LogSlice, ReadAhead, in_turn
from tidelog.broker.tables.table_source import TableSource, missing_extent
from tidelog.errors import MissingObject, TidelogError
from tidelog.records.batch import LENGTH_PREFIX_SIZE
from tidelog.storage.superseded import Superseded
from tidelog.wal.log.extents import Extent
from tidelog.wal.log.partition_log import PartitionLog

AHEAD_BYTES_MAX = 16 * 1024 * 1024
"""Bytes that are read ahead for all partitions of one fetch together."""
CURSORS_MAX = 10_000
_BASE_AND_LENGTH = struct.Struct(">qi")
_INT32 = struct.Struct(">i")


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
            room = bytes_max - found.size_bytes
            start = self._start(data, extent, offset)
            if extent.last_offset < upper and len(data) - start <= room:
                end, following = len(data), extent.last_offset + 1
            else:
                is_first = at_least_one and not found.buffers
                end, following = _end(data, start, upper, room, is_first)
            if end > start:
                found.buffers.append(data[start:end])
                found.size_bytes += end - start
                found.next_offset = following if end < len(data) else extent.last_offset + 1
            if end < len(data):
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
        """The next extent that is not in memory, and those after it that the range wants for the
        most part."""
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
        """Twice what each took at last, so that the steps grow; in turn of readers."""
        room, chosen = AHEAD_BYTES_MAX, list[Extent]()
        ranges = [
            wanted._replace(bytes_max=min(2 * answered_bytes, wanted.bytes_max))
            for wanted, answered_bytes, _ in readers
        ]
        for piece in in_turn([self.lacking(wanted) for wanted in ranges]):
            room -= piece.length
            if room < 0:
                break
            chosen.append(piece.part)
        self._reader.reads.read_ahead(chosen)

    def _piece(self, log: PartitionLog, extent: Extent) -> LogPiece:
        return LogPiece(self, log, extent.key, extent.length, extent)

    def _start(self, data: memoryview, extent: Extent, offset: int) -> int:
        """The position of the batch with `offset`; batches within an extent have no gaps."""
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
