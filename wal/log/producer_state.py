"""A partition's state of a producer, and the rules that validate its batches and markers."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from tidelog.errors import Refused
from tidelog.named_tuples import new_tuple
from tidelog.records.batch import NO_PRODUCER_EPOCH, NO_SEQUENCE, SEQUENCE_MAX
from tidelog.wal.log.entries import NO_ORDINAL

BATCHES_REMEMBERED = 5
"""The most batches that an idempotent producer has in flight; each retry is recognised."""
NO_OFFSET = -1
NO_COORDINATOR_EPOCH = -1
TRANSACTION_VERSION_2 = 2
"""The `transaction.version` from which each transaction has an epoch of its own (KIP-890)."""

OUT_OF_ORDER_SEQUENCE_NUMBER = 45
INVALID_PRODUCER_EPOCH = 47
INVALID_TXN_STATE = 48
TRANSACTION_COORDINATOR_FENCED = 52


class AppendRefused(Refused):
    """The log refused a batch or marker and has not changed. `error_code` is Kafka's."""

    def __init__(self, error_code: int, message: str) -> None:
        super().__init__(message)
        self.error_code = error_code


class RememberedBatch(NamedTuple):
    """One of a producer's last batches."""

    first_sequence: int
    last_sequence: int
    base_offset: int
    last_offset: int
    max_timestamp: int


class ProducerState(NamedTuple):
    """The state of a producer in a partition. Immutable: a change makes a new value."""

    producer_id: int
    epoch: int
    coordinator_epoch: int
    """The highest coordinator epoch of a marker, or NO_COORDINATOR_EPOCH."""
    batches: tuple[RememberedBatch, ...]
    """The last BATCHES_REMEMBERED batches of this epoch, oldest first."""
    ordinal: int
    """The newest transaction's number (H1), or NO_ORDINAL."""
    transaction_first_offset: int
    """The first offset of the open transaction, or NO_OFFSET."""
    last_timestamp_ms: int
    """When the producer last appended here."""

    @classmethod
    def unknown(cls, producer_id: int) -> ProducerState:
        """The state of a producer that the partition does not remember."""
        return cls(
            producer_id, NO_PRODUCER_EPOCH, NO_COORDINATOR_EPOCH, (), NO_ORDINAL, NO_OFFSET, 0
        )

    @property
    def is_unknown(self) -> bool:
        return self.epoch == NO_PRODUCER_EPOCH

    @property
    def has_open_transaction(self) -> bool:
        return self.transaction_first_offset != NO_OFFSET

    @property
    def last_sequence(self) -> int:
        return self.batches[-1].last_sequence if self.batches else NO_SEQUENCE

    def is_continued_by(
        self, epoch: int, first_sequence: int, is_transactional: bool, ordinal: int
    ) -> bool:
        """Whether a batch simply follows the last one: it is no duplicate, and breaks no rule of
        REFUSALS.

        So it is with nearly every batch. The arguments are those of Attempt.
        """
        last = self.batches[-1].last_sequence if self.batches else NO_SEQUENCE
        return (
            epoch == self.epoch != NO_PRODUCER_EPOCH
            and first_sequence == (0 if last == SEQUENCE_MAX else last + 1)
            and is_transactional == (self.transaction_first_offset != NO_OFFSET)
            and ordinal == NO_ORDINAL
        )

    def find_duplicate(self, epoch: int, first: int, last: int) -> RememberedBatch | None:
        """The newest remembered batch with exactly these sequences."""
        if epoch != self.epoch:
            return None
        for batch in reversed(self.batches):
            if batch.first_sequence == first and batch.last_sequence == last:
                return batch
        return None


class Attempt(NamedTuple):
    """A batch to append, and the state of its producer."""

    state: ProducerState
    epoch: int
    first_sequence: int
    """NO_SEQUENCE for a batch that a coordinator writes or adopts, which is sent only once."""
    is_transactional: bool
    ordinal: int
    """The transaction's ordinal from the verification, or NO_ORDINAL without one."""
    transaction_version: int
    has_forgotten_producers: bool
    """True if the partition ever expired a producer. If not, an unknown producer never wrote."""


def is_unverified(a: Attempt) -> bool:
    """A transactional batch opens a transaction here that no coordinator has verified."""
    return a.is_transactional and not a.state.has_open_transaction and a.ordinal == NO_ORDINAL


def is_other_transaction(a: Attempt) -> bool:
    """The verified transaction is not the one that is open here, or is over."""
    # The verification may be late: its transaction has ended meanwhile (A-B-A).
    if not a.is_transactional or a.ordinal == NO_ORDINAL:
        return False
    if a.state.has_open_transaction:
        return a.ordinal != a.state.ordinal
    return a.ordinal <= a.state.ordinal


def is_fenced(a: Attempt) -> bool:
    """A newer epoch of the producer has written."""
    return a.epoch < a.state.epoch


def begins_late(a: Attempt) -> bool:
    """An unknown producer does not begin at sequence 0."""
    # An unknown producer with a later sequence has earlier batches in flight, unless the partition
    # may have forgotten it. Under TV2 a producer always begins at 0 again.
    if a.first_sequence == NO_SEQUENCE:
        return False
    certain = not a.has_forgotten_producers or a.transaction_version >= TRANSACTION_VERSION_2
    return a.state.is_unknown and a.first_sequence != 0 and certain


def begins_epoch_late(a: Attempt) -> bool:
    """A new epoch does not begin at sequence 0."""
    begins = not a.state.is_unknown and a.epoch > a.state.epoch
    return begins and a.first_sequence not in (0, NO_SEQUENCE)


def is_out_of_order(a: Attempt) -> bool:
    """The sequence does not follow the last one of its epoch."""
    if a.state.is_unknown or a.epoch != a.state.epoch or a.first_sequence == NO_SEQUENCE:
        return False
    last = a.state.last_sequence
    following = 0 if last == SEQUENCE_MAX else last + 1
    return a.first_sequence != following


def interrupts_transaction(a: Attempt) -> bool:
    """A plain batch arrives while the producer's transaction is open."""
    return not a.is_transactional and a.state.has_open_transaction


REFUSALS: tuple[tuple[Callable[[Attempt], bool], int, str], ...] = (
    (is_unverified, INVALID_TXN_STATE, "the partition is in no transaction of the producer"),
    (is_other_transaction, INVALID_TXN_STATE, "the transaction is over, or another is open"),
    (is_fenced, INVALID_PRODUCER_EPOCH, "a newer epoch of the producer has written"),
    (begins_late, OUT_OF_ORDER_SEQUENCE_NUMBER, "an unknown producer must begin at 0"),
    (begins_epoch_late, OUT_OF_ORDER_SEQUENCE_NUMBER, "a new epoch must begin at 0"),
    (is_out_of_order, OUT_OF_ORDER_SEQUENCE_NUMBER, "the sequence does not follow the last one"),
    (interrupts_transaction, INVALID_TXN_STATE, "the producer's transaction is still open"),
)
"""The refusals of a batch, in the order of Kafka's checks, which follow duplicate detection."""


def refuse_if_invalid(attempt: Attempt) -> None:
    """Raise AppendRefused by the first rule that the attempt breaks."""
    for is_broken, error_code, why in REFUSALS:
        if is_broken(attempt):
            state = attempt.state
            raise AppendRefused(
                error_code,
                f"producer {state.producer_id}, epoch {attempt.epoch}, sequence"
                f" {attempt.first_sequence}: {why} (known: epoch {state.epoch}, last sequence"
                f" {state.last_sequence}); nothing was appended",
            )


class MarkerAttempt(NamedTuple):
    """A marker to append, and the state of its producer."""

    state: ProducerState
    epoch: int
    coordinator_epoch: int
    ordinal: int
    """The transaction's number. A foreign tool sends NO_ORDINAL, and Kafka's rules apply."""
    transaction_version: int

    @property
    def is_late_duplicate(self) -> bool:
        """True if the transaction has ended here (H1)."""
        if self.ordinal == NO_ORDINAL:
            return False
        if self.state.has_open_transaction:
            return self.ordinal < self.state.ordinal
        return self.ordinal <= self.state.ordinal


def is_of_older_coordinator(m: MarkerAttempt) -> bool:
    """A newer epoch of the coordinator has sent a marker."""
    return m.coordinator_epoch < m.state.coordinator_epoch


def is_of_older_epoch(m: MarkerAttempt) -> bool:
    """The marker's producer epoch is older, or is the open transaction's own under TV2."""
    if m.is_late_duplicate:
        return False
    # Under TV2 a marker has the next epoch. The same epoch is a retry if the transaction has ended.
    own_epoch = m.transaction_version >= TRANSACTION_VERSION_2 and m.state.has_open_transaction
    return m.epoch < m.state.epoch or (own_epoch and m.epoch == m.state.epoch)


def is_of_later_transaction(m: MarkerAttempt) -> bool:
    """An earlier transaction than the marker's is open."""
    return m.state.has_open_transaction and m.ordinal > m.state.ordinal


MARKER_REFUSALS: tuple[tuple[Callable[[MarkerAttempt], bool], int, str], ...] = (
    (is_of_older_coordinator, TRANSACTION_COORDINATOR_FENCED, "a newer coordinator has written"),
    (is_of_older_epoch, INVALID_PRODUCER_EPOCH, "the partition knows a newer epoch"),
    (is_of_later_transaction, INVALID_TXN_STATE, "an earlier transaction is open"),
)
"""The refusals of a marker, in the order of Kafka's checks."""


def refuse_marker_if_invalid(attempt: MarkerAttempt) -> None:
    """Raise AppendRefused by the first rule that the attempt breaks."""
    for is_broken, error_code, why in MARKER_REFUSALS:
        if is_broken(attempt):
            state = attempt.state
            raise AppendRefused(
                error_code,
                f"marker of producer {state.producer_id}, epoch {attempt.epoch}, transaction"
                f" {attempt.ordinal}, by coordinator epoch {attempt.coordinator_epoch}: {why}"
                f" (known: epoch {state.epoch}, transaction {state.ordinal}, coordinator epoch"
                f" {state.coordinator_epoch}); nothing was appended",
            )


def after_batch(
    state: ProducerState,
    epoch: int,
    batch: RememberedBatch,
    transaction_first_offset: int,
    ordinal: int,
    now_ms: int,
) -> ProducerState:
    """The state after a batch; a batch without sequences (H8) is not remembered."""
    batches = state.batches if epoch == state.epoch else ()
    if batch.first_sequence != NO_SEQUENCE:
        batches = (*batches[1 - BATCHES_REMEMBERED :], batch)
    return new_tuple(
        ProducerState,
        (
            state.producer_id,
            epoch,
            state.coordinator_epoch,
            batches,
            ordinal,
            transaction_first_offset,
            now_ms,
        ),
    )


def after_marker(
    state: ProducerState, epoch: int, coordinator_epoch: int, ordinal: int, now_ms: int
) -> ProducerState:
    """The state after a marker, which ends an open transaction."""
    return ProducerState(
        state.producer_id,
        epoch,
        coordinator_epoch,
        state.batches if epoch == state.epoch else (),
        max(state.ordinal, ordinal),
        NO_OFFSET,
        now_ms,
    )
