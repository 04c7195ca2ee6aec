"""An internal partition of this broker, as its coordinator reads and writes it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence

from tidelog.broker.partitions.log_writer import LogWriter
from tidelog.broker.partitions.partitions import Partition
from tidelog.broker.read.wal_tier import LogReader
from tidelog.coordinator.decision import BatchProducer
from tidelog.coordinator.snapshot_format import SnapshotOrigin
from tidelog.errors import CorruptObject, MissingObject, TidelogError
from tidelog.identifiers import Slot
from tidelog.records.batch import BatchHeader
from tidelog.records.buffers import Buffer
from tidelog.records.records import NewRecord, encode_batch
from tidelog.storage.object_store import StoreError
from tidelog.wal.read.read_plan import windows
from tidelog.wal.write.writer import WalWriter

_EXTENTS_AT_ONCE_MAX = 64
_BYTES_AT_ONCE_MAX = 256 * 1024
"""So many extents and bytes, or one larger extent, are read and decoded at once.

A coordinator's log may have thousands of small extents. On a busy machine each turn of the worker
that decodes them may cost some milliseconds.
"""


class InternalPartition:
    """The log of `coordinator.runtime.InternalLog`, through the broker's WAL.

    A coordinator's appends do not wait for a full WAL buffer. The requests in the broker's memory
    bound them.
    """

    def __init__(
        self,
        partition: Partition,
        origin: SnapshotOrigin,
        wal: WalWriter,
        writer: LogWriter,
        reader: LogReader,
    ) -> None:
        """`origin` identifies the partition's snapshots."""
        self._partition = partition
        self._origin = origin
        self._wal = wal
        self._writer = writer
        self._reader = reader

    @property
    def is_empty(self) -> bool:
        """Whether the log is sound and never got an append."""
        return self._partition.fault is None and self._partition.log.next_offset == 0

    @property
    def fault(self) -> CorruptObject | None:
        """Why the log can be neither read nor appended to."""
        return self._partition.fault

    @property
    def next_offset(self) -> int:
        """The offset behind the last appended record."""
        return self._partition.log.next_offset

    @property
    def newest_slot(self) -> Slot:
        """Once this slot is durable, every append so far is."""
        return self._wal.newest_slot

    def append(
        self, records: Sequence[NewRecord], now_ms: int, producer: BatchProducer | None
    ) -> Slot:
        """Append one batch. The batch counts when the slot is durable."""
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
        return slot < self._wal.durable_end

    def durable(self, slot: Slot) -> asyncio.Future[None]:
        """Done when the slot is durable."""
        return self._wal.durable(slot)

    def tell(self, slot: Slot, told: Callable[[TidelogError | None], None]) -> None:
        """Call `told` when the slot is durable, or with the error that leaves that unknown."""
        self._wal.tell(slot, told, is_producer=False)

    def superseded_below(self, offset: int) -> None:
        """Release the records below the offset: a snapshot of the state has replaced them.

        Parked fetches wake.
        """
        self._partition.log.advance_table(offset)
        self._partition.readers.wake_all()

    async def read(self, offset: int) -> AsyncGenerator[Sequence[tuple[str, Buffer]], None]:
        """The durable records, from the object that holds `offset` on.

        Yields the keys and batches of some objects at a time. Raises CorruptObject (MissingObject
        if records before the log's first extent are needed) or StoreError.
        """
        log = self._partition.log
        extents = list(log.extents.from_offset(offset))
        begins_at = extents[0].base_offset if extents else log.next_offset
        if begins_at > offset:
            raise MissingObject(
                self._origin.key(begins_at),
                f"it is missing: the stored log of {self._partition} begins at offset"
                f" {begins_at}, and no snapshot of its state reaches further than {offset}",
            )
        for group in windows(extents, _BYTES_AT_ONCE_MAX, _EXTENTS_AT_ONCE_MAX):
            loaded = await self._reader.load(group)
            found: list[tuple[str, Buffer]] = []
            for extent in group:
                data = loaded[extent.place]
                if isinstance(data, CorruptObject | StoreError):
                    raise data
                found.append((extent.key, data))
            yield found
