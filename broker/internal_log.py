"""An internal partition that this broker leads, as its coordinator reads and writes it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence

from tidelog.broker.log_reader import LOADS_AT_ONCE_MAX, LogReader
from tidelog.broker.log_writer import LogWriter
from tidelog.broker.partitions import Partition
from tidelog.coordinator.decision import BatchProducer
from tidelog.errors import CorruptObject
from tidelog.identifiers import Slot
from tidelog.records.batch import BatchHeader
from tidelog.records.buffers import Buffer
from tidelog.records.records import NewRecord, encode_batch
from tidelog.storage.object_store import StoreError
from tidelog.wal.writer import WalWriter


class InternalPartition:
    """The log of `coordinator.runtime.InternalLog`, through the broker's WAL.

    What a coordinator appends is not held up by a full WAL buffer: it is bounded by the requests
    that the broker has in memory, which it leads to.
    """

    def __init__(
        self, partition: Partition, wal: WalWriter, writer: LogWriter, reader: LogReader
    ) -> None:
        self._partition = partition
        self._wal = wal
        self._writer = writer
        self._reader = reader

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to read, and nothing that cannot be."""
        log = self._partition.log
        return self._partition.fault is None and log.log_start == log.next_offset

    def append(
        self, records: Sequence[NewRecord], now_ms: int, producer: BatchProducer | None
    ) -> Slot:
        """Append one batch. The slot counts when it is durable."""
        partition = self._partition
        if producer is None:
            data = encode_batch(records)
            return self._writer.append(partition, data, BatchHeader.parse(data), now_ms).slot
        data = encode_batch(
            records,
            producer_id=producer.producer_id,
            producer_epoch=producer.producer_epoch,
            is_transactional=True,
        )
        header = BatchHeader.parse(data)
        placed = self._writer.append(partition, data, header, now_ms, ordinal=producer.ordinal)
        return placed.slot

    def is_durable(self, slot: Slot) -> bool:
        """Whether the slot is durable."""
        return slot < self._wal.durable_end

    def durable(self, slot: Slot) -> asyncio.Future[None]:
        """Done when the slot is durable."""
        return self._wal.durable(slot)

    async def read(self) -> AsyncIterator[tuple[str, Buffer]]:
        """What is durable now, from the log's start; an object's key and batches at a time."""
        if self._partition.fault is not None:
            raise self._partition.fault
        log = self._partition.log
        extents = list(log.extents.from_offset(log.log_start))
        if extents and extents[0].base_offset > log.log_start:
            raise CorruptObject(
                extents[0].key,
                f"{self._partition} begins at offset {log.log_start}, but what is stored of it"
                f" at {extents[0].base_offset}",
            )
        for start in range(0, len(extents), LOADS_AT_ONCE_MAX):
            group = extents[start : start + LOADS_AT_ONCE_MAX]
            loaded = await self._reader.load(group)
            for extent in group:
                data = loaded[(extent.key, extent.position)]
                if isinstance(data, CorruptObject | StoreError):
                    raise data
                yield extent.key, data
