"""The log of one partition: validates appends, and tracks places and readable offsets. Pure.

The log is synchronous: time is an argument, and it does no I/O. An append is validated, gets its
offsets and takes effect at once. The broker then adds it to the open WAL slot. No append is rolled
back: if that slot is lost or its outcome stays unknown, the incarnation ends. The state is then
rebuilt from the bucket. `replay` does so with the same functions, for a recovering broker and for
readers of the bucket (rule G3).

The log separates appended from durable state. Decisions (sequences, epochs, open transactions) use
the appended state. Readers see the durable state: high watermark, last stable offset, log start and
extents. It moves only when `advance` reports a durable slot (rule H4).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple, Protocol

from tidelog.errors import CorruptObject
from tidelog.identifiers import LeaderEpoch, TopicPartition
from tidelog.named_tuples import new_tuple
from tidelog.records.batch import (
    CONTROL_FLAG,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    NO_TIMESTAMP,
    TRANSACTIONAL_FLAG,
    advance_sequence,
)
from tidelog.wal.log.entries import COMMIT_FLAG, NO_ORDINAL, BatchFields, EntryKind, IndexEntry
from tidelog.wal.log.extents import Extent, Extents, SlotEffect
from tidelog.wal.log.image import PartitionImage
from tidelog.wal.log.leader_epochs import EpochStart, LeaderEpochs
from tidelog.wal.log.producer_state import (
    NO_OFFSET,
    AppendRefused,
    Attempt,
    MarkerAttempt,
    ProducerState,
    RememberedBatch,
    after_batch,
    after_marker,
    refuse_if_invalid,
    refuse_marker_if_invalid,
)
from tidelog.wal.log.transactions import AbortedIndexEntry, Transactions

OFFSET_OUT_OF_RANGE = 1
INVALID_RECORD = 87


class AppendedBatch(NamedTuple):
    """The offsets of a batch, and the transaction's ordinal for its index entry.

    A duplicate has the original's offsets and time, and must not be written again. The broker
    answers it when the original is durable (H4). A duplicate marker has no offsets (-1).
    """

    base_offset: int
    last_offset: int
    duplicate: bool
    ordinal: int
    max_timestamp: int


class LogWatcher(Protocol):
    """Gets notified of changes, so that idle logs need no visits."""

    def changed(self, log: PartitionLog) -> None:
        """The log differs from its last image; called once per image."""
        ...

    def producers_changed(self, log: PartitionLog, more: int) -> None:
        """The log will remember `more` additional producers; fewer if `more` is negative."""
        ...


class PartitionLog:
    """The log of one partition during one tenure."""

    __slots__ = (
        "_epochs",
        "_extents",
        "_forgotten",
        "_image",
        "_log_start_appended",
        "_log_start_durable",
        "_next_offset",
        "_producers",
        "_table_next",
        "_transactions",
        "_watcher",
        "high_watermark",
        "leader_epoch",
        "partition",
    )

    def __init__(self, image: PartitionImage) -> None:
        """Start from the image, whose records all count as durable."""
        self.partition: TopicPartition = image.partition
        self.leader_epoch: LeaderEpoch = image.leader_epoch
        self.high_watermark = image.next_offset
        """The durable end: readers may see the offsets below it."""
        self._next_offset = image.next_offset
        self._log_start_appended = image.log_start
        self._log_start_durable = image.log_start
        self._table_next = image.table_next
        self._epochs = LeaderEpochs(image.leader_epochs)
        self._producers = {producer.producer_id: producer for producer in image.producers}
        self._forgotten = image.has_forgotten_producers
        self._transactions = Transactions(
            (
                (producer.producer_id, producer.transaction_first_offset)
                for producer in image.producers
                if producer.has_open_transaction
            ),
            image.aborted,
        )
        self._extents = image.extents.copy()
        self._image: PartitionImage | None = image
        self._watcher: LogWatcher | None = None

    @classmethod
    def from_image(cls, image: PartitionImage) -> PartitionLog:
        """The log in the state of an image."""
        return cls(image)

    # The state that readers may see.

    @property
    def next_offset(self) -> int:
        """The offset that the next record will get (Kafka's log end offset)."""
        return self._next_offset

    @property
    def log_start(self) -> int:
        """The first readable offset."""
        return self._log_start_durable

    @property
    def table_next(self) -> int:
        """The first offset that is not known to be in the table."""
        return self._table_next

    @property
    def last_stable_offset(self) -> int:
        """The end of the offsets that a read_committed reader may see.

        It is never below the first readable offset. As in Kafka, a transaction that began below the
        log start holds back only its remaining records.
        """
        return max(self.first_undecided_offset, self._log_start_durable, self._table_next)

    @property
    def first_undecided_offset(self) -> int:
        """The first offset of the earliest transaction without a durable marker.

        It is the high watermark if there is no such transaction.
        """
        return self._transactions.last_stable_offset(self.high_watermark)

    @property
    def extents(self) -> Extents:
        """The extents of the durable offsets after the table's end. They must not be changed."""
        return self._extents

    @property
    def leader_epochs(self) -> tuple[EpochStart, ...]:
        """The leader epochs with their first offsets, from the log start."""
        return self._epochs.starts

    @property
    def producers(self) -> Iterator[ProducerState]:
        """The remembered producers, in no particular order."""
        return iter(self._producers.values())

    @property
    def producer_count(self) -> int:
        """The number of remembered producers."""
        return len(self._producers)

    def knows(self, producer_id: int) -> bool:
        """True if the log remembers the producer."""
        return producer_id in self._producers

    def is_in_transaction(self, producer_id: int, producer_epoch: int) -> bool:
        """True if the producer has an open transaction here that it began under this epoch.

        Its further batches then need no verification (KIP-890).
        """
        state = self._producers.get(producer_id)
        return state is not None and state.has_open_transaction and state.epoch == producer_epoch

    def aborted_between(self, fetch_offset: int, upper_bound: int) -> list[AbortedIndexEntry]:
        """The aborted transactions that overlap [fetch_offset, upper_bound), by their markers.

        It knows only transactions whose markers are not in the table.
        """
        return self._transactions.aborted_between(fetch_offset, upper_bound)

    def end_offset_for_epoch(self, leader_epoch: LeaderEpoch) -> tuple[LeaderEpoch, int]:
        """The largest leader epoch up to `leader_epoch`, and the offset after its last record.

        It is (-1, -1) if the log knows only older epochs (KIP-101, KIP-320).
        """
        return self._epochs.end_offset_for(leader_epoch, self.high_watermark)

    def leader_epoch_of(self, offset: int) -> LeaderEpoch:
        """The leader epoch that wrote an offset; -1 if none did.

        For the log end offset it is the last epoch that wrote a record.
        """
        return self._epochs.epoch_at(offset)

    @property
    def oldest_producer_ms(self) -> int | None:
        """The last append time of the producer that appended least recently; None without one."""
        return min((p.last_timestamp_ms for p in self._producers.values()), default=None)

    def watch(self, watcher: LogWatcher) -> None:
        """Notify `watcher` from now on, and at once if the log knows producers already."""
        self._watcher = watcher
        if self._producers:
            watcher.producers_changed(self, len(self._producers))

    # Changes of the log.

    def begin_tenure(self, leader_epoch: LeaderEpoch) -> None:
        """Begin a leader epoch at the log end. The caller writes its image first (C2)."""
        self._epochs.begin(leader_epoch, self._next_offset)
        self.leader_epoch = leader_epoch
        self._changed()

    def append(
        self,
        batch: BatchFields,
        now_ms: int,
        *,
        ordinal: int = NO_ORDINAL,
        transaction_version: int = 0,
    ) -> AppendedBatch:
        """Append a producer's batch, or recognise a duplicate of its last five batches.

        `ordinal`: the transaction's ordinal from the coordinator's verification, for the first
        batch of a transaction. With NO_ORDINAL only batches of the open transaction are valid.
        Raises AppendRefused: 45, 47, 48 in the order of Kafka's checks, 87 for a control batch.
        """
        if batch.attributes & CONTROL_FLAG:
            raise AppendRefused(INVALID_RECORD, "a producer sent a control batch; not appended")
        producer_id = batch.producer_id
        last_sequence = _last_sequence(batch)
        is_transactional = bool(batch.attributes & TRANSACTIONAL_FLAG)
        if producer_id != NO_PRODUCER_ID:
            state = self._producers.get(producer_id) or ProducerState.unknown(producer_id)
            epoch, first = batch.producer_epoch, batch.base_sequence
            if not state.is_continued_by(epoch, first, is_transactional, ordinal):
                duplicate = state.find_duplicate(epoch, first, last_sequence)
                if duplicate is not None:
                    _, _, base_offset, last_offset, max_timestamp = duplicate
                    return AppendedBatch(
                        base_offset, last_offset, True, state.ordinal, max_timestamp
                    )
                refuse_if_invalid(
                    Attempt(
                        state,
                        epoch,
                        first,
                        is_transactional,
                        ordinal,
                        transaction_version,
                        self._forgotten,
                    )
                )
            if state.has_open_transaction:
                ordinal = state.ordinal
        base_offset = self._next_offset
        last_offset = base_offset + batch.last_offset_delta
        self._apply_batch(
            producer_id,
            batch.producer_epoch,
            new_tuple(
                RememberedBatch,
                (
                    batch.base_sequence,
                    last_sequence,
                    base_offset,
                    last_offset,
                    batch.max_timestamp,
                ),
            ),
            is_transactional,
            ordinal,
            now_ms,
        )
        return new_tuple(
            AppendedBatch, (base_offset, last_offset, False, ordinal, batch.max_timestamp)
        )

    def append_marker(
        self,
        producer_id: int,
        producer_epoch: int,
        *,
        commit: bool,
        coordinator_epoch: int,
        ordinal: int,
        now_ms: int,
        transaction_version: int = 0,
    ) -> AppendedBatch:
        """Append the marker that ends a producer's transaction.

        A marker whose ordinal already has a marker is a late duplicate and changes nothing (H1). A
        marker without an ordinal follows Kafka's rules. Raises AppendRefused: 52 for an older
        coordinator, 47 for an older producer epoch, 48 for a transaction after the open one, 87
        without a producer.
        """
        state = self._producers.get(producer_id) or ProducerState.unknown(producer_id)
        attempt = MarkerAttempt(
            state, producer_epoch, coordinator_epoch, ordinal, transaction_version
        )
        refuse_marker_if_invalid(attempt)
        if producer_id < 0 or producer_epoch < 0:
            # No image could hold the producer, so no checkpoint could be written any more.
            why = f"a marker names producer {producer_id}, epoch {producer_epoch}; not appended"
            raise AppendRefused(INVALID_RECORD, why)
        if attempt.is_late_duplicate:
            return AppendedBatch(NO_OFFSET, NO_OFFSET, True, ordinal, NO_TIMESTAMP)
        if ordinal == NO_ORDINAL and state.has_open_transaction:
            ordinal = state.ordinal
        offset = self._next_offset
        self._apply_marker(producer_id, producer_epoch, commit, coordinator_epoch, ordinal, now_ms)
        return AppendedBatch(offset, offset, False, ordinal, now_ms)

    def adopted(self, producer_id: int, producer_epoch: int) -> frozenset[str]:
        """The keys of staged objects whose batches the producer's open transaction adopted here.

        Only durable adoptions count, and only a transaction of this epoch (H7). A former leader may
        still have an earlier one open, which its successor has ended.
        """
        if not self.is_in_transaction(producer_id, producer_epoch):
            return frozenset()
        state = self._producers[producer_id]
        extents = self._extents.from_offset(state.transaction_first_offset)
        return frozenset(
            extent.key
            for extent in extents
            if extent.adoption is not None
            and (extent.adoption.producer_id, extent.adoption.ordinal)
            == (producer_id, state.ordinal)
        )

    def set_log_start(self, offset: int) -> bool:
        """Raise the log start (DeleteRecords); False if it is that high already.

        Readers see it when the slot with its entry is durable. Raises AppendRefused (1) for an
        offset that is not durable yet.
        """
        if not 0 <= offset <= self.high_watermark:
            raise AppendRefused(
                OFFSET_OUT_OF_RANGE,
                f"offset {offset} is not in [0, {self.high_watermark}]; nothing was deleted",
            )
        if offset <= self._log_start_appended:
            return False
        self._log_start_appended = offset
        self._changed()
        return True

    def expire_producers(self, now_ms: int, expiration_ms: int) -> int:
        """Forget producers without an open transaction or a recent append; their number."""
        expired = [
            producer.producer_id
            for producer in self._producers.values()
            if not producer.has_open_transaction
            and now_ms - producer.last_timestamp_ms >= expiration_ms
        ]
        for producer_id in expired:
            del self._producers[producer_id]
        if expired:
            self._forgotten = True
            self._changed()
            if self._watcher is not None:
                self._watcher.producers_changed(self, -len(expired))
        return len(expired)

    def relocate(self, moved: Extent) -> bool:
        """Move durable batches to a durable merged object with the same bytes.

        False if the log holds none of them any more. The move takes effect at once, before the slot
        with its entry is durable, since readers get the same bytes. It must not run while a
        checkpoint is being written: its entry comes after the checkpoint's slot.
        """
        if moved.last_offset >= self.high_watermark:
            raise ValueError(f"{self.partition}: {moved} holds offsets that are not durable")
        if not self._extents.relocate(moved):
            return False
        self._changed()
        return True

    # Durable slots, the table, and images.

    def advance(self, slot: SlotEffect) -> None:
        """Apply the effect of a durable slot on this tenure."""
        assert slot.leader_epoch == self.leader_epoch
        for extent in slot.extents:
            self._extents.append(extent)
            self.high_watermark = extent.last_offset + 1
        self._transactions.advance(self.high_watermark)
        if slot.log_start is not None:
            self._show_log_start(slot.log_start)
        self._changed()

    def advance_table(self, table_next: int) -> None:
        """Forget the WAL's extents below `table_next`, since the table holds them (E4)."""
        if table_next > self._table_next:
            self._table_next = table_next
            self._extents.drop_below(table_next)
            self._transactions.drop_below(table_next)
            self._changed()

    def image(self) -> PartitionImage:
        """The state with all appended records; cached until the next change.

        Its extents are those of durable slots. `complete` adds the others when they are durable.
        """
        if self._image is None:
            self._image = PartitionImage(
                partition=self.partition,
                leader_epoch=self.leader_epoch,
                next_offset=self._next_offset,
                log_start=self._log_start_appended,
                table_next=self._table_next,
                leader_epochs=self._epochs.starts,
                producers=tuple(self._producers[p] for p in sorted(self._producers)),
                has_forgotten_producers=self._forgotten,
                aborted=self._transactions.aborted,
                extents=self._extents.copy(),
            )
        return self._image

    def complete(self, image: PartitionImage) -> PartitionImage:
        """An earlier image of this log, with the extents that became durable since.

        ValueError if the image is ahead of the durable end: it must not be stored.
        """
        if self.high_watermark < image.next_offset:
            raise ValueError(f"{self.partition}: an image ahead of the durable end")
        if image is self._image or image.extents.next_offset == image.next_offset:
            return image
        # Extents that were dropped meanwhile are missing, so the image needs the new bounds.
        return replace(
            image,
            table_next=self._table_next,
            log_start=max(image.log_start, min(self._log_start_durable, image.next_offset)),
            extents=self._extents.copy(image.next_offset),
        )

    def replay(self, entry: IndexEntry, time_ms: int) -> None:
        """Apply an entry of this tenure from a durable slot. `time_ms`: the slot's time.

        Raises CorruptObject if the entry does not continue this log. The log is then unusable.
        """
        match entry.kind:
            case EntryKind.BATCH | EntryKind.ADOPTED:
                self._replay_batch(entry, time_ms)
            case EntryKind.LOG_START:
                self._log_start_appended = max(self._log_start_appended, entry.base_offset)
                self._show_log_start(self._log_start_appended)
            case EntryKind.RELOCATED:
                self._replay_relocated(entry)
            case EntryKind.OPENING if entry.base_offset != self._next_offset:
                raise CorruptObject(
                    entry.key,
                    f"{self.partition}: a tenure opens at offset {entry.base_offset}, not at"
                    f" {self._next_offset}",
                )
            case EntryKind.OPENING:
                # The image that recovery started from, or one equal to its checkpoint.
                return
        self._changed()

    def _replay_relocated(self, entry: IndexEntry) -> None:
        try:
            self._extents.relocate(Extent.of(entry))
        except ValueError as error:
            raise CorruptObject(entry.key, f"{self.partition}: {error}") from None

    def _replay_batch(self, entry: IndexEntry, time_ms: int) -> None:
        if entry.base_offset != self._next_offset or entry.last_offset < entry.base_offset:
            raise CorruptObject(
                entry.key,
                f"{self.partition}: offsets [{entry.base_offset}, {entry.last_offset}] follow"
                f" {self._next_offset - 1}",
            )
        if entry.flags & CONTROL_FLAG:
            self._apply_marker(
                entry.producer_id,
                entry.producer_epoch,
                bool(entry.flags & COMMIT_FLAG),
                entry.last_sequence,
                entry.ordinal,
                time_ms,
            )
        else:
            self._apply_batch(
                entry.producer_id,
                entry.producer_epoch,
                RememberedBatch(
                    entry.first_sequence,
                    entry.last_sequence,
                    entry.base_offset,
                    entry.last_offset,
                    entry.max_timestamp,
                ),
                bool(entry.flags & TRANSACTIONAL_FLAG),
                entry.ordinal,
                time_ms,
            )
        extent = Extent.of(entry)
        # An adopted batch gets its offsets at each read, so it never shares an extent.
        if entry.kind is EntryKind.BATCH:
            self._extents.append_batch(extent, entry.crc)
        else:
            self._extents.append(extent)
        self.high_watermark = self._next_offset
        self._transactions.advance(self.high_watermark)

    def _apply_batch(
        self,
        producer_id: int,
        producer_epoch: int,
        batch: RememberedBatch,
        is_transactional: bool,
        ordinal: int,
        now_ms: int,
    ) -> None:
        self._next_offset = batch.last_offset + 1
        self._changed()
        if producer_id == NO_PRODUCER_ID:
            return
        state = self._producers.get(producer_id) or ProducerState.unknown(producer_id)
        first_offset = state.transaction_first_offset
        if is_transactional and first_offset == NO_OFFSET:
            first_offset = batch.base_offset
            self._transactions.begin(producer_id, first_offset)
        self._expect_producer(producer_id)
        self._producers[producer_id] = after_batch(
            state, producer_epoch, batch, first_offset, max(ordinal, state.ordinal), now_ms
        )

    def _apply_marker(
        self,
        producer_id: int,
        producer_epoch: int,
        commit: bool,
        coordinator_epoch: int,
        ordinal: int,
        now_ms: int,
    ) -> None:
        state = self._producers.get(producer_id) or ProducerState.unknown(producer_id)
        # A marker of a transaction without data here only advances the epoch.
        if state.has_open_transaction:
            self._transactions.complete(producer_id, self._next_offset, commit)
        self._expect_producer(producer_id)
        self._producers[producer_id] = after_marker(
            state, producer_epoch, coordinator_epoch, ordinal, now_ms
        )
        self._next_offset += 1
        self._changed()

    def _expect_producer(self, producer_id: int) -> None:
        if producer_id not in self._producers and self._watcher is not None:
            self._watcher.producers_changed(self, 1)

    def _changed(self) -> None:
        if self._image is not None:
            self._image = None
            if self._watcher is not None:
                self._watcher.changed(self)

    def _show_log_start(self, log_start: int) -> None:
        self._log_start_durable = max(self._log_start_durable, log_start)
        self._extents.drop_below(log_start)
        self._epochs.drop_below(log_start)


def _last_sequence(batch: BatchFields) -> int:
    if batch.base_sequence == NO_SEQUENCE:
        return NO_SEQUENCE
    return advance_sequence(batch.base_sequence, batch.last_offset_delta)
