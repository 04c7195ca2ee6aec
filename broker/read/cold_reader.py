"""Reads what a partition's log holds below `table_next`: from segments, as record batches.

The table says which segments there are. A reader looks into the table anew whenever it goes on, so
what happens to a segment meanwhile is no matter: a segment that was compacted or expired away and
deleted while it was read is missing; then the table is read again (rule F4), and if it still lists
the segment, that is corruption, and otherwise the reader goes on with what is there now. What was
read of a segment stays right for as long as it is kept: segments never change.

Offsets without a record (markers, aborted and compacted records, expired segments) are covered by
the batch before them or by an empty one, so that whoever reads passes them.
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
    has_gone_on,
    known_table,
    refuse_if_listed,
)
from tidelog.errors import TidelogError
from tidelog.records.compression import Compression
from tidelog.records.rows.row_encoding import empty_batches
from tidelog.storage.object_store import ObjectNotFound
from tidelog.storage.segment.segment import Segment
from tidelog.storage.segment.segment_writer import ROW_GROUP_BYTES
from tidelog.storage.table.table_log import log_prefix
from tidelog.storage.table.table_state import PartitionTable
from tidelog.wal.log.extents import Extent
from tidelog.wal.log.partition_log import PartitionLog

_ROW_BYTES = 30
"""Of a record beside its key, value and headers."""


ColdLoaded: TypeAlias = Mapping[ColdPart, Chunk | TidelogError]
"""What was read for a part, or why it was not."""


class ColdFollowing(NamedTuple):
    """What a reader of segments will want next."""

    log: PartitionLog
    codec: Compression
    offset: int


class ColdReader:
    """One broker's readers of segments. `slice` never waits; `load` brings what it missed."""

    def __init__(self, tables: TableSource, chunks: ChunkReads) -> None:
        self._tables = tables
        self.chunks = chunks
        """The reads from the store, for what they count."""

    async def close(self) -> None:
        """End the reads that are under way."""
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
        """The batches from the one that holds `offset` on, up to `bytes_max` and to the table's
        end, or somewhat beyond where the log does not know yet how far the table reaches.

        The first batch is returned even above `bytes_max` if `at_least_one`. Where a needed part is
        not in memory the slice ends, and names it in `missing`; an error in `loaded` is raised if
        nothing was found before it.
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
        """Read parts from the store. What is in neither form in the answer has changed meanwhile:
        a slice says what it is now."""
        wanted = list(dict.fromkeys(parts))
        outcomes = await asyncio.gather(*map(self._load, wanted))
        return {
            part: outcome
            for part, outcome in zip(wanted, outcomes, strict=True)
            if outcome is not None
        }

    async def replaces(self, log: PartitionLog, extent: Extent) -> bool:
        """Whether an extent whose object is missing is in the table by now (F4)."""
        return await has_gone_on(self._tables, log, extent)

    def read_ahead(self, following: ColdFollowing, bytes_max: int) -> None:
        """Begin to read what a reader will want next. Nobody waits for it."""
        log, codec, offset = following
        table = self._table(log)
        if table is not None:
            source = ChunkSource(log.partition, log.leader_epochs, codec)
            self.chunks.read_ahead(source, _segments_from(table, offset), offset, bytes_max)

    def _table(self, log: PartitionLog) -> PartitionTable | None:
        """The partition's part of the table, if it is known as far as the log says it reaches."""
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
        """None: what was wanted is not there any more, or is known now."""
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
        except ObjectNotFound as missing:
            await refuse_if_listed(self._tables, part.source.partition, segment, missing)
            return None


def _segments_from(table: PartitionTable, offset: int) -> Iterator[Segment]:
    segment = table.at(offset)
    while segment is not None:
        yield segment
        segment = table.after(segment.name)
