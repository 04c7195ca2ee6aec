"""The transaction coordinator under any order of clients', brokers' and time's steps.

Two instances of a producer share a transactional id, and use any identity that they have ever
received. Requests are repeated. Appended records become durable piece by piece. The broker dies and
loses the rest. Markers are settled late and more than once.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.unit.coordinator.transaction.transaction_world import TIMEOUT_MS, P, Q, TransactionWorld
from tidelog.coordinator.decision import Token
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
    VerifyPartitions,
    VerifyReply,
)
from tidelog.coordinator.transaction.log_records import TransactionRemoved, TransactionStored
from tidelog.coordinator.transaction.settings import TransactionCoordinatorSettings
from tidelog.coordinator.transaction.states import TransactionState
from tidelog.coordinator.transaction.transaction import (
    EPOCH_MAX,
    EnlistedPartition,
    Transaction,
)
from tidelog.identifiers import ProducerEpoch, ProducerId
from tidelog.protocol.error_codes import ErrorCode

KEY = "txn"
CLIENTS = (0, 1)
# The first rules have more weight, so that transactions come to their end.
ANYBODY = st.sampled_from([0, 0, 0, 1])
EMPTY, ONGOING, PREPARE_COMMIT, PREPARE_ABORT, COMPLETE_COMMIT, COMPLETE_ABORT, *_ = (
    TransactionState
)
ENDED = {EMPTY, COMPLETE_COMMIT, COMPLETE_ABORT}
LEGAL = {
    EMPTY: ENDED,
    ONGOING: ENDED | {ONGOING},
    PREPARE_COMMIT: {ONGOING},
    PREPARE_ABORT: {ONGOING} | ENDED,
    COMPLETE_COMMIT: {PREPARE_COMMIT},
    COMPLETE_ABORT: {PREPARE_ABORT},
}
NEAR_THE_END = ProducerEpoch(EPOCH_MAX - 4)


@dataclass(slots=True)
class Asked:
    """A request under way: its instance and its identity."""

    client: int
    command: Command
    identity: Identity | None


@dataclass(slots=True)
class Told:
    """A client's knowledge."""

    identities: list[Identity] = field(default_factory=list)
    version: int = 0


class Transactions(RuleBasedStateMachine):
    """Acts at random. Every invariant concerns durable records or answers that were sent."""

    def __init__(self) -> None:
        super().__init__()
        limits = TransactionCoordinatorSettings(id_expiration_ms=10 * TIMEOUT_MS)
        self.world = TransactionWorld(limits)
        self.told = {client: Told() for client in CLIENTS}
        self.asked: dict[Token, Asked] = {}
        self.owners: dict[tuple[ProducerId, ProducerEpoch], int] = {}
        self.checked = 0
        self.previous: dict[str, Transaction] = {}
        self.outcomes: dict[tuple[ProducerId, int], bool] = {}
        self.settled: set[tuple[ProducerId, int, EnlistedPartition]] = set()
        self.heard = 0
        self.ids_come_late = False
        self.waiting: list[Asked] = []
        """Instances that wait until a producer id is allocated."""

    # Steps of clients.

    @rule(client=ANYBODY, knows=st.booleans(), data=st.data())
    def init(self, client: int, knows: bool, data: st.DataObject) -> None:
        identity = self.pick(client, data) if knows else None
        command = InitProducer(
            transactional_id=KEY,
            timeout_ms=TIMEOUT_MS,
            identity=identity or ANONYMOUS,
        )
        self.submit(client, command, identity)

    @rule(
        client=ANYBODY,
        partitions=st.frozensets(st.sampled_from([P, Q]), min_size=1),
        release=st.sampled_from(Release),
        data=st.data(),
    )
    def add(
        self,
        client: int,
        partitions: frozenset[EnlistedPartition],
        release: Release,
        data: st.DataObject,
    ) -> None:
        if (identity := self.pick(client, data)) is not None:
            command = AddPartitions(
                transactional_id=KEY,
                identity=identity,
                partitions=partitions,
                client_version=self.told[client].version,
                release=release,
            )
            self.submit(client, command, identity)

    @rule(client=ANYBODY, data=st.data())
    def verify(self, client: int, data: st.DataObject) -> None:
        if (identity := self.pick(client, data)) is not None:
            command = VerifyPartitions(
                transactional_id=KEY, identity=identity, partitions=frozenset({P})
            )
            self.submit(client, command, identity)

    @rule(client=ANYBODY, commit=st.booleans(), data=st.data())
    def end(self, client: int, commit: bool, data: st.DataObject) -> None:
        if (identity := self.pick(client, data)) is not None:
            command = EndTransaction(
                transactional_id=KEY,
                identity=identity,
                commit=commit,
                client_version=self.told[client].version,
            )
            self.submit(client, command, identity)

    @rule(client=ANYBODY, version=st.sampled_from([0, 2]))
    def upgrade(self, client: int, version: int) -> None:
        self.told[client].version = version

    # Steps of the world.

    @rule()
    def the_store_is_slow(self) -> None:
        self.world.flushes = False

    @precondition(lambda self: not self.world.flushes)
    @rule(count=st.integers(1, 3))
    def flush(self, count: int) -> None:
        self.world.flush(count)
        self.hear()

    @precondition(lambda self: not self.world.flushes)
    @rule()
    def the_store_is_fast(self) -> None:
        self.world.flushes = True
        self.world.flush()
        self.hear()

    @rule(late=st.booleans())
    def ids_are_allocated_at_once_or_late(self, late: bool) -> None:
        self.ids_come_late = late

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def an_id_is_allocated(self, data: st.DataObject) -> None:
        """Other requests may have been served meanwhile."""
        index = data.draw(st.integers(0, len(self.waiting) - 1))
        self.submit_with_id(self.waiting.pop(index))

    @rule()
    def crash(self) -> None:
        self.asked.clear()
        self.waiting.clear()
        self.world.crash()
        self.hear()

    @precondition(lambda self: self.world.markers)
    @rule(age=st.sampled_from([1, 1, 1, 2, 3]), data=st.data())
    def settle(self, age: int, data: st.DataObject) -> None:
        """A marker that left now or long ago, and may be a repetition."""
        markers = self.world.markers[-min(age, len(self.world.markers))]
        for partition in data.draw(st.sets(st.sampled_from([P, Q]), min_size=1)):
            if partition not in markers.partitions:
                continue
            self.settled.add((markers.producer_id, markers.ordinal, partition))
            self.world.submit(
                MarkersSettled(
                    transactional_id=markers.transactional_id,
                    producer_id=markers.producer_id,
                    ordinal=markers.ordinal,
                    partitions=frozenset({partition}),
                )
            )
            self.hear()

    @rule(milliseconds=st.sampled_from([1_000, 1_000, 1_000, TIMEOUT_MS, 8 * TIMEOUT_MS]))
    def pass_time(self, milliseconds: int) -> None:
        self.world.advance(milliseconds)
        self.hear()

    @initialize(for_years=st.booleans())
    def has_run(self, for_years: bool) -> None:
        """The id is new, or its epochs are nearly used up."""
        if not for_years:
            return
        worn = Transaction(
            producer_id=self.world.fresh_id(),
            producer_epoch=NEAR_THE_END,
            state=EMPTY,
            timeout_ms=TIMEOUT_MS,
            updated_ms=self.world.now.time_ms,
        )
        self.world.put(worn, KEY)
        self.hear()

    # Effects of the steps.

    def pick(self, client: int, data: st.DataObject) -> Identity | None:
        """An identity that the client has received, most likely the newest."""
        known = self.told[client].identities
        if not known:
            return None
        age = data.draw(st.sampled_from([1, 1, 1, 1, 2, 3]))
        return known[-min(age, len(known))]

    def submit(self, client: int, command: Command, identity: Identity | None) -> None:
        token = self.world.submit(command)
        if isinstance(self.world.replies.get(token), FreshIdNeeded):
            assert isinstance(command, InitProducer | EndTransaction)
            asked = Asked(client, replace(command, fresh_id=self.world.fresh_id()), identity)
            if self.ids_come_late:
                self.waiting.append(asked)
            else:
                self.submit_with_id(asked)
            return
        self.asked[token] = Asked(client, command, identity)
        self.hear()

    def submit_with_id(self, asked: Asked) -> None:
        self.asked[self.world.submit(asked.command)] = asked
        self.hear()

    def hear(self) -> None:
        """Clients note their answers."""
        for token in [token for token in self.asked if token in self.world.replies]:
            asked, reply = self.asked.pop(token), self.world.replies[token]
            if isinstance(reply, IdentityReply) and reply.error is ErrorCode.NONE:
                command = asked.command
                # Under TV1 the answer to EndTxn carries no identity.
                is_told = isinstance(command, EndTransaction) and command.client_version == 2
                if isinstance(command, InitProducer) or is_told:
                    self.take_identity(asked.client, Identity(reply.producer_id, reply.epoch))
                if isinstance(command, EndTransaction):
                    self.check_told_outcome(command)
            elif isinstance(reply, AddReply | VerifyReply) and reply.error is ErrorCode.NONE:
                assert reply.ordinal > 0 or isinstance(reply, VerifyReply)

    def take_identity(self, client: int, identity: Identity) -> None:
        assert 0 <= identity.epoch < EPOCH_MAX
        owner = self.owners.setdefault((identity.producer_id, identity.epoch), client)
        assert owner == client, f"{identity} was given to {owner} and to {client}"
        if identity not in self.told[client].identities:
            self.told[client].identities.append(identity)

    def check_told_outcome(self, command: EndTransaction) -> None:
        """The durable log has every decision that a client was told."""
        log = self.world.log[: self.world.durable]
        states = {PREPARE_COMMIT, COMPLETE_COMMIT} if command.commit else {PREPARE_ABORT}
        states |= set() if command.commit else {COMPLETE_ABORT}
        assert any(
            isinstance(record, TransactionStored)
            and record.transactional_id == command.transactional_id
            and record.transaction.state in states
            for record in log
        )

    @invariant()
    def durable_transitions_are_legal(self) -> None:
        world = self.world
        for record in world.log[self.checked : world.durable]:
            key = record.transactional_id
            before = self.previous.get(key)
            if isinstance(record, TransactionRemoved):
                assert before is not None
                assert before.state in ENDED
                del self.previous[key]
                continue
            after = record.transaction
            if before is not None:
                check_step(before, after)
                if after.state in (COMPLETE_COMMIT, COMPLETE_ABORT):
                    named = (before.producer_id, before.ordinal)
                    assert all((*named, each) in self.settled for each in before.partitions)
            if after.state in (PREPARE_COMMIT, PREPARE_ABORT) and after.partitions:
                decided = (after.producer_id, after.ordinal)
                assert decided not in self.outcomes, "decided twice"
                self.outcomes[decided] = after.state is PREPARE_COMMIT
            self.previous[key] = after
        self.checked = world.durable

    @invariant()
    def markers_agree_with_durable_decisions(self) -> None:
        for markers in self.world.markers[self.heard :]:
            assert self.outcomes[markers.producer_id, markers.ordinal] == markers.commit
        self.heard = len(self.world.markers)

    @invariant()
    def only_prepared_transactions_wait_for_markers(self) -> None:
        kinds = Counter(each.state for each in self.world.machine.transactions.values())
        assert set(kinds) <= set(LEGAL)

    def teardown(self) -> None:
        """When everything heals, no transaction stays decided and not ended, nor open."""
        world = self.world
        world.flushes = True
        world.flush()
        world.advance(TIMEOUT_MS + 10_001)
        world.crash()
        for markers in list(world.markers):
            named = (markers.producer_id, markers.ordinal)
            self.settled |= {(*named, each) for each in markers.partitions}
            world.settle(markers)
        for transaction in world.machine.transactions.values():
            assert transaction.state in ENDED
        self.durable_transitions_are_legal()


def check_step(before: Transaction, after: Transaction) -> None:
    """Check that one record may follow another."""
    assert before.state in LEGAL[after.state], (before, after)
    if before.state in ENDED and after.state is PREPARE_ABORT:
        assert after.client_version == 2
    if after.producer_id == before.producer_id:
        assert after.producer_epoch - before.producer_epoch in (0, 1)
    else:
        assert after.producer_epoch == 0
        assert before.producer_epoch >= EPOCH_MAX - 1
    begins = after.state is ONGOING and before.state is not ONGOING
    assert after.ordinal == before.ordinal + begins
    if after.state is ONGOING and not begins:
        assert after.partitions >= before.partitions
        assert after.begun_ms == before.begun_ms
    if after.state in (PREPARE_COMMIT, PREPARE_ABORT) and before.state is ONGOING:
        assert after.partitions == before.partitions


Transactions.TestCase.settings = settings(stateful_step_count=100)
TestTransactions = Transactions.TestCase
