"""The transaction coordinator of one partition of `__transaction_state`.

It serves every transactional id that hashes to the partition. Pure. Only `apply` changes its state:
a leader calls it with its own decisions, a successor with the records of the log. So the
coordinator decides on appended state, and clients repeat lost requests.

The machine has no pending state. Kafka answers CONCURRENT_TRANSACTIONS during an append; here the
answer waits until the append is durable (rule H5). A possibly failed fence needs no memory either:
a lost fence leaves no trace.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import IntEnum
from itertools import islice

from tidelog.coordinator.decision import Now, Token
from tidelog.coordinator.timers import Timers
from tidelog.coordinator.transaction.commands import (
    AddPartitions,
    Command,
    DescribeTransaction,
    EndTransaction,
    IdentityReply,
    InitProducer,
    ListTransactions,
    ListTransactionsReply,
    MarkersSettled,
    SettledReply,
    VerifyPartitions,
)
from tidelog.coordinator.transaction.decision import (
    TransactionDecision,
    TransactionTurn,
    markers_of,
)
from tidelog.coordinator.transaction.ending import end_transaction
from tidelog.coordinator.transaction.enlistment import add_partitions, verify_partitions
from tidelog.coordinator.transaction.initialisation import init_producer
from tidelog.coordinator.transaction.limits import (
    TransactionBudgets,
    TransactionLimits,
    unlimited,
)
from tidelog.coordinator.transaction.listing import describe
from tidelog.coordinator.transaction.log_records import (
    TransactionRecord,
    TransactionRemoved,
    TransactionStored,
)
from tidelog.coordinator.transaction.settings import TransactionCoordinatorSettings
from tidelog.coordinator.transaction.states import TransactionState, may_follow
from tidelog.coordinator.transaction.transaction import NO_EPOCH, EnlistedPartition, Transaction


class Check(IntEnum):
    """The periodic checks. Integers: an Enum's hash is a Python function."""

    TIMEOUTS = 0
    EXPIRY = 1


class TransactionMachine:
    """All transactional ids of one partition.

    A caller applies the stored records and calls `loaded`. Then it calls `decide` and `tick`, and
    applies each decision's records before the next call.
    """

    def __init__(
        self,
        settings: TransactionCoordinatorSettings,
        coordinator_epoch: int,
        budgets: TransactionBudgets | None = None,
    ) -> None:
        """`coordinator_epoch`: the partition's leader epoch, which markers carry.

        `budgets`: shared with the other coordinators of the broker.
        """
        self._settings = settings
        self._limits = TransactionLimits(settings, budgets or unlimited())
        self._coordinator_epoch = coordinator_epoch
        self._timers: Timers[Check] = Timers()
        self._transactions: dict[str, Transaction] = {}
        self._ongoing: dict[str, None] = {}
        self._awaited: dict[str, set[EnlistedPartition]] = {}
        """The partitions of decided transactions without a known marker."""

    @property
    def transactions(self) -> Mapping[str, Transaction]:
        """The transactional ids in the log's state. The caller must not change them."""
        return self._transactions

    # The stored state.

    def apply(self, record: TransactionRecord) -> None:
        """Apply a record."""
        transactional_id = record.transactional_id
        before = self._transactions.get(transactional_id)
        self._ongoing.pop(transactional_id, None)
        self._awaited.pop(transactional_id, None)
        match record:
            case TransactionStored(_, transaction):
                self._transactions[transactional_id] = transaction
                if transaction.state is TransactionState.ONGOING:
                    self._ongoing[transactional_id] = None
                elif transaction.state.is_prepared:
                    self._awaited[transactional_id] = set(transaction.partitions)
            case TransactionRemoved():
                self._transactions.pop(transactional_id, None)
        self._limits.changed(before, self._transactions.get(transactional_id))

    def close(self) -> None:
        """Give the used room back: the machine gets no more calls."""
        self._limits.close()

    def capture(self) -> Iterator[TransactionRecord]:
        """The records that bring a new machine into the present state."""
        return map(TransactionStored._make, self._transactions.copy().items())

    def release(self) -> None:
        """End a capture, which shares no mutable state."""

    def loaded(self, now: Now) -> TransactionDecision:
        """Every stored record was applied.

        The markers of decided transactions are requested again. Their delivery is not stored, and a
        repeated marker does no harm.
        """
        turn = TransactionTurn(now)
        for transactional_id in self._awaited:
            transaction = self._transactions[transactional_id]
            if transaction.partitions:
                markers = markers_of(transactional_id, transaction, self._coordinator_epoch)
                turn.markers.append(markers)
            else:
                turn.store(transactional_id, transaction.completed(now.time_ms))
        self._schedule(Check.TIMEOUTS, now, self._settings.timeout_check_interval_ms)
        self._schedule(Check.EXPIRY, now, self._settings.expiry_check_interval_ms)
        return turn.decision()

    # Requests.

    def decide(self, command: Command, token: Token, now: Now) -> TransactionDecision:
        """The decision on a request, which is answered under `token`."""
        turn = TransactionTurn(now)
        settings, epoch = self._settings, self._coordinator_epoch
        match command:
            case InitProducer(transactional_id=key):
                before = self._transactions.get(key)
                limit = None if before else self._limits.new_id(key)
                if limit is None:
                    init_producer(command, before, settings, epoch, token, turn)
                else:
                    turn.reply(token, IdentityReply(turn.refuse(limit)))
            case AddPartitions(transactional_id=key):
                add_partitions(command, self._transactions.get(key), self._limits, token, turn)
            case VerifyPartitions(transactional_id=key):
                verify_partitions(command, self._transactions.get(key), token, turn)
            case EndTransaction(transactional_id=key):
                end_transaction(command, self._transactions.get(key), epoch, token, turn)
            case MarkersSettled():
                # Its caller does nothing with the reply: it need not be durable.
                turn.reply_when_appended(token, self._settle(command, turn))
            case DescribeTransaction(key):
                turn.reply(token, describe(key, self._transactions.get(key)))
            case ListTransactions():
                listed = ListTransactionsReply(command, self._transactions.copy(), now.time_ms)
                turn.reply(token, listed)
        return turn.decision()

    def _settle(self, settled: MarkersSettled, turn: TransactionTurn) -> SettledReply:
        transactional_id = settled.transactional_id
        transaction = self._transactions.get(transactional_id)
        awaited = self._awaited.get(transactional_id)
        if transaction is None or awaited is None:
            return SettledReply(is_complete=False)
        # Late markers of an earlier transaction do not count for this one.
        named = (settled.producer_id, settled.ordinal)
        if named != (transaction.producer_id, transaction.ordinal):
            return SettledReply(is_complete=False)
        awaited -= settled.partitions
        if awaited:
            return SettledReply(is_complete=False)
        turn.store(transactional_id, transaction.completed(turn.now.time_ms))
        return SettledReply(is_complete=True)

    # Time.

    def next_deadline_ms(self) -> int | None:
        """When the next call of `tick` is due, on the monotonic clock."""
        return self._timers.next_deadline()

    def tick(self, now: Now) -> TransactionDecision | None:
        """The decision on one expired timer; None if no timer has expired."""
        check = self._timers.pop_due(now.monotonic_ms)
        if check is None:
            return None
        turn = TransactionTurn(now)
        match check:
            case Check.TIMEOUTS:
                is_all = self._abort_timed_out(turn)
                interval_ms = self._settings.timeout_check_interval_ms
            case Check.EXPIRY:
                is_all = self._forget_expired(turn)
                interval_ms = self._settings.expiry_check_interval_ms
        self._schedule(check, now, interval_ms if is_all else self._settings.check_pause_ms)
        return turn.decision()

    def _schedule(self, check: Check, now: Now, within_ms: int) -> None:
        self._timers.set(check, now.monotonic_ms + within_ms)

    def _abort_timed_out(self, turn: TransactionTurn) -> bool:
        """Fence and abort; False if there may be more."""
        now_ms = turn.now.time_ms
        due = (
            (transactional_id, transaction)
            for transactional_id in self._ongoing
            if (transaction := self._transactions[transactional_id]).begun_ms
            + transaction.timeout_ms
            < now_ms
        )
        found = list(islice(due, self._settings.check_transactions_max))
        for transactional_id, transaction in found:
            fenced = transaction.fenced(NO_EPOCH, now_ms)
            turn.decide_outcome(transactional_id, fenced, self._coordinator_epoch)
        return len(found) < self._settings.check_transactions_max

    def _forget_expired(self, turn: TransactionTurn) -> bool:
        """Remove long idle ids; False if there may be more."""
        updated_ms_max = turn.now.time_ms - self._settings.id_expiration_ms
        due = (
            transactional_id
            for transactional_id, transaction in self._transactions.items()
            if transaction.updated_ms <= updated_ms_max
            and may_follow(transaction.state, TransactionState.DEAD)
        )
        found = list(islice(due, self._settings.check_transactions_max))
        for transactional_id in found:
            turn.persist(TransactionRemoved(transactional_id))
        return len(found) < self._settings.check_transactions_max
