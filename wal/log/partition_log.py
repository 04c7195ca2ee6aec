"""The log of one partition: what may be appended, where it lies, how far it may be read.

Pure and synchronous: time is an argument, nothing is read or written. An append is validated,
gets its offsets and takes effect at once; the broker then puts it into the WAL slot being filled.
Nothing is rolled back: if that slot is lost or stays unknown, the incarnation ends and the state is
rebuilt from the bucket. `replay` is that rebuilding, by the same functions, for a recovering broker
and for readers of the bucket alike (rule G3).

What is appended and what is durable are kept apart. Decisions (sequences, epochs, open
transactions) rest on what is appended. What is shown (high watermark, last stable offset, log
start, extents) moves only when `advance` says that a slot is durable (rule H4).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple, Protocol

from tidelog.errors import CorruptObject
from tidelog.identifiers import LeaderEpoch, TopicPartition
from tidelog.records.batch import (
    CONTROL_FLAG,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    NO_TIMESTAMP,
    TRANSACTIONAL_FLAG,
    advance_sequence,
)
from tidelog.wal.log.adoption import Adoption
from tidelog.wal.log.entries import COMMIT_FLAG, NO_ORDINAL, BatchFields, EntryKind, IndexEntry
from tidelog.wal.log.extents import Extent, Extents, SlotEffect, crc_of_batch
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
    """Where a batch is, and the transaction's ordinal that belongs into its index entry.

    A duplicate has the original's place and time and must not be written again; it is answered
    when the original is durable (H4). A duplicate marker has no place (-1).
    """

    base_offset: int
    last_offset: int
    duplicate: bool
    ordinal: int
    max_timestamp: int


class LogWatcher(Protocol):
    """Hears of what happens to logs, so that nobody has to look at those to which nothing does."""

    def changed(self, log: PartitionLog) -> None:
        """It is not what its last image says; told once for each image."""
        ...

    def producers_changed(self, log: PartitionLog, more: int) -> None:
        """It will remember so many more producers, or fewer where negative."""
        ...


class PartitionLog:
    """One partition during one tenure."""

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
        """The log as the image has it; all of it counts as durable."""
        self.partition: TopicPartition = image.partition
        self.leader_epoch: LeaderEpoch = image.leader_epoch
        self.high_watermark = image.next_offset
        """The durable end: offsets below it may be shown."""
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
        """The log as an image has it."""
        return cls(image)

    # What readers may see.

    @property
    def next_offset(self) -> int:
        """The offset that the next record will get (Kafka's log end offset)."""
        return self._next_offset

    @property
    def log_start(self) -> int:
        """The first offset that may be read."""
        return self._log_start_durable

    @property
    def table_next(self) -> int:
        """The next offset not yet in the table, as far as known."""
        return self._table_next

    @property
    def last_stable_offset(self) -> int:
        """The end of what a read_committed reader may see: at least the first offset that may be
        read. A transaction that began below it holds up only what is left of it, as in Kafka."""
        return max(self.first_undecided_offset, self._log_start_durable, self._table_next)

    @property
    def first_undecided_offset(self) -> int:
        """Where the first transaction begins that is open or whose marker is not durable yet; the
        high watermark if there is none."""
        return self._transactions.last_stable_offset(self.high_watermark)

    @property
    def extents(self) -> Extents:
        """Where the durable offsets from the table's end on lie; not to be changed."""
        return self._extents

    @property
    def leader_epochs(self) -> tuple[EpochStart, ...]:
        """Which leader epoch wrote which offsets, from the log's start on."""
        return self._epochs.starts

    @property
    def producers(self) -> Iterator[ProducerState]:
        """The producers known, in no particular order."""
        return iter(self._producers.values())

    @property
    def producer_count(self) -> int:
        """How many producers are known."""
        return len(self._producers)

    def knows(self, producer_id: int) -> bool:
        """Whether the producer is remembered."""
        return producer_id in self._producers

    def is_in_transaction(self, producer_id: int, producer_epoch: int) -> bool:
        """Whether the producer has a transaction open here that it began under this epoch: then
        more of its batches need no verification (KIP-890)."""
        state = self._producers.get(producer_id)
        return state is not None and state.has_open_transaction and state.epoch == producer_epoch

    def aborted_between(self, fetch_offset: int, upper_bound: int) -> list[AbortedIndexEntry]:
        """The aborted transactions that touch [fetch_offset, upper_bound), by their markers; only
        those of what the WAL still holds."""
        return self._transactions.aborted_between(fetch_offset, upper_bound)

    def end_offset_for_epoch(self, leader_epoch: LeaderEpoch) -> tuple[LeaderEpoch, int]:
        """The largest leader epoch up to the one asked for, and the end of what it wrote; (-1, -1)
        if the log knows only older ones (KIP-101, KIP-320)."""
        return self._epochs.end_offset_for(leader_epoch, self.high_watermark)

    def leader_epoch_of(self, offset: int) -> LeaderEpoch:
        """The leader epoch that wrote an offset; for the log's end the last that wrote any, -1
        where none did."""
        return self._epochs.epoch_at(offset)

    @property
    def oldest_producer_ms(self) -> int | None:
        """When that producer last appended which did so longest ago; None if none is known."""
        return min((p.last_timestamp_ms for p in self._producers.values()), default=None)

    def watch(self, watcher: LogWatcher) -> None:
        """Tell this one from now on, and at once if producers are known already."""
        self._watcher = watcher
        if self._producers:
            watcher.producers_changed(self, len(self._producers))

    # What changes the log.

    def begin_tenure(self, leader_epoch: LeaderEpoch) -> None:
        """A new leader epoch begins at the log's end; its image is to be written first (C2)."""
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
        """Append a producer's batch, or recognise it as one of its last five.

        `ordinal`: what the verification with the coordinator said, for the first batch of a
        transaction; NO_ORDINAL admits only batches of the open transaction.
        Raises AppendRefused: 45, 47, 48 by the order of Kafka's checks, 87 for a control batch.
        """
        if batch.attributes & CONTROL_FLAG:
            raise AppendRefused(INVALID_RECORD, "a producer sent a control batch; not appended")
        producer_id = batch.producer_id
        if producer_id != NO_PRODUCER_ID:
            state = self._producers.get(producer_id) or ProducerState.unknown(producer_id)
            first = batch.base_sequence
            duplicate = state.find_duplicate(batch.producer_epoch, first, _last_sequence(batch))
            if duplicate is not None:
                _, _, base_offset, last_offset, max_timestamp = duplicate
                return AppendedBatch(base_offset, last_offset, True, state.ordinal, max_timestamp)
            refuse_if_invalid(
                Attempt(
                    state,
                    batch.producer_epoch,
                    first,
                    bool(batch.attributes & TRANSACTIONAL_FLAG),
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
            RememberedBatch(
                batch.base_sequence,
                _last_sequence(batch),
                base_offset,
                last_offset,
                batch.max_timestamp,
            ),
            bool(batch.attributes & TRANSACTIONAL_FLAG),
            ordinal,
            now_ms,
        )
        return AppendedBatch(base_offset, last_offset, False, ordinal, batch.max_timestamp)

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
        """Append the one record that ends a producer's transaction.

        A marker whose ordinal is decided already is a late duplicate and changes nothing (H1); one
        without an ordinal follows Kafka's rules. Raises AppendRefused: 52 for an older coordinator,
        47 for an older producer epoch, 48 for a transaction that comes after the open one.
        """
        state = self._producers.get(producer_id) or ProducerState.unknown(producer_id)
        attempt = MarkerAttempt(
            state, producer_epoch, coordinator_epoch, ordinal, transaction_version
        )
        refuse_marker_if_invalid(attempt)
        if attempt.is_late_duplicate:
            return AppendedBatch(NO_OFFSET, NO_OFFSET, True, ordinal, NO_TIMESTAMP)
        if ordinal == NO_ORDINAL and state.has_open_transaction:
            ordinal = state.ordinal
        offset = self._next_offset
        self._apply_marker(producer_id, producer_epoch, commit, coordinator_epoch, ordinal, now_ms)
        return AppendedBatch(offset, offset, False, ordinal, now_ms)

    def adopted(self, producer_id: int) -> frozenset[str]:
        """The staged objects of which the producer's open transaction has adopted batches here, by
        their keys, as far as that is durable (H7)."""
        state = self._producers.get(producer_id)
        if state is None or not state.has_open_transaction:
            return frozenset()
        extents = self._extents.from_offset(state.transaction_first_offset)
        return frozenset(
            extent.key
            for extent in extents
            if extent.adoption is not None
            and (extent.adoption.producer_id, extent.adoption.ordinal)
            == (producer_id, state.ordinal)
        )

    def set_log_start(self, offset: int) -> bool:
        """Begin the log at a later offset (DeleteRecords); False if it does already.

        It is shown when the slot with its entry is durable. Raises AppendRefused (1) for an offset
        that is not durable yet.
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
        """Forget producers that have not appended for so long; never with an open transaction."""
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
        """Durable batches lie in a merged object from now on, which is durable too: it holds the
        same bytes. False if none of them is kept here any more.

        It counts at once, not when the slot with its entry is durable: nobody sees a difference.
        The images of a checkpoint that is under way must not see it, as its entry comes later.
        """
        if moved.last_offset >= self.high_watermark:
            raise ValueError(f"{self.partition}: {moved} holds what is not durable")
        if not self._extents.relocate(moved):
            return False
        self._changed()
        return True

    # What becomes durable, or needs no WAL any more.

    def advance(self, slot: SlotEffect) -> None:
        """A slot that holds something of this tenure is durable."""
        assert slot.leader_epoch == self.leader_epoch
        for extent in slot.extents:
            self._extents.append(extent)
            self.high_watermark = extent.last_offset + 1
        self._transactions.advance(self.high_watermark)
        if slot.log_start is not None:
            self._show_log_start(slot.log_start)
        self._changed()

    def advance_table(self, table_next: int) -> None:
        """The table holds everything below; the WAL's part of it is forgotten (E4)."""
        if table_next > self._table_next:
            self._table_next = table_next
            self._extents.drop_below(table_next)
            self._transactions.drop_below(table_next)
            self._changed()

    def image(self) -> PartitionImage:
        """The state with all that is appended; kept until the next change.

        Extents are those of durable slots: `complete` adds the rest when they are durable.
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
        """An image taken from this log before, with the extents of what has become durable since.

        ValueError if what the image counts is not durable yet: it must not be stored.
        """
        if self.high_watermark < image.next_offset:
            raise ValueError(f"{self.partition}: an image ahead of the durable end")
        if image is self._image or image.extents.next_offset == image.next_offset:
            return image
        # What was dropped meanwhile is missing from the extents, so the image must say so.
        return replace(
            image,
            table_next=self._table_next,
            log_start=max(image.log_start, min(self._log_start_durable, image.next_offset)),
            extents=self._extents.copy(image.next_offset),
        )

    def replay(self, entry: IndexEntry, time_ms: int) -> None:
        """Take up an entry of this tenure from a durable slot. `time_ms`: the slot's time.

        Raises CorruptObject if the entry does not continue this log; then the log is of no use.
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
                # The base itself, or the first entry after a checkpoint that has the same state.
                return
        self._changed()

    def _replay_relocated(self, entry: IndexEntry) -> None:
        try:
            self._extents.relocate(_extent_of(entry))
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
        extent = _extent_of(entry)
        # An adopted batch is stamped when it is read, so it never shares an extent.
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


def _extent_of(entry: IndexEntry) -> Extent:
    adoption = None
    if entry.kind is EntryKind.ADOPTED:
        adoption = Adoption(
            entry.producer_id, entry.producer_epoch, entry.ordinal, entry.leader_epoch
        )
    return Extent(
        entry.base_offset,
        entry.last_offset,
        entry.max_timestamp,
        entry.key,
        entry.position,
        entry.length,
        entry.crc if entry.kind is EntryKind.RELOCATED else crc_of_batch(entry.crc),
        adoption,
    )


def _last_sequence(batch: BatchFields) -> int:
    if batch.base_sequence == NO_SEQUENCE:
        return NO_SEQUENCE
    return advance_sequence(batch.base_sequence, batch.last_offset_delta)
