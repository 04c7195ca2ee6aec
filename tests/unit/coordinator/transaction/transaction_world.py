"""One transaction coordinator in virtual time, over a log whose end becomes durable when a test
says so."""

from __future__ import annotations

from typing import TypeVar

from tidelog.coordinator.decision import LimitMet, Now, Token
from tidelog.coordinator.transaction.commands import (
    ANONYMOUS,
    AddPartitions,
    AddReply,
    Command,
    EndTransaction,
    FreshIdNeeded,
    Identity,
    IdentityReply,
    InitProducer,
    MarkersSettled,
    Release,
    Reply,
    SettledReply,
    VerifyPartitions,
    VerifyReply,
)
from tidelog.coordinator.transaction.decision import Markers, TransactionDecision
from tidelog.coordinator.transaction.limits import TransactionBudgets, unlimited
from tidelog.coordinator.transaction.log_records import (
    TransactionRecord,
    TransactionStored,
    decode_record,
    encode_record,
)
from tidelog.coordinator.transaction.machine import TransactionMachine
from tidelog.coordinator.transaction.settings import TransactionCoordinatorSettings
from tidelog.coordinator.transaction.states import TransactionState
from tidelog.coordinator.transaction.transaction import EnlistedPartition, Transaction
from tidelog.identifiers import ProducerEpoch, ProducerId

R = TypeVar("R", bound=Reply)

TXN = "txn"
P, Q = EnlistedPartition("p", 0), EnlistedPartition("q", 3)
START_MS = 1_700_000_000_000
TIMEOUT_MS = 60_000
TV1, TV2 = 0, 2
PID = 40
"""The producer id in the transactions of `with_epoch`."""


def identity(producer_id: int, epoch: int) -> Identity:
    return Identity(ProducerId(producer_id), ProducerEpoch(epoch))


def with_epoch(epoch: int, state: TransactionState = TransactionState.EMPTY) -> Transaction:
    """The stored transaction of a transactional id whose producer has this epoch."""
    return Transaction(
        producer_id=ProducerId(PID),
        producer_epoch=ProducerEpoch(epoch),
        previous_producer_id=ProducerId(PID),
        state=state,
        timeout_ms=TIMEOUT_MS,
        updated_ms=START_MS,
    )


class TransactionWorld:
    """Asks a machine, applies its decisions, and releases answers and markers when their records
    are durable."""

    def __init__(
        self,
        settings: TransactionCoordinatorSettings | None = None,
        *,
        flushes: bool = True,
        budgets: TransactionBudgets | None = None,
    ) -> None:
        """`flushes`: appended records are durable at once."""
        self.settings = settings or TransactionCoordinatorSettings()
        self.budgets = budgets or unlimited()
        self.limits: list[LimitMet] = []
        self.flushes = flushes
        self.monotonic_ms = 0
        self.coordinator_epoch = 0
        self.log: list[TransactionRecord] = []
        self.durable = 0
        self.replies: dict[Token, Reply] = {}
        self.markers: list[Markers] = []
        """The markers that the coordinator has sent."""
        self.next_id = 1000
        self._token = Token(0)
        self._held: list[tuple[int, TransactionDecision]] = []
        self.start()

    @property
    def now(self) -> Now:
        return Now(self.monotonic_ms, START_MS + self.monotonic_ms)

    def start(self) -> None:
        """Start a coordinator with the records in the log."""
        self.machine = TransactionMachine(self.settings, self.coordinator_epoch, self.budgets)
        for record in self.log:
            self.machine.apply(decode_record(*encode_record(record)))
        self.take(self.machine.loaded(self.now))

    def crash(self) -> None:
        """The broker dies and loses its records that are not durable. Another one takes over."""
        del self.log[self.durable :]
        self._held.clear()
        self.machine.close()
        self.coordinator_epoch += 1
        self.start()

    def put(self, transaction: Transaction, transactional_id: str = TXN) -> None:
        """Store the transaction, durably."""
        record = TransactionStored(transactional_id, transaction)
        self.log.append(record)
        self.machine.apply(record)
        self.flush()

    def take(self, decision: TransactionDecision) -> None:
        self.limits += decision.limits
        for record in decision.records:
            self.log.append(record)
            self.machine.apply(record)
        self._answer(decision.replies_when_appended)
        self._held.append((len(self.log), decision))
        if self.flushes:
            self.flush()

    def flush(self, count: int | None = None) -> None:
        """Make this many more records durable, or all of them."""
        left = len(self.log) - self.durable
        self.durable += left if count is None else min(count, left)
        while self._held and self._held[0][0] <= self.durable:
            _, decision = self._held.pop(0)
            self._answer(decision.replies)
            self.markers.extend(decision.markers)

    def _answer(self, replies: object) -> None:
        assert isinstance(replies, list | tuple)
        for token, reply in replies:
            assert token not in self.replies, "answered twice"
            self.replies[token] = reply

    def submit(self, command: Command) -> Token:
        """Ask. The answer comes when its records are durable."""
        self._token = token = Token(self._token + 1)
        self.take(self.machine.decide(command, token, self.now))
        return token

    def ask(self, command: Command, kind: type[R]) -> R:
        """Ask a command that is answered at once."""
        reply = self.replies[self.submit(command)]
        assert isinstance(reply, kind), reply
        return reply

    def advance(self, milliseconds: int) -> None:
        """Let time pass, timer by timer."""
        end = self.monotonic_ms + milliseconds
        while True:
            deadline = self.machine.next_deadline_ms()
            if deadline is None or deadline > end:
                break
            self.monotonic_ms = max(self.monotonic_ms, deadline)
            decision = self.machine.tick(self.now)
            assert decision is not None
            self.take(decision)
        self.monotonic_ms = end

    def fresh_id(self) -> ProducerId:
        self.next_id += 1
        return ProducerId(self.next_id)

    @property
    def transaction(self) -> Transaction:
        return self.machine.transactions[TXN]

    # Requests, with defaults for fields that a test does not care about.

    def init(self, who: Identity = ANONYMOUS, key: str = TXN) -> IdentityReply:
        """InitProducerId as a broker submits it, with a fresh producer id if one is needed."""
        command = InitProducer(transactional_id=key, timeout_ms=TIMEOUT_MS, identity=who)
        reply = self.replies[self.submit(command)]
        if isinstance(reply, FreshIdNeeded):
            command = InitProducer(
                transactional_id=key,
                timeout_ms=TIMEOUT_MS,
                identity=who,
                fresh_id=self.fresh_id(),
            )
            return self.ask(command, IdentityReply)
        assert isinstance(reply, IdentityReply)
        return reply

    def begin(self) -> Identity:
        """A new producer."""
        reply = self.init()
        return Identity(reply.producer_id, reply.epoch)

    def add(self, who: Identity, *partitions: EnlistedPartition, version: int = TV1) -> AddReply:
        command = AddPartitions(
            transactional_id=TXN,
            identity=who,
            partitions=frozenset(partitions),
            client_version=version,
        )
        return self.ask(command, AddReply)

    def verify(self, who: Identity, *partitions: EnlistedPartition) -> VerifyReply:
        command = VerifyPartitions(
            transactional_id=TXN,
            identity=who,
            partitions=frozenset(partitions),
            release=Release.DURABLE,
        )
        return self.ask(command, VerifyReply)

    def end_command(
        self, who: Identity, *, commit: bool, version: int = TV1, fresh_id: ProducerId | None = None
    ) -> EndTransaction:
        return EndTransaction(
            transactional_id=TXN,
            identity=who,
            commit=commit,
            client_version=version,
            fresh_id=fresh_id,
        )

    def end(self, who: Identity, *, commit: bool, version: int = TV1) -> IdentityReply:
        reply = self.replies[self.submit(self.end_command(who, commit=commit, version=version))]
        if isinstance(reply, FreshIdNeeded):
            fresh_id = self.fresh_id()
            again = self.end_command(who, commit=commit, version=version, fresh_id=fresh_id)
            return self.ask(again, IdentityReply)
        assert isinstance(reply, IdentityReply)
        return reply

    def settle(self, markers: Markers, *partitions: EnlistedPartition) -> bool:
        """These partitions have their marker, or all if none is named. Returns whether the
        transaction is complete."""
        command = MarkersSettled(
            transactional_id=markers.transactional_id,
            producer_id=markers.producer_id,
            ordinal=markers.ordinal,
            partitions=frozenset(partitions) or markers.partitions,
        )
        return self.ask(command, SettledReply).is_complete
