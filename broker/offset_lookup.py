"""Finds offsets by timestamp in a partition's durable log (KIP-79, KIP-734)."""

from __future__ import annotations

from typing import NamedTuple

from tidelog.broker.log_reader import LogReader
from tidelog.broker.partitions import Partition
from tidelog.offload import Offload
from tidelog.records.batch import iterate_batches
from tidelog.records.buffers import Buffer
from tidelog.records.records import decode_records


class TimestampOffset(NamedTuple):
    """A record's place in time and in the log."""

    timestamp_ms: int
    offset: int


class OffsetLookup:
    """Looks into the batches that the extents' maximum timestamps point to."""

    def __init__(self, reader: LogReader, offload: Offload) -> None:
        self._reader = reader
        self._offload = offload

    async def at_or_after(
        self, partition: Partition, timestamp_ms: int, upper: int
    ) -> TimestampOffset | None:
        """The first record below `upper` that is not older than the timestamp; None if there is
        none. Raises CorruptObject or StoreError."""
        log = partition.log
        for extent in list(log.extents.since_timestamp(timestamp_ms)):
            if extent.base_offset >= upper:
                break
            data = await self._reader.read_extent(extent)
            found = await self._offload.run(
                first_at_or_after, data, timestamp_ms, log.log_start, upper
            )
            if found is not None:
                return found
        return None

    async def of_maximum(self, partition: Partition) -> TimestampOffset | None:
        """The first of the records with the largest timestamp; None where there is none."""
        log = partition.log
        extent = log.extents.of_max_timestamp()
        if extent is None or log.high_watermark <= log.log_start:
            return None
        return await self.at_or_after(partition, extent.max_timestamp, log.high_watermark)


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
