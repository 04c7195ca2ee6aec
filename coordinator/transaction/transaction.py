"""A transactional id's producer and its newest transaction: a value and its transitions.

Every change is one record. Each method makes the next value, and asserts that the transition is
legal. The state must be a legal successor. The identity must stay, go one epoch up, or start at
epoch 0 of a new producer id.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from tidelog.coordinator.transaction.states import TransactionState, may_follow
from tidelog.identifiers import ProducerEpoch, ProducerId
from tidelog.records.batch import NO_PRODUCER_EPOCH, NO_PRODUCER_ID

FIRST_EPOCH: Final = ProducerEpoch(0)
NO_EPOCH: Final = ProducerEpoch(NO_PRODUCER_EPOCH)
NO_ID: Final = ProducerId(NO_PRODUCER_ID)
EPOCH_MAX: Final = ProducerEpoch(2**15 - 1)
"""No producer gets this epoch, so a producer with the epoch below can always be fenced."""
NOT_BEGUN: Final = -1
NO_TRANSACTION: Final = 0
"""The ordinal before the first transaction."""
OWN_EPOCHS_FROM: Final = 2
"""The `transaction.version` from which each transaction has an epoch of its own (KIP-890)."""


class EnlistedPartition(NamedTuple):
    """A partition in a transaction."""

    topic: str
    partition: int


class InvalidTransactionTransition(AssertionError):
    """A programmer's error: an illegal transition of a transaction."""

    def __init__(self, before: Transaction, after: Transaction) -> None:
        super().__init__(f"{before} cannot become {after}")


def is_exhausted(epoch: int) -> bool:
    return epoch >= EPOCH_MAX - 1


class Transaction(NamedTuple):
    """The stored state of a transactional id. Times in ms since 1970.

    A named tuple: a frozen dataclass takes three times as long to copy, and each transaction is
    copied three times.
    """

    producer_id: ProducerId
    producer_epoch: ProducerEpoch
    state: TransactionState
    timeout_ms: int
    updated_ms: int
    begun_ms: int = NOT_BEGUN
    partitions: frozenset[EnlistedPartition] = frozenset()
    previous_producer_id: ProducerId = NO_ID
    """The producer id before the last record that answered no repetition."""
    next_producer_id: ProducerId = NO_ID
    """The producer's id after this transaction, if it changes."""
    last_epoch: ProducerEpoch = NO_EPOCH
    """The epoch before the last bump that the producer requested.

    A producer that names it repeats that request (KIP-360). Kafka forgets it when the coordinator
    moves.
    """
    ordinal: int = NO_TRANSACTION
    """The number of the transaction (rule H1)."""
    client_version: int = 0
    """The `transaction.version` of the producer's last request."""

    @property
    def has_own_epochs(self) -> bool:
        """Whether the transaction was run under Transactions V2."""
        return self.client_version >= OWN_EPOCHS_FROM

    @property
    def is_exhausted(self) -> bool:
        """Whether the producer needs a new id to get another epoch."""
        return is_exhausted(self.producer_epoch)

    @property
    def identity_when_complete(self) -> tuple[ProducerId, ProducerEpoch]:
        """The producer's identity after this transaction."""
        if self.next_producer_id != NO_ID:
            return self.next_producer_id, FIRST_EPOCH
        return self.producer_id, self.producer_epoch

    def initialised(
        self, epoch: ProducerEpoch, last_epoch: ProducerEpoch, timeout_ms: int, now_ms: int
    ) -> Transaction:
        """The state after a producer took over, or continued, with this epoch."""
        return self._taken_over(self.producer_id, epoch, last_epoch, timeout_ms, now_ms)

    def initialised_again(self, timeout_ms: int, now_ms: int) -> Transaction:
        """The state after a producer repeated the request that gave it this epoch.

        The id before stays known: the producer may repeat the request once more.
        """
        after = self.initialised(self.producer_epoch, self.last_epoch, timeout_ms, now_ms)
        return after._replace(previous_producer_id=self.previous_producer_id)

    def rotated(
        self, producer_id: ProducerId, last_epoch: ProducerEpoch, timeout_ms: int, now_ms: int
    ) -> Transaction:
        """The state after a producer took over with a new producer id: the epochs are used up."""
        return self._taken_over(producer_id, FIRST_EPOCH, last_epoch, timeout_ms, now_ms)

    def _taken_over(
        self,
        producer_id: ProducerId,
        epoch: ProducerEpoch,
        last_epoch: ProducerEpoch,
        timeout_ms: int,
        now_ms: int,
    ) -> Transaction:
        return self._followed_by(
            producer_id=producer_id,
            producer_epoch=epoch,
            last_epoch=last_epoch,
            state=TransactionState.EMPTY,
            timeout_ms=timeout_ms,
            partitions=frozenset(),
            begun_ms=NOT_BEGUN,
            updated_ms=now_ms,
        )

    def enlisting(
        self, partitions: frozenset[EnlistedPartition], client_version: int, now_ms: int
    ) -> Transaction:
        """The state after partitions joined the transaction; the first ones begin it."""
        begins = self.state is not TransactionState.ONGOING
        return self._followed_by(
            state=TransactionState.ONGOING,
            partitions=partitions if begins else self.partitions | partitions,
            begun_ms=now_ms if begins else self.begun_ms,
            ordinal=self.ordinal + 1 if begins else self.ordinal,
            client_version=client_version,
            updated_ms=now_ms,
        )

    def fenced(self, last_epoch: ProducerEpoch, now_ms: int) -> Transaction:
        """The aborted transaction, with the producer fenced by an epoch that no producer gets.

        If the record is lost, so is the epoch, and the successor takes the same one: failed fences
        do not use up epochs.
        """
        return self._followed_by(
            state=TransactionState.PREPARE_ABORT,
            producer_epoch=ProducerEpoch(self.producer_epoch + 1),
            last_epoch=last_epoch,
            updated_ms=now_ms,
        )

    def prepared(
        self, *, commit: bool, client_version: int, next_producer_id: ProducerId, now_ms: int
    ) -> Transaction:
        """The decided transaction.

        Under Transactions V2 the epoch goes up, so that no late request can reach the next
        transaction.
        """
        bumps = client_version >= OWN_EPOCHS_FROM
        begun = self.state is TransactionState.ONGOING
        return self._followed_by(
            state=TransactionState.PREPARE_COMMIT if commit else TransactionState.PREPARE_ABORT,
            producer_epoch=ProducerEpoch(self.producer_epoch + bumps),
            last_epoch=self.producer_epoch if bumps else self.last_epoch,
            next_producer_id=next_producer_id,
            begun_ms=self.begun_ms if begun else now_ms,
            client_version=client_version,
            updated_ms=now_ms,
        )

    def completed(self, now_ms: int) -> Transaction:
        """The transaction with all markers written."""
        producer_id, epoch = self.identity_when_complete
        commit = self.state.is_commit
        return self._followed_by(
            producer_id=producer_id,
            producer_epoch=epoch,
            next_producer_id=NO_ID,
            state=TransactionState.COMPLETE_COMMIT if commit else TransactionState.COMPLETE_ABORT,
            partitions=frozenset(),
            updated_ms=now_ms,
        )

    def _followed_by(self, **changes: Any) -> Transaction:
        after = self._replace(previous_producer_id=self.producer_id, **changes)
        own_epochs = after.has_own_epochs
        if not may_follow(self.state, after.state, has_own_epochs=own_epochs):
            raise InvalidTransactionTransition(self, after)
        steps = after.producer_epoch - self.producer_epoch
        if after.producer_id == self.producer_id:
            is_legal = steps in (0, 1) and after.producer_epoch <= EPOCH_MAX
        else:
            is_legal = after.producer_epoch == FIRST_EPOCH and not after.partitions
        if not is_legal or after.ordinal < self.ordinal:
            raise InvalidTransactionTransition(self, after)
        return after


def created(producer_id: ProducerId, timeout_ms: int, now_ms: int) -> Transaction:
    """The state of a transactional id with its first producer."""
    return Transaction(
        producer_id=producer_id,
        producer_epoch=FIRST_EPOCH,
        state=TransactionState.EMPTY,
        timeout_ms=timeout_ms,
        updated_ms=now_ms,
    )
