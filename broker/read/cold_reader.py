"""Reads the part of a log below `table_next` from segments, as record batches.

The table lists the segments. A reader looks at the table at each step, so changes of segments do
not disturb it. A segment may be compacted or expired, and deleted, during a read. Then it is
missing, and the reader reads the table again (rule F4). If the table still lists the segment, that
is corruption; otherwise the reader continues with the present segments. Chunks in memory stay
right, since segments never change.

Offsets without a record (markers, aborted and compacted records, expired segments) are covered by
the batch before them, or by an empty one, so that readers pass them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple, TypeAlias

from tidelog.broker.read.chunk import Chunk, buffers_of
from tidelog.broker.read.chunk_reads import ChunkReads, ChunkSource
from tidelog.broker.read.log_slice import ColdPart, LogSlice
from tidelog.broker.tables.table_source import (
    TableSource,
    known_table,
    missing_extent,
    missing_segment,
)
from tidelog.errors import MissingObject, TidelogError
from tidelog.records.compression import Compression
from tidelog.records.rows.row_encoding import empty_batches
from tidelog.storage.object_store import ObjectNotFound
from tidelog.storage.segment.segment import Segment
from tidelog.storage.segment.segment_writer import ROW_GROUP_BYTES
from tidelog.storage.superseded import Superseded
from tidelog.storage.table.table_log import log_prefix
from tidelog.storage.table.table_state import PartitionTable
from tidelog.wal.log.extents import Extent
from tidelog.wal.log.partition_log import PartitionLog

_ROW_BYTES = 30
"""The bytes of a record beside its key, value and headers."""


ColdLoaded: TypeAlias = Mapping[ColdPart, Chunk | TidelogError]
"""The result for each part: its chunk, or the error of the read."""


class ColdFollowing(NamedTuple):
    """The next part that a reader of segments will read."""

    log: PartitionLog
    codec: Compression
    offset: int


class ColdReader:
    """One broker's reads of segments. `slice` never waits; `load` reads the parts it missed."""

    def __init__(self, tables: TableSource, chunks: ChunkReads) -> None:
        self._tables = tables
        self.chunks = chunks
        """The reads from the store, for metrics."""

    async def close(self) -> None:
        """Cancel the reads under way."""
        await self.chunks.close()

    def slice(
        self,
        log: PartitionLog,
        codec: Compression,
        offset: int,
        bytes_max: int,
        *,
        at_least_one: bool,
        loaded: ColdLoaded,
    ) -> LogSlice:
        """The batches from the one with `offset` on, up to `bytes_max` and to the table's end.

        It may go beyond, if the log has not learned yet how far the table reaches. The first batch
        is returned even above `bytes_max` if `at_least_one`. If a needed part is not in memory, the
        slice ends, and names it in `missing`. An error in `loaded` is raised if nothing was found
        before it.
        """
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
                self._pass_gap(log, found, min(base_offset, log.table_next))
                continue
            part = self._part(source, segment, found.next_offset, log.table_next)
            chunk = None
            if segment is not None:
                chunk = self.chunks.held(source, segment, found.next_offset)
            outcome = chunk or loaded.get(part)
            if isinstance(outcome, TidelogError):
                if found.buffers:
                    break
                raise outcome
            if outcome is None:
                found.missing = part
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
        return found

    async def load(self, parts: Iterable[ColdPart]) -> ColdLoaded:
        """Read parts from the store. A part without a chunk or an error in the answer has changed
        meanwhile: the next slice names its present form."""
        wanted = list(dict.fromkeys(parts))
        outcomes = await asyncio.gather(*map(self._load, wanted))
        return {
            part: outcome
            for part, outcome in zip(wanted, outcomes, strict=True)
            if outcome is not None
        }

    async def missing(self, log: PartitionLog, extent: Extent) -> MissingObject:
        """The error of an extent whose object is missing (`missing_extent`)."""
        return await missing_extent(self._tables, log, extent)

    def read_ahead(self, following: ColdFollowing, bytes_max: int) -> None:
        """Begin to read the next part, for a later reader."""
        log, codec, offset = following
        table = self._table(log)
        if table is not None:
            source = ChunkSource(log.partition, log.leader_epochs, codec)
            self.chunks.read_ahead(source, _segments_from(table, offset), offset, bytes_max)

    def _table(self, log: PartitionLog) -> PartitionTable | None:
        """The partition's part of the table, if it is known up to the end that the log knows."""
        state = self._tables.get(log.partition.topic_id)
        if state is None:
            return None
        table = state.partition(log.partition.partition)
        return table if table.next_offset >= log.table_next else None

    def _part(
        self, source: ChunkSource, segment: Segment | None, offset: int, table_next: int
    ) -> ColdPart:
        topic_id = source.partition.topic_id
        if segment is None:
            return ColdPart(log_prefix(topic_id), 0, source, offset, None, table_next)
        rows_bytes = segment.raw_bytes + _ROW_BYTES * segment.row_count
        length = min(rows_bytes, ROW_GROUP_BYTES)
        return ColdPart(segment.key(topic_id), length, source, offset, segment, table_next)

    def _pass_gap(self, log: PartitionLog, found: LogSlice, following: int) -> None:
        """Cover the offsets up to the next segment, or to the table's end."""
        batches = empty_batches(
            found.next_offset, following, log.leader_epoch_of(found.next_offset)
        )
        buffers = buffers_of(batches)
        found.buffers += buffers
        found.size_bytes += sum(map(len, buffers))
        found.next_offset = following

    async def _load(self, part: ColdPart) -> Chunk | TidelogError | None:
        """None: the part does not exist any more, or is in memory now."""
        try:
            if part.segment is None:
                await known_table(self._tables, part.source.partition, part.table_next)
                return None
            return await self._read(part, part.segment)
        except TidelogError as error:
            return error

    async def _read(self, part: ColdPart, segment: Segment) -> Chunk | None:
        try:
            return await self.chunks.read(part.source, segment, part.offset)
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
