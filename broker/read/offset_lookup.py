"""Finds offsets by timestamp in a partition's durable log (KIP-79, KIP-734)."""

from __future__ import annotations

from typing import NamedTuple

from tidelog.broker.partitions.partitions import Partition
from tidelog.broker.read.segments.cold_times import ColdTimes
from tidelog.broker.read.wal_tier import LogReader
from tidelog.errors import MissingObject
from tidelog.records.batch import iterate_batches
from tidelog.records.buffers import Buffer
from tidelog.records.records import decode_records
from tidelog.storage.superseded import retry_if_superseded
from tidelog.wal.log.extents import Extent
from tidelog.wal.log.partition_log import PartitionLog
from tidelog.workers.offload import Offload


class TimestampOffset(NamedTuple):
    """The timestamp and the offset of a record."""

    timestamp_ms: int
    offset: int


class OffsetLookup:
    """Searches the segments, then the batches that the extents' maximum timestamps point to.

    Meanwhile records may move from the WAL into the table. So it searches the table until the
    table's end is the same before and after a search, and then takes the extents as they are.
    Records in the table are decided: they may be shown, even if they were not visible when the
    look-up began.
    """

    def __init__(self, cold: ColdTimes, reader: LogReader, offload: Offload) -> None:
        self._cold = cold
        self._reader = reader
        self._offload = offload

    async def at_or_after(
        self, partition: Partition, timestamp_ms: int, upper: int
    ) -> TimestampOffset | None:
        """The first record below `upper` that is not older than the timestamp; None without one.

        Raises CorruptObject or StoreError.
        """
        return await retry_if_superseded(lambda: self._at_or_after(partition, timestamp_ms, upper))

    async def of_maximum(self, partition: Partition, upper: int) -> TimestampOffset | None:
        """The first of the records below `upper` with the largest timestamp; None without records.

        Raises CorruptObject or StoreError.
        """
        return await retry_if_superseded(lambda: self._of_maximum(partition, upper))

    async def _at_or_after(
        self, partition: Partition, timestamp_ms: int, upper: int
    ) -> TimestampOffset | None:
        log = partition.log
        looked_to = partition.first_offset
        while looked_to < (table_next := log.table_next):
            row = await self._cold.first_since(log, timestamp_ms, looked_to)
            if row is not None:
                return TimestampOffset(row.timestamp_ms, row.offset)
            looked_to = table_next
        for extent in list(log.extents.since_timestamp(timestamp_ms)):
            if extent.base_offset >= upper:
                break
            data = await self._read(log, extent)
            found = await self._offload.run(
                first_at_or_after, data, timestamp_ms, partition.first_offset, upper
            )
            if found is not None:
                return found
        return None

    async def _of_maximum(self, partition: Partition, upper: int) -> TimestampOffset | None:
        log = partition.log
        newest: TimestampOffset | None = None
        looked_to = partition.first_offset
        while looked_to < (table_next := log.table_next):
            row = await self._cold.latest(log, looked_to)
            if row is not None:
                newest = _newer(newest, TimestampOffset(row.timestamp_ms, row.offset))
            looked_to = table_next
        # The newest record of an extent may be a marker, or lie outside of the readable range. Then
        # another extent may hold a newer one, until none can.
        for extent in log.extents.copy(upper).by_max_timestamp():
            if newest is not None and _newer(newest, _best_of(extent)) == newest:
                break
            data = await self._read(log, extent)
            found = await self._offload.run(first_of_newest, data, partition.first_offset, upper)
            newest = _newer(newest, found)
        return newest

    async def _read(self, log: PartitionLog, extent: Extent) -> memoryview:
        try:
            return await self._reader.read_extent(extent)
        except MissingObject as missing:
            raise await self._cold.missing(log, extent) from missing


def first_at_or_after(
    data: Buffer, timestamp_ms: int, lower: int, upper: int
) -> TimestampOffset | None:
    """The first record in [lower, upper) of these batches that is not older than the timestamp."""
    for position, header in iterate_batches(data):
        if header.max_timestamp < timestamp_ms or header.last_offset < lower or header.is_control:
            continue
        if header.base_offset >= upper:
            return None
        batch = memoryview(data)[position : position + header.size_bytes]
        for record in decode_records(batch):
            if record.timestamp >= timestamp_ms and lower <= record.offset < upper:
                return TimestampOffset(record.timestamp, record.offset)
    return None


def _best_of(extent: Extent) -> TimestampOffset:
    """The best result that an extent allows, by its index."""
    return TimestampOffset(extent.max_timestamp, extent.base_offset)


def first_of_newest(data: Buffer, lower: int, upper: int) -> TimestampOffset | None:
    """The first of the records in [lower, upper) of these batches with the largest timestamp."""
    newest: TimestampOffset | None = None
    for position, header in iterate_batches(data):
        if header.last_offset < lower or header.base_offset >= upper or header.is_control:
            continue
        if newest is not None and header.max_timestamp <= newest.timestamp_ms:
            continue
        batch = memoryview(data)[position : position + header.size_bytes]
        for record in decode_records(batch):
            if lower <= record.offset < upper:
                newest = _newer(newest, TimestampOffset(record.timestamp, record.offset))
    return newest


def _newer(one: TimestampOffset | None, other: TimestampOffset | None) -> TimestampOffset | None:
    """The one with the larger timestamp; of equal ones, the first in the log."""
    return max(
        (each for each in (one, other) if each is not None),
        key=lambda each: (each.timestamp_ms, -each.offset),
        default=None,
    )
