"""Appends to a partition that this broker leads: to its log and to the WAL in one step.

Every appender (producers, coordinators, markers) uses it. The first entry of a tenure in the WAL is
the partition's image (C2). A partition that has left this broker gets no more appends, even if it
has come back as another object (C3). The calls are synchronous: their order is the order of the
log.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from tidelog.broker.partitions.partitions import Partition, PartitionRegistry
from tidelog.broker.telemetry.limits_met import LimitsMet
from tidelog.identifiers import LeaderEpoch, Offset, Slot, TopicPartition
from tidelog.named_tuples import new_tuple
from tidelog.protocol.error_codes import ErrorCode
from tidelog.records.batch import NO_PRODUCER_ID, BatchHeader
from tidelog.records.buffers import Buffer
from tidelog.records.control import MarkerType, control_batch
from tidelog.wal.log.adoption import AdoptedBatch
from tidelog.wal.log.entries import NO_ORDINAL
from tidelog.wal.log.extents import Extent
from tidelog.wal.log.image import PartitionImage
from tidelog.wal.log.partition_log import AppendedBatch, PartitionLog
from tidelog.wal.log.producer_expiry import ProducerExpiry
from tidelog.wal.log.producer_state import AppendRefused
from tidelog.wal.write.slot_entries import (
    AdoptedEntry,
    BatchEntry,
    LogStartEntry,
    MarkerEntry,
    OpeningEntry,
    RelocatedEntry,
)
from tidelog.wal.write.writer import WalWriter


class WrittenBatch(NamedTuple):
    """A batch's place in the log. The batch counts when `slot` is durable."""

    appended: AppendedBatch
    slot: Slot


class EndedTransaction(NamedTuple):
    """A decided transaction of a producer, as its marker describes it."""

    producer_id: int
    producer_epoch: int
    is_commit: bool
    coordinator_epoch: int
    ordinal: int = NO_ORDINAL
    """NO_ORDINAL if the coordinator is a foreign one (rule H1)."""
    transaction_version: int = 0


PRODUCER_IDS_MAX: Final = "producer.ids.max"


class ProducerRoom:
    """Refuses batches of new producers above producer.ids.max.

    Markers are exempt: the broker must write them. Producers that a predecessor remembered stay.
    """

    def __init__(self, producers: ProducerExpiry, limit: int, limits: LimitsMet) -> None:
        self._producers = producers
        self._limit = limit
        self._limits = limits
        limits.watch(PRODUCER_IDS_MAX, limit, lambda: producers.known)

    def check(self, log: PartitionLog, producer_id: int) -> None:
        """Raise AppendRefused at the limit, unless the partition knows the producer."""
        if producer_id == NO_PRODUCER_ID or self._producers.known < self._limit:
            return
        if log.knows(producer_id):
            return
        why = (
            f"the partitions of this broker remember {self._producers.known} producers; at most"
            f" {self._limit} are accepted"
        )
        self._limits.met(PRODUCER_IDS_MAX, why)
        raise AppendRefused(
            ErrorCode.POLICY_VIOLATION, f"{why} ({PRODUCER_IDS_MAX}); nothing was appended"
        )


class LogWriter:
    """Appends to partitions.

    Each method appends nothing when it raises:

    - AppendRefused: the partition's log refuses the batch;
    - PartitionError: this object no longer is the partition;
    - WalLost, WalClosed: the incarnation has ended.
    """

    def __init__(
        self,
        wal: WalWriter,
        partitions: PartitionRegistry,
        on_opened: Callable[[TopicPartition, LeaderEpoch, Slot], None],
        room: ProducerRoom,
    ) -> None:
        """`on_opened` gets each opened partition and the slot of its image."""
        self._wal = wal
        self._partitions = partitions
        self._on_opened = on_opened
        self._room = room

    def append(
        self,
        partition: Partition,
        data: Buffer,
        header: BatchHeader,
        now_ms: int,
        *,
        ordinal: int = NO_ORDINAL,
        transaction_version: int = 0,
    ) -> WrittenBatch:
        """Append a batch.

        A duplicate of one of the producer's last batches gets the place of the original. It counts
        when everything appended so far is durable.
        """
        log = partition.log
        self._room.check(log, header.producer_id)
        opening = self._opening(partition)
        appended = log.append(
            header, now_ms, ordinal=ordinal, transaction_version=transaction_version
        )
        if appended.duplicate:
            return WrittenBatch(appended, self._wal.newest_slot)
        self._open(partition, opening)
        slot = self._wal.add(
            new_tuple(
                BatchEntry,
                (
                    log.partition,
                    log.leader_epoch,
                    data,
                    header,
                    appended.base_offset,
                    appended.ordinal,
                ),
            )
        )
        return new_tuple(WrittenBatch, (appended, slot))

    def adopt(
        self,
        partition: Partition,
        batches: Sequence[AdoptedBatch],
        now_ms: int,
        *,
        ordinal: int = NO_ORDINAL,
        transaction_version: int = 0,
    ) -> WrittenBatch:
        """Append batches of staged objects, all or none; return the place of the first one.

        `batches` holds at least one batch, and all come from one producer. All go into one slot.
        After the first batch the log cannot refuse the others: they have the same producer, epoch
        and transaction, and no sequences.
        """
        log = partition.log
        opening = self._opening(partition)
        first: AppendedBatch | None = None
        placed: list[AdoptedEntry] = []
        self._room.check(log, batches[0].producer_id)
        for batch in batches:
            appended = log.append(
                batch, now_ms, ordinal=ordinal, transaction_version=transaction_version
            )
            first = first or appended
            placed.append(
                AdoptedEntry(
                    log.partition,
                    log.leader_epoch,
                    batch,
                    appended.base_offset,
                    first.ordinal,
                )
            )
        assert first is not None
        self._open(partition, opening)
        slot = self._wal.add(*placed)
        return WrittenBatch(first, slot)

    def append_marker(
        self, partition: Partition, ended: EndedTransaction, now_ms: int
    ) -> WrittenBatch:
        """Append the marker that ends a transaction in this partition.

        A late duplicate of the marker has no place in the log.
        """
        log = partition.log
        opening = self._opening(partition)
        appended = log.append_marker(
            ended.producer_id,
            ended.producer_epoch,
            commit=ended.is_commit,
            coordinator_epoch=ended.coordinator_epoch,
            ordinal=ended.ordinal,
            now_ms=now_ms,
            transaction_version=ended.transaction_version,
        )
        if appended.duplicate:
            return WrittenBatch(appended, self._wal.newest_slot)
        self._open(partition, opening)
        data = control_batch(
            MarkerType.COMMIT if ended.is_commit else MarkerType.ABORT,
            producer_id=ended.producer_id,
            producer_epoch=ended.producer_epoch,
            coordinator_epoch=ended.coordinator_epoch,
            timestamp=now_ms,
        )
        slot = self._wal.add(
            MarkerEntry(
                log.partition,
                log.leader_epoch,
                data,
                BatchHeader.parse(data),
                appended.base_offset,
                ordinal=appended.ordinal,
                commit=ended.is_commit,
                coordinator_epoch=ended.coordinator_epoch,
            )
        )
        return WrittenBatch(appended, slot)

    def begin_log_at(self, partition: Partition, offset: Offset) -> Slot:
        """Move the log start up to `offset`."""
        log = partition.log
        opening = self._opening(partition)
        if log.set_log_start(offset):
            self._open(partition, opening)
            self._wal.add(LogStartEntry(log.partition, log.leader_epoch, offset))
        return self._wal.newest_slot

    def open(self, partition: Partition) -> None:
        """Write the image that opens the tenure, unless the WAL has it already."""
        self._open(partition, self._opening(partition))

    def relocate(self, partition: Partition, moved: Extent) -> Slot | None:
        """Record that durable batches now lie in a merged object.

        Returns the slot of the WAL entry; None if the log keeps none of the batches any more. No
        checkpoint may be under way.
        """
        log = partition.log
        self.open(partition)
        if not log.relocate(moved):
            return None
        return self._wal.add(RelocatedEntry(log.partition, log.leader_epoch, moved))

    def _open(self, partition: Partition, opening: PartitionImage | None) -> None:
        if opening is not None:
            slot = self._wal.add(OpeningEntry(opening))
            partition.opened = True
            self._partitions.checkpointed.add(partition.log)
            self._on_opened(opening.partition, opening.leader_epoch, slot)

    def _opening(self, partition: Partition) -> PartitionImage | None:
        """The image that the WAL must get first, taken before the log changes; None if it has it.

        Raises PartitionError before anything has changed.
        """
        self._partitions.require(partition)
        return None if partition.opened else partition.log.image()
