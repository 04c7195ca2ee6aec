"""The entries of a slot, as values. Each gives the fields of its row in the index.

Named tuples: one is made for each batch, and a frozen dataclass takes three times as long to make.
"""

from __future__ import annotations

from typing import Final, NamedTuple, TypeAlias

from tidelog.identifiers import LeaderEpoch, TopicPartition
from tidelog.records.batch import CONTROL_FLAG, NO_PRODUCER_ID, NO_SEQUENCE, advance_sequence
from tidelog.storage.object_store import Buffer
from tidelog.wal.log.adoption import AdoptedBatch
from tidelog.wal.log.entries import COMMIT_FLAG, NO_ORDINAL, BatchFields
from tidelog.wal.log.extents import Extent
from tidelog.wal.log.image import PartitionImage

Columns: TypeAlias = tuple[int, ...]
"""The fields of INDEX_DTYPE from base_offset to max_timestamp."""
_UNUSED: Final[Columns] = (
    -1,
    0,
    NO_PRODUCER_ID,
    -1,
    NO_ORDINAL,
    NO_SEQUENCE,
    NO_SEQUENCE,
    0,
    -1,
    -1,
)
"""From last_offset to max_timestamp, in entries that stand for no batch."""


class BatchEntry(NamedTuple):
    """A batch that the partition log has appended at `base_offset`; `data` is all of it."""

    partition: TopicPartition
    leader_epoch: LeaderEpoch
    data: Buffer
    batch: BatchFields
    base_offset: int
    ordinal: int = NO_ORDINAL

    def columns(self) -> Columns:
        batch = self.batch
        first, last = batch.base_sequence, NO_SEQUENCE
        if batch.producer_id != NO_PRODUCER_ID and first != NO_SEQUENCE:
            last = advance_sequence(first, batch.last_offset_delta)
        return _columns(batch, self.base_offset, self.ordinal, first, last, batch.attributes)


class MarkerEntry(NamedTuple):
    """A control batch that ends a transaction."""

    partition: TopicPartition
    leader_epoch: LeaderEpoch
    data: Buffer
    batch: BatchFields
    base_offset: int
    ordinal: int
    commit: bool
    coordinator_epoch: int

    def columns(self) -> Columns:
        batch = self.batch
        assert batch.attributes & CONTROL_FLAG
        flags = batch.attributes | (COMMIT_FLAG if self.commit else 0)
        base, epoch = self.base_offset, self.coordinator_epoch
        return _columns(batch, base, self.ordinal, NO_SEQUENCE, epoch, flags)


class AdoptedEntry(NamedTuple):
    """A batch whose bytes stay where they were staged (H8)."""

    partition: TopicPartition
    leader_epoch: LeaderEpoch
    batch: AdoptedBatch
    base_offset: int
    ordinal: int

    def columns(self) -> Columns:
        batch = self.batch
        flags, base = batch.attributes, self.base_offset
        return _columns(batch, base, self.ordinal, NO_SEQUENCE, NO_SEQUENCE, flags)


class RelocatedEntry(NamedTuple):
    """Batches lie in a merged object from now on."""

    partition: TopicPartition
    leader_epoch: LeaderEpoch
    moved: Extent

    def columns(self) -> Columns:
        moved = self.moved
        return (moved.base_offset, moved.last_offset, *_UNUSED[1:-1], moved.max_timestamp)


class LogStartEntry(NamedTuple):
    """The log begins later from now on."""

    partition: TopicPartition
    leader_epoch: LeaderEpoch
    log_start: int

    def columns(self) -> Columns:
        return (self.log_start, *_UNUSED)


class OpeningEntry(NamedTuple):
    """The image with which a tenure begins (C2); before any other entry of the tenure."""

    image: PartitionImage

    @property
    def partition(self) -> TopicPartition:
        return self.image.partition

    @property
    def leader_epoch(self) -> LeaderEpoch:
        return self.image.leader_epoch

    def columns(self) -> Columns:
        return (self.image.next_offset, *_UNUSED)


SlotEntry: TypeAlias = (
    BatchEntry | MarkerEntry | AdoptedEntry | RelocatedEntry | LogStartEntry | OpeningEntry
)


def _columns(
    batch: BatchFields, base_offset: int, ordinal: int, first: int, last: int, flags: int
) -> Columns:
    """The columns of a batch; `first` and `last` are sequences."""
    return (
        base_offset,
        base_offset + batch.last_offset_delta,
        batch.record_count,
        batch.producer_id,
        batch.producer_epoch,
        ordinal,
        first,
        last,
        flags,
        batch.base_timestamp,
        batch.max_timestamp,
    )
