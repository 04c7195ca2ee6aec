"""A partition's state as one value. A tenure begins with it, and recovery starts from it (D2)."""

from __future__ import annotations

from dataclasses import dataclass

from tidelog.identifiers import LeaderEpoch, TopicPartition
from tidelog.wal.log.extents import Extents
from tidelog.wal.log.leader_epochs import EpochStart
from tidelog.wal.log.producer_state import BATCHES_REMEMBERED, ProducerState
from tidelog.wal.log.transactions import AbortedIndexEntry

_NO_EXTENTS = Extents()
"""Shared by the images of all new partitions, since no image's extents change."""


@dataclass(frozen=True, slots=True)
class PartitionImage:
    """A partition's state as of a point of its log."""

    partition: TopicPartition
    leader_epoch: LeaderEpoch
    next_offset: int
    log_start: int
    table_next: int
    """The first offset that is not in the table. The image holds nothing about lower offsets."""
    leader_epochs: tuple[EpochStart, ...]
    producers: tuple[ProducerState, ...]
    """By ascending producer id."""
    has_forgotten_producers: bool
    """True if the partition ever expired a producer."""
    aborted: tuple[AbortedIndexEntry, ...]
    """Aborted transactions by ascending marker, with a marker at table_next or above."""
    extents: Extents
    """The extents up to next_offset, without a gap. They must not be changed."""

    @classmethod
    def empty(cls, partition: TopicPartition, leader_epoch: LeaderEpoch) -> PartitionImage:
        """The image of a new partition."""
        return cls(partition, leader_epoch, 0, 0, 0, (), (), False, (), _NO_EXTENTS)

    def fault(self) -> str | None:
        """The invariant that the image breaks, or None. The codec checks it on both sides."""
        if not 0 <= self.log_start <= self.next_offset:
            return f"the log start {self.log_start} is not in [0, {self.next_offset}]"
        held_from = max(self.table_next, self.log_start)
        first, following = self.extents.base_offset, self.extents.next_offset
        if first is None or following is None:
            if held_from < self.next_offset:
                return f"no extent holds the offsets from {held_from} to {self.next_offset}"
        elif following != self.next_offset or first > held_from:
            return f"the extents hold [{first}, {following}), not [{held_from}, {self.next_offset})"
        return self._epochs_fault() or self._producers_fault()

    def _epochs_fault(self) -> str | None:
        previous = EpochStart(LeaderEpoch(-1), -1)
        for start in self.leader_epochs:
            if start.leader_epoch <= previous.leader_epoch:
                return f"leader epoch {start.leader_epoch} follows {previous.leader_epoch}"
            if start.start_offset <= previous.start_offset:
                return f"leader epoch {start.leader_epoch} begins at {start.start_offset}"
            previous = start
        if previous.leader_epoch > self.leader_epoch or previous.start_offset > self.next_offset:
            return f"leader epoch {previous.leader_epoch} begins after the image's end"
        return None

    def _producers_fault(self) -> str | None:
        previous = -1
        for producer in self.producers:
            if producer.producer_id <= previous:
                return f"producer {producer.producer_id} follows {previous}"
            if len(producer.batches) > BATCHES_REMEMBERED:
                return f"producer {producer.producer_id} has {len(producer.batches)} batches"
            if producer.transaction_first_offset >= self.next_offset:
                return f"producer {producer.producer_id}'s transaction begins after the end"
            previous = producer.producer_id
        return None
