"""Finds rows of segments by time.

It uses the table's statistics, then those of the segment's row groups, then two columns of one row
group.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import NamedTuple

from tidelog.broker.read.segments.segment_indexes import SegmentIndexes
from tidelog.broker.tables.table_source import (
    TableSource,
    known_table,
    missing_extent,
    missing_segment,
)
from tidelog.errors import MissingObject
from tidelog.identifiers import TopicPartition
from tidelog.storage.object_store import ObjectNotFound
from tidelog.storage.segment.segment import Segment
from tidelog.storage.segment.segment_index import UNDATED
from tidelog.storage.segment.segment_reader import SegmentReader
from tidelog.storage.superseded import retry_if_superseded
from tidelog.storage.table.table_state import PartitionTable
from tidelog.wal.log.extents import Extent
from tidelog.wal.log.partition_log import PartitionLog


class TimedRow(NamedTuple):
    """The offset and the time of a row."""

    offset: int
    timestamp_ms: int


class ColdTimes:
    """One broker's look-ups by time. They raise CorruptObject and StoreError."""

    def __init__(self, tables: TableSource, indexes: SegmentIndexes) -> None:
        self._tables = tables
        self._indexes = indexes

    async def first_since(
        self, log: PartitionLog, timestamp_ms: int, lower: int
    ) -> TimedRow | None:
        """The first row at or above the offset `lower` with that time or a later one."""
        return await self._settled(
            log, lambda table: self._first_since(log.partition, table, timestamp_ms, lower)
        )

    async def latest(self, log: PartitionLog, lower: int) -> TimedRow | None:
        """The first of the latest rows at or above an offset; those without a timestamp have -1."""
        return await self._settled(log, lambda table: self._latest(log.partition, table, lower))

    async def missing(self, log: PartitionLog, extent: Extent) -> MissingObject:
        """The error of an extent whose object is missing (`missing_extent`)."""
        return await missing_extent(self._tables, log, extent)

    async def _settled(
        self,
        log: PartitionLog,
        look: Callable[[PartitionTable], Awaitable[TimedRow | None]],
    ) -> TimedRow | None:

        async def read() -> TimedRow | None:
            return await look(await known_table(self._tables, log.partition, log.table_next))

        return await retry_if_superseded(read)

    async def _first_since(
        self, partition: TopicPartition, table: PartitionTable, timestamp_ms: int, lower: int
    ) -> TimedRow | None:
        segment = _later_segment(table.since(timestamp_ms), table.at(lower))
        while segment is not None:
            latest = segment.timestamp_max
            # Only a segment across the log's start may have rows that do not count.
            if latest is not None and latest >= timestamp_ms and segment.last_row >= lower:
                found = await self._in(
                    partition, segment, lambda reader: reader.first_since(timestamp_ms, lower)
                )
                if found is not None:
                    return found
            # Not the one after it: the next one may have been merged with it during the look.
            segment = table.at(segment.name.last_offset + 1)
        return None

    async def _latest(
        self, partition: TopicPartition, table: PartitionTable, lower: int
    ) -> TimedRow | None:
        best: TimedRow | None = None
        for segment in table.latest_first(lower):
            hoped_for = TimedRow(segment.name.base_offset, _latest_of(segment))
            if best is not None and _order(best) < _order(hoped_for):
                break
            found = await self._in(partition, segment, lambda reader: reader.latest(lower))
            if found is not None:
                best = found if best is None else min(best, found, key=_order)
        return best

    async def _in(
        self,
        partition: TopicPartition,
        segment: Segment,
        look: Callable[[SegmentReader], Awaitable[tuple[int, int] | None]],
    ) -> TimedRow | None:
        try:
            found = await look(await self._indexes.open(partition, segment))
        except ObjectNotFound as error:
            raise await missing_segment(self._tables, partition, segment) from error
        return None if found is None else TimedRow(*found)


def _latest_of(segment: Segment) -> int:
    return UNDATED if segment.timestamp_max is None else segment.timestamp_max


def _order(row: TimedRow) -> tuple[int, int]:
    """Sorts the latest first; of equal ones, the first in the log."""
    return -row.timestamp_ms, row.offset


def _later_segment(one: Segment | None, other: Segment | None) -> Segment | None:
    """The segment with the higher offsets; None if there is none."""
    if one is None or other is None:
        return None
    return max(one, other, key=lambda segment: segment.name.base_offset)
