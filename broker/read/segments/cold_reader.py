"""Reads the part of a log below `table_next` from segments, as record batches.

The table lists the segments. A reader looks at the table at each step, so changes of segments do
not disturb it. A segment may be compacted or expired, and deleted, during a read. Then it is
missing, and the reader reads the table again (rule F4). If the table still lists the segment, that
is corruption; otherwise the reader continues with the present segments. Chunks in memory stay
right, since segments never change.

Some offsets have no record: those of markers, aborted and compacted records, expired segments. The
batch before them, or an empty one, covers them, so that readers pass them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple, TypeAlias

from tidelog.broker.read.segments.chunk import Chunk, buffers_of, epochs_in
from tidelog.broker.read.segments.chunk_reads import ChunkReads, ChunkSource
from tidelog.broker.read.tiers import LogPiece, LogRange, LogSlice, ReadAhead
from tidelog.broker.tables.table_source import (
    TableSource,
    known_table,
    missing_segment,
)
from tidelog.errors import TidelogError
from tidelog.records.rows.row_encoding import empty_batches
from tidelog.storage.object_store import ObjectNotFound
from tidelog.storage.segment.segment import Segment
from tidelog.storage.segment.segment_writer import ROW_GROUP_BYTES
from tidelog.storage.superseded import Superseded
from tidelog.storage.table.table_log import log_prefix
from tidelog.storage.table.table_state import PartitionTable
from tidelog.wal.log.partition_log import PartitionLog

_ROW_BYTES = 30
"""The bytes of a record beside its key, value and headers."""


class SegmentPart(NamedTuple):
    """A part of a table that is not in memory."""

    key: str
    """The key of the segment, or the prefix of the table's log."""
    length: int
    """The approximate memory that it takes."""
    source: ChunkSource
    offset: int
    segment: Segment | None
    """The segment with the offset; None if the table must be read first, or is outdated."""
    table_next: int
    """The table ends here or later."""


SegmentsLoaded: TypeAlias = Mapping[SegmentPart, Chunk | TidelogError]
"""The result for each part: its chunk, or the error of the read."""


class ColdReader:
    """One broker's readers of segments. A `LogTier`; its pieces' parts are of this kind only."""

    def __init__(self, tables: TableSource, chunks: ChunkReads) -> None:
        self._tables = tables
        self._chunks = chunks

    def end(self, wanted: LogRange) -> int:
        return wanted.log.table_next

    def slice(
        self, wanted: LogRange, *, at_least_one: bool, loaded: SegmentsLoaded, goes_on: bool
    ) -> LogSlice:
        """See `LogTier.slice`. The slice may go beyond the tier's end if the table has advanced."""
        del goes_on  # It is the first tier.
        log, codec, offset, _, bytes_max = wanted
        found = LogSlice(next_offset=offset)
        source = ChunkSource(log.partition, log.leader_epochs, codec)
        table = self._table(log)
        while found.next_offset < log.table_next:
            if found.size_bytes >= bytes_max and (found.buffers or not at_least_one):
                found.is_cut = True
                break
            segment = None if table is None else table.at(found.next_offset)
            base_offset = log.table_next if segment is None else segment.name.base_offset
            if table is not None and found.next_offset < base_offset:
                self._cover_gap(log, found, min(base_offset, log.table_next))
                continue
            part = self._part(source, segment, found.next_offset, log.table_next)
            chunk = None
            if segment is not None:
                chunk = self._chunks.held(source, segment, found.next_offset)
            outcome = chunk or loaded.get(part)
            if isinstance(outcome, TidelogError):
                if found.buffers:
                    break
                raise outcome
            if outcome is None:
                found.missing = LogPiece(self, log, part.key, part.length, part)
                break
            room = bytes_max - found.size_bytes
            buffers, following = outcome.take(
                found.next_offset, room, at_least_one=at_least_one and not found.buffers
            )
            found.buffers += buffers
            found.size_bytes += sum(map(len, buffers))
            found.next_offset = following
            if following < outcome.next_offset:
                found.is_cut = True
                break
        found.unmarked_below = found.next_offset
        return found

    async def load(self, pieces: Sequence[LogPiece]) -> SegmentsLoaded:
        """Read row groups, and tables. A missing part has changed meanwhile, or is known now."""
        wanted: list[SegmentPart] = list(dict.fromkeys(piece.part for piece in pieces))
        outcomes = await asyncio.gather(*map(self._load, wanted))
        return {
            part: outcome
            for part, outcome in zip(wanted, outcomes, strict=True)
            if outcome is not None
        }

    def lacking(self, wanted: LogRange) -> Iterator[LogPiece]:
        """No piece: each row group is worth a read of its own."""
        return iter(())

    def read_ahead(self, readers: Sequence[ReadAhead]) -> None:
        """Begin to read ahead of each reader, as much as it has taken so far."""
        for (log, codec, offset, _, _), _, taken_bytes in readers:
            table = self._table(log)
            if table is not None:
                source = ChunkSource(log.partition, log.leader_epochs, codec)
                segments = _segments_from(table, offset)
                self._chunks.read_ahead(source, segments, offset, taken_bytes)

    def _table(self, log: PartitionLog) -> PartitionTable | None:
        """The partition's part of the table, if it is known up to the end that the log knows."""
        state = self._tables.get(log.partition.topic_id)
        if state is None:
            return None
        table = state.partition(log.partition.partition)
        return table if table.next_offset >= log.table_next else None

    def _part(
        self, source: ChunkSource, segment: Segment | None, offset: int, table_next: int
    ) -> SegmentPart:
        topic_id = source.partition.topic_id
        if segment is None:
            return SegmentPart(log_prefix(topic_id), 0, source, offset, None, table_next)
        rows_bytes = segment.raw_bytes + _ROW_BYTES * segment.row_count
        length = min(rows_bytes, ROW_GROUP_BYTES)
        return SegmentPart(segment.key(topic_id), length, source, offset, segment, table_next)

    def _cover_gap(self, log: PartitionLog, found: LogSlice, following: int) -> None:
        """Cover the offsets up to the next segment, or to the table's end.

        A batch does not reach beyond the end of its leader epoch: a client would take its own
        position for truncated (KIP-320).
        """
        for first, end, epoch in epochs_in(log.leader_epochs, found.next_offset, following):
            buffers = buffers_of(empty_batches(first, end, epoch))
            found.buffers += buffers
            found.size_bytes += sum(map(len, buffers))
        found.next_offset = following

    async def _load(self, part: SegmentPart) -> Chunk | TidelogError | None:
        """None: the part does not exist any more, or is in memory now."""
        try:
            if part.segment is None:
                await known_table(self._tables, part.source.partition, part.table_next)
                return None
            return await self._read(part, part.segment)
        except TidelogError as error:
            return error

    async def _read(self, part: SegmentPart, segment: Segment) -> Chunk | None:
        try:
            return await self._chunks.read(part.source, segment, part.offset)
        except ObjectNotFound as error:
            missing = await missing_segment(self._tables, part.source.partition, segment)
            if isinstance(missing, Superseded):
                return None
            raise missing from error


def _segments_from(table: PartitionTable, offset: int) -> Iterator[Segment]:
    segment = table.at(offset)
    while segment is not None:
        yield segment
        segment = table.after(segment.name)
