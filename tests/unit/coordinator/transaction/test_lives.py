"""How transactions go on: repetitions, used-up epochs, markers, time, and other brokers."""

from __future__ import annotations

import pytest

from tests.unit.coordinator.transaction.transaction_world import (
    START_MS,
    TIMEOUT_MS,
    TV1,
    TV2,
    TXN,
    P,
    Q,
    TransactionWorld,
    identity,
)
from tidelog.coordinator.budget import Budget
from tidelog.coordinator.transaction.admission import TransactionBudgets
from tidelog.coordinator.transaction.commands import (
    AddPartitions,
    AddReply,
    DescribeTransaction,
    DescribeTransactionReply,
    FreshIdNeeded,
    Identity,
    IdentityReply,
    InitProducer,
    ListTransactions,
    ListTransactionsReply,
    MarkersSettled,
    Release,
    SettledReply,
    VerifyPartitions,
    VerifyReply,
)
from tidelog.coordinator.transaction.decision import Markers
from tidelog.coordinator.transaction.listing import chosen
from tidelog.coordinator.transaction.log_records import TransactionRemoved
from tidelog.coordinator.transaction.settings import TransactionCoordinatorSettings
from tidelog.coordinator.transaction.states import TransactionState
from tidelog.coordinator.transaction.transaction import (
    EPOCH_MAX,
    EnlistedPartition,
    Transaction,
    created,
)
from tidelog.identifiers import ProducerEpoch, ProducerId
from tidelog.protocol.error_codes import ErrorCode

NONE = ErrorCode.NONE
CONCURRENT = ErrorCode.CONCURRENT_TRANSACTIONS
FENCED = ErrorCode.PRODUCER_FENCED
MAPPING = ErrorCode.INVALID_PRODUCER_ID_MAPPING
LAST_EPOCH = EPOCH_MAX - 1
PID = 40
DAY_MS = 24 * 60 * 60_000


def with_epoch(epoch: int, state: TransactionState = TransactionState.EMPTY) -> Transaction:
    return Transaction(
        producer_id=ProducerId(PID),
        producer_epoch=ProducerEpoch(epoch),
        previous_producer_id=ProducerId(PID),
        state=state,
        timeout_ms=TIMEOUT_MS,
        updated_ms=START_MS,
    )


# Identities.


def test_the_same_id_keeps_its_producer_id_and_fences_the_one_before() -> None:
    world = TransactionWorld()
    first, second = world.begin(), world.begin()
    assert first.producer_id == second.producer_id
    assert (first.epoch, second.epoch) == (0, 1)
    assert world.add(first, P).error is FENCED
    assert world.end(first, commit=True).error is FENCED
    assert world.verify(first, P).error is FENCED
    assert world.init(first).error is FENCED
    assert world.add(second, P) == AddReply(NONE, 1)


def test_an_unknown_id_gets_a_producer_id_when_one_was_allocated() -> None:
    world = TransactionWorld(flushes=False)
    asked = InitProducer(transactional_id=TXN, timeout_ms=TIMEOUT_MS)
    assert world.ask(asked, FreshIdNeeded) == FreshIdNeeded()
    assert world.log == []
    stale = identity(3, 9)
    token = world.submit(
        InitProducer(
            transactional_id=TXN, timeout_ms=TIMEOUT_MS, identity=stale, fresh_id=ProducerId(77)
        )
    )
    assert token not in world.replies, "answered before it is durable"
    world.flush()
    assert world.replies[token] == IdentityReply(NONE, ProducerId(77), ProducerEpoch(0))


def test_a_producer_that_did_not_hear_of_its_bump_is_told_again() -> None:
    world = TransactionWorld()
    producer = world.begin()
    bumped = world.init(producer)
    assert bumped.epoch == producer.epoch + 1
    assert world.init(producer) == bumped
    world.crash()
    assert world.init(producer) == bumped, "the last epoch outlives the coordinator"
    successor = world.begin()
    assert successor.epoch == bumped.epoch + 1
    assert world.init(producer).error is FENCED


def test_a_producer_with_an_open_transaction_goes_on_from_its_own_epoch() -> None:
    world = TransactionWorld()
    producer = world.begin()
    world.add(producer, P)
    assert world.init(producer).error is CONCURRENT
    assert world.init(producer).error is CONCURRENT
    assert world.settle(world.markers[0])
    assert world.init(producer) == IdentityReply(NONE, producer.producer_id, ProducerEpoch(1))


def test_a_successor_aborts_what_is_open_and_then_has_an_epoch_that_nobody_saw() -> None:
    world = TransactionWorld()
    old = world.begin()
    world.add(old, P, Q)
    assert world.init().error is CONCURRENT
    (markers,) = world.markers
    assert (markers.commit, markers.producer_epoch) == (False, 1)
    assert world.init().error is CONCURRENT
    assert world.end(old, commit=True).error is FENCED
    assert not world.settle(markers, P)
    assert world.settle(markers, Q)
    assert world.begin() == (old.producer_id, 2)
    assert world.init(old).error is FENCED


def test_used_up_epochs_lead_to_a_new_producer_id() -> None:
    world = TransactionWorld()
    world.put(with_epoch(LAST_EPOCH - 1))
    assert world.begin() == (PID, LAST_EPOCH)
    plain = InitProducer(transactional_id=TXN, timeout_ms=TIMEOUT_MS)
    assert world.ask(plain, FreshIdNeeded) == FreshIdNeeded()
    assert world.begin() == (1001, 0)
    assert world.transaction.previous_producer_id == PID
    assert world.init(identity(PID, LAST_EPOCH)).error is FENCED


def test_a_producer_that_did_not_hear_of_its_new_id_is_told_again() -> None:
    world = TransactionWorld()
    world.put(with_epoch(LAST_EPOCH))
    told = world.init(identity(PID, LAST_EPOCH))
    assert (told.producer_id, told.epoch) == (1001, 0)
    world.crash()
    assert world.init(identity(PID, LAST_EPOCH)) == told
    assert world.init(identity(PID, LAST_EPOCH - 1)).error is FENCED


def test_used_up_epochs_bring_no_fenced_producer_back() -> None:
    """Who names an epoch that another producer has followed gets no new producer id, whose
    repetition would then be told to the one that had followed."""
    world = TransactionWorld()
    world.put(with_epoch(LAST_EPOCH - 2))
    old = world.begin()
    new = world.begin()
    assert (old.epoch, new.epoch) == (LAST_EPOCH - 1, LAST_EPOCH)
    before = world.transaction
    assert world.init(old).error is FENCED
    assert world.transaction == before
    assert world.init(new).producer_id == 1001


def test_a_producer_that_did_not_hear_of_its_last_epoch_is_told_again() -> None:
    world = TransactionWorld()
    world.put(with_epoch(LAST_EPOCH - 1))
    producer = identity(PID, LAST_EPOCH - 1)
    told = world.init(producer)
    assert (told.producer_id, told.epoch) == (PID, LAST_EPOCH)
    world.crash()
    assert world.init(producer) == told


def test_a_producer_whose_own_fence_took_the_highest_epoch_goes_on_under_a_new_id() -> None:
    world = TransactionWorld()
    world.put(with_epoch(LAST_EPOCH))
    producer = identity(PID, LAST_EPOCH)
    world.add(producer, P)
    assert world.init(producer).error is CONCURRENT
    assert world.markers[0].producer_epoch == EPOCH_MAX
    assert world.settle(world.markers[0])
    told = world.init(producer)
    assert (told.error, told.producer_id, told.epoch) == (NONE, 1001, 0)
    assert world.init(producer) == told


def test_a_producer_that_was_fenced_with_the_highest_epoch_stays_so() -> None:
    world = TransactionWorld()
    world.put(with_epoch(LAST_EPOCH))
    old = identity(PID, LAST_EPOCH)
    world.add(old, P)
    assert world.init().error is CONCURRENT
    assert world.settle(world.markers[0])
    assert world.init(old).error is FENCED
    assert world.begin() == (1001, 0)
    assert world.init(old).error is FENCED


def test_a_fence_may_take_the_highest_epoch_and_no_producer_is_given_it() -> None:
    world = TransactionWorld()
    world.put(with_epoch(LAST_EPOCH))
    producer = identity(PID, LAST_EPOCH)
    world.add(producer, P, version=TV2)
    world.advance(TIMEOUT_MS + 10_001)
    assert world.markers[0].producer_epoch == EPOCH_MAX
    assert world.settle(world.markers[0])
    # Elsewhere a repeated abort would be told the current epoch, which would be this one.
    assert world.end(producer, commit=False, version=TV2).error is FENCED
    for forged in (world.add(identity(PID, EPOCH_MAX), P), world.verify(identity(PID, EPOCH_MAX))):
        assert forged.error is FENCED
    assert world.begin() == (1001, 0)


# Transactions V2.


def test_each_transaction_has_an_epoch_of_its_own() -> None:
    world = TransactionWorld()
    first = world.begin()
    world.add(first, P, version=TV2)
    ended = world.end(first, commit=True, version=TV2)
    assert ended == IdentityReply(NONE, first.producer_id, ProducerEpoch(1))
    assert world.end(first, commit=True, version=TV2).error is CONCURRENT
    assert world.end(first, commit=False, version=TV2).error is ErrorCode.INVALID_TXN_STATE
    second = Identity(ended.producer_id, ended.epoch)
    assert world.add(second, P, version=TV2).error is CONCURRENT
    assert world.end(second, commit=False, version=TV2).error is CONCURRENT
    assert world.markers[0].producer_epoch == 1
    assert world.markers[0].transaction_version == TV2
    assert world.settle(world.markers[0])
    assert world.end(first, commit=True, version=TV2) == ended
    assert world.add(second, P, version=TV2) == AddReply(NONE, 2)
    # The delayed request of the first transaction does not reach the second.
    assert world.end(first, commit=False, version=TV2).error is FENCED
    assert world.end(first, commit=True, version=TV2).error is FENCED


def test_the_last_epoch_ends_in_a_new_producer_id() -> None:
    world = TransactionWorld()
    world.put(with_epoch(LAST_EPOCH))
    producer = identity(PID, LAST_EPOCH)
    world.add(producer, P, version=TV2)
    command = world.end_command(producer, commit=True, version=TV2)
    assert world.ask(command, FreshIdNeeded) == FreshIdNeeded()
    assert world.transaction.state is TransactionState.ONGOING
    told = world.end(producer, commit=True, version=TV2)
    assert (told.error, told.producer_id, told.epoch) == (NONE, 1001, 0)
    following = Identity(told.producer_id, told.epoch)
    (markers,) = world.markers
    assert (markers.producer_id, markers.producer_epoch) == (PID, EPOCH_MAX)
    # The producer knows its new id before it holds.
    assert world.add(following, Q, version=TV2).error is CONCURRENT
    assert world.verify(following, Q).error is CONCURRENT
    assert world.end(following, commit=False, version=TV2).error is CONCURRENT
    assert world.end(producer, commit=True, version=TV2).error is CONCURRENT
    world.crash()
    assert world.settle(markers)
    assert world.end(producer, commit=True, version=TV2) == told
    assert world.end(producer, commit=False, version=TV2).error is ErrorCode.INVALID_TXN_STATE
    assert world.add(following, Q, version=TV2) == AddReply(NONE, 2)
    assert world.end(producer, commit=True, version=TV2).error is MAPPING


def test_an_epoch_that_nobody_has_is_no_repetition() -> None:
    world = TransactionWorld()
    world.put(with_epoch(LAST_EPOCH))
    producer = identity(PID, LAST_EPOCH)
    world.add(producer, P, version=TV2)
    told = world.end(producer, commit=True, version=TV2)
    world.settle(world.markers[0])
    assert world.end(identity(told.producer_id, -1), commit=True, version=TV2).error is FENCED


def test_a_timed_out_producer_may_abort_and_go_on() -> None:
    world = TransactionWorld()
    producer = world.begin()
    world.add(producer, P, version=TV2)
    world.advance(TIMEOUT_MS + 10_001)
    assert world.settle(world.markers[0])
    assert world.end(producer, commit=True, version=TV2).error is ErrorCode.INVALID_TXN_STATE
    told = world.end(producer, commit=False, version=TV2)
    assert told == IdentityReply(NONE, producer.producer_id, ProducerEpoch(1))


# When what is told.


def test_an_addition_is_answered_at_once_to_a_producer_and_when_durable_to_a_leader() -> None:
    world = TransactionWorld()
    producer = world.begin()
    world.flushes = False

    def addition(partition: EnlistedPartition, release: Release) -> AddPartitions:
        return AddPartitions(
            transactional_id=TXN,
            identity=producer,
            partitions=frozenset({partition}),
            client_version=TV1,
            release=release,
        )

    def verification(release: Release) -> VerifyPartitions:
        return VerifyPartitions(
            transactional_id=TXN, identity=producer, partitions=frozenset({P}), release=release
        )

    assert world.ask(addition(P, Release.APPENDED), AddReply) == AddReply(NONE, 1)
    assert world.ask(verification(Release.APPENDED), VerifyReply) == VerifyReply(NONE, 1)
    waiting = [
        world.submit(verification(Release.DURABLE)),
        world.submit(addition(Q, Release.DURABLE)),
    ]
    assert not any(token in world.replies for token in waiting)
    world.flush()
    assert world.replies[waiting[0]] == VerifyReply(NONE, 1)
    assert world.replies[waiting[1]] == AddReply(NONE, 1)


def test_additions_that_were_lost_with_a_coordinator_are_refused() -> None:
    """What follows of them is refused, since a late batch of an earlier transaction looks the
    same."""
    world = TransactionWorld()
    producer = world.begin()
    world.add(producer, P)
    world.end(producer, commit=True)
    world.settle(world.markers[0])
    world.flushes = False
    assert world.add(producer, P, Q).error is NONE
    world.crash()
    world.flushes = True
    decided = world.transaction
    assert decided.state is TransactionState.COMPLETE_COMMIT
    assert world.verify(producer, P, Q) == VerifyReply(NONE, 1, frozenset({P, Q}))
    # Nor can its abort be told from one that comes too late for the transaction before.
    assert world.end(producer, commit=False).error is ErrorCode.INVALID_TXN_STATE
    assert world.transaction == decided
    # Made anew, the producer goes on, and nothing late has its epoch.
    successor = world.begin()
    assert world.verify(producer, P).error is FENCED
    assert world.add(successor, P) == AddReply(NONE, 2)


def test_an_addition_that_was_lost_alone_leaves_a_transaction_that_can_be_aborted() -> None:
    world = TransactionWorld()
    producer = world.begin()
    world.add(producer, P)
    world.flushes = False
    assert world.add(producer, P, Q).error is NONE
    world.crash()
    world.flushes = True
    assert world.verify(producer, P, Q) == VerifyReply(NONE, 1, frozenset({Q}))
    assert world.end(producer, commit=False).error is NONE
    assert world.markers[0].partitions == {P}
    world.settle(world.markers[0])
    assert world.add(producer, Q) == AddReply(NONE, 2)


def test_a_late_batch_of_an_aborted_transaction_is_in_no_later_one_after_a_crash_either() -> None:
    world = TransactionWorld()
    producer = world.begin()
    world.add(producer, P, Q)
    world.end(producer, commit=False)
    world.settle(world.markers[0])
    world.add(producer, P)
    world.crash()
    assert world.verify(producer, Q) == VerifyReply(NONE, 2, frozenset({Q}))
    assert world.transaction.partitions == {P}


def test_a_refusal_waits_until_what_it_rests_on_is_durable() -> None:
    world = TransactionWorld()
    old = world.begin()
    world.flushes = False
    world.submit(InitProducer(transactional_id=TXN, timeout_ms=TIMEOUT_MS))
    refused = world.submit(world.end_command(old, commit=True))
    missing = world.submit(
        VerifyPartitions(
            transactional_id=TXN,
            identity=identity(old.producer_id, 1),
            partitions=frozenset({P}),
            release=Release.APPENDED,
        )
    )
    assert refused not in world.replies
    assert missing not in world.replies
    world.flush()
    told = world.replies[refused]
    assert isinstance(told, IdentityReply)
    assert told.error is FENCED


def test_an_outcome_is_told_and_its_markers_leave_when_it_is_durable() -> None:
    world = TransactionWorld()
    producer = world.begin()
    world.add(producer, P, Q)
    world.flushes = False
    token = world.submit(world.end_command(producer, commit=True))
    assert token not in world.replies
    assert world.markers == []
    world.flush()
    assert world.replies[token] == IdentityReply(NONE, *producer)
    assert world.markers == [
        Markers(
            TXN,
            producer.producer_id,
            producer.epoch,
            coordinator_epoch=0,
            commit=True,
            ordinal=1,
            transaction_version=TV1,
            partitions=frozenset({P, Q}),
        )
    ]


def test_prepare_marker_and_complete_may_share_a_slot() -> None:
    """The leader of the partition has the coordinator's own WAL."""
    world = TransactionWorld()
    producer = world.begin()
    world.add(producer, P)
    world.flushes = False
    decision = world.machine.decide(
        world.end_command(producer, commit=True), world.submit(ListTransactions()), world.now
    )
    for record in decision.records:
        world.machine.apply(record)
    (markers,) = decision.markers
    settled = MarkersSettled(
        transactional_id=TXN,
        producer_id=markers.producer_id,
        ordinal=markers.ordinal,
        partitions=markers.partitions,
    )
    complete = world.machine.decide(settled, world.submit(ListTransactions()), world.now)
    for record in complete.records:
        world.machine.apply(record)
    assert world.transaction.state is TransactionState.COMPLETE_COMMIT


# Markers.


def test_a_late_word_on_an_earlier_transaction_does_not_end_this_one() -> None:
    world = TransactionWorld()
    producer = world.begin()
    for _ in range(2):
        world.add(producer, P)
        world.end(producer, commit=True)
        if len(world.markers) == 1:
            assert world.settle(world.markers[0])
    first, second = world.markers
    assert (first.ordinal, second.ordinal) == (1, 2)
    assert not world.settle(first)
    assert world.transaction.state is TransactionState.PREPARE_COMMIT
    assert not world.settle(second, Q), "a partition that is in no transaction"
    assert world.settle(second)
    assert not world.settle(second)


def test_a_word_on_an_unknown_id_is_ignored() -> None:
    world = TransactionWorld()
    settled = MarkersSettled(
        transactional_id="gone", producer_id=ProducerId(1), ordinal=1, partitions=frozenset({P})
    )
    assert world.ask(settled, SettledReply) == SettledReply(False)


@pytest.mark.parametrize("commit", [True, False])
def test_a_successor_asks_for_the_markers_of_what_was_decided(commit: bool) -> None:
    world = TransactionWorld()
    producer = world.begin()
    world.add(producer, P, Q)
    world.end(producer, commit=commit)
    assert not world.settle(world.markers[0], P)
    world.crash()
    again = world.markers[-1]
    assert (again.coordinator_epoch, again.commit, again.partitions) == (
        1,
        commit,
        frozenset({P, Q}),
    )
    assert world.end(producer, commit=commit).error is CONCURRENT
    assert world.settle(again)
    assert world.transaction.state.is_complete
    assert world.end(producer, commit=commit).error is NONE


def test_a_successor_completes_a_decided_transaction_without_partitions() -> None:
    world = TransactionWorld()
    world.put(with_epoch(3, TransactionState.PREPARE_ABORT))
    world.crash()
    assert world.transaction.state is TransactionState.COMPLETE_ABORT


def test_what_was_not_durable_never_was() -> None:
    world = TransactionWorld()
    producer = world.begin()
    world.add(producer, P)
    world.flushes = False
    world.submit(world.end_command(producer, commit=True))
    world.crash()
    assert world.transaction.state is TransactionState.ONGOING
    assert world.markers == []
    world.flushes = True
    assert world.end(producer, commit=False).error is NONE


def test_fences_that_are_lost_use_up_no_epochs() -> None:
    world = TransactionWorld()
    producer = world.begin()
    world.add(producer, P)
    world.flushes = False
    for _ in range(5):
        world.submit(InitProducer(transactional_id=TXN, timeout_ms=TIMEOUT_MS))
        assert world.transaction.producer_epoch == 1
        world.crash()
        assert world.transaction.producer_epoch == 0
    assert world.markers == []


# Time.


def test_a_transaction_times_out_from_its_first_partition_on() -> None:
    world = TransactionWorld()
    producer = world.begin()
    world.advance(TIMEOUT_MS)
    world.add(producer, P)
    world.advance(TIMEOUT_MS - 10_000)
    world.add(producer, Q)
    assert world.transaction.state.label == "Ongoing"
    world.advance(20_001)
    assert world.transaction.state is TransactionState.PREPARE_ABORT
    (markers,) = world.markers
    assert (markers.commit, markers.producer_epoch, markers.partitions) == (
        False,
        ProducerEpoch(1),
        frozenset({P, Q}),
    )
    assert world.end(producer, commit=True).error is FENCED
    assert world.settle(markers)
    assert world.begin() == (producer.producer_id, 2)


def test_what_was_open_times_out_at_the_successor() -> None:
    world = TransactionWorld()
    world.add(world.begin(), P)
    world.advance(TIMEOUT_MS - 1)
    world.crash()
    world.advance(9_999)
    assert world.transaction.state.label == "Ongoing"
    world.advance(1)
    assert world.transaction.state is TransactionState.PREPARE_ABORT


def test_idle_ids_are_forgotten_and_begin_anew() -> None:
    settings = TransactionCoordinatorSettings(id_expiration_ms=DAY_MS)
    world = TransactionWorld(settings)
    done = world.begin()
    world.add(done, P)
    world.end(done, commit=True)
    world.settle(world.markers[0])
    world.advance(settings.id_expiration_ms - 1)
    assert TXN in world.machine.transactions
    world.advance(settings.expiry_check_interval_ms)
    assert world.log[-1] == TransactionRemoved(TXN)
    assert world.machine.transactions == {}
    assert world.add(done, P).error is MAPPING
    world.crash()
    assert world.machine.transactions == {}
    assert world.init(done).producer_id != done.producer_id


@pytest.mark.parametrize("state", [TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT])
def test_what_is_not_ended_is_never_forgotten(state: TransactionState) -> None:
    world = TransactionWorld(TransactionCoordinatorSettings(id_expiration_ms=DAY_MS))
    partitions = frozenset({P})
    begun = created(ProducerId(1), TIMEOUT_MS, START_MS).enlisting(partitions, TV1, START_MS)
    world.put(
        begun.prepared(
            commit=state.is_commit,
            client_version=TV1,
            next_producer_id=ProducerId(-1),
            now_ms=START_MS,
        )
    )
    world.advance(2 * DAY_MS)
    assert world.transaction.state is state


def test_many_at_once_are_dealt_with_in_parts() -> None:
    world = TransactionWorld(TransactionCoordinatorSettings(check_transactions_max=10))
    partitions = frozenset({P})
    for number in range(25):
        begun = created(ProducerId(number), 1, START_MS).enlisting(partitions, TV1, START_MS)
        world.put(begun, f"txn-{number}")
    world.advance(10_000)
    assert len(world.markers) == 10
    world.advance(TransactionCoordinatorSettings().check_pause_ms)
    assert len(world.markers) == 20
    world.advance(TransactionCoordinatorSettings().check_pause_ms)
    assert len(world.markers) == 25
    assert {each.transactional_id for each in world.markers} == {f"txn-{n}" for n in range(25)}


# Limits.


def test_a_transaction_has_so_many_partitions_and_a_coordinator_so_many_ids() -> None:
    budgets = TransactionBudgets(Budget(1), Budget(1000))
    world = TransactionWorld(TransactionCoordinatorSettings(partitions_max=2), budgets=budgets)
    producer = world.begin()
    assert world.add(producer, P, Q).error is NONE
    before = world.transaction
    assert world.add(producer, EnlistedPartition("r", 0)).error is ErrorCode.POLICY_VIOLATION
    assert world.transaction == before
    assert world.add(producer, P, Q).error is NONE
    assert world.init(key="another").error is ErrorCode.POLICY_VIOLATION
    assert world.end(producer, commit=True).error is NONE


def test_to_add_nothing_begins_nothing() -> None:
    world = TransactionWorld()
    producer = world.begin()
    assert world.add(producer).error is NONE
    assert world.transaction.state is TransactionState.EMPTY


# Queries.


def test_a_transaction_is_described() -> None:
    world = TransactionWorld()
    world.add(world.begin(), P)
    found = world.ask(DescribeTransaction(TXN), DescribeTransactionReply)
    assert found == DescribeTransactionReply(NONE, world.transaction)
    unknown = world.ask(DescribeTransaction("unknown"), DescribeTransactionReply)
    assert unknown == DescribeTransactionReply(ErrorCode.TRANSACTIONAL_ID_NOT_FOUND)
    assert (
        world.ask(DescribeTransaction(""), DescribeTransactionReply).error
        is ErrorCode.INVALID_REQUEST
    )


def test_a_description_is_of_what_is_durable() -> None:
    world = TransactionWorld()
    producer = world.begin()
    world.flushes = False
    world.add(producer, P)
    token = world.submit(DescribeTransaction(TXN))
    assert token not in world.replies
    world.flush()
    assert world.replies[token] == DescribeTransactionReply(NONE, world.transaction)


def test_transactions_are_listed_by_state_producer_and_age() -> None:
    world = TransactionWorld()
    world.put(with_epoch(0), "idle")
    for number, name in ((1, "old"), (2, "young")):
        begun = created(ProducerId(number), TIMEOUT_MS, world.now.time_ms)
        world.put(begun.enlisting(frozenset({P}), TV1, world.now.time_ms), name)
        world.advance(1_000)

    def listed(asked: ListTransactions) -> set[str]:
        found = chosen(world.ask(asked, ListTransactionsReply))
        return {each.transactional_id for each in found}

    assert listed(ListTransactions()) == {"idle", "old", "young"}
    assert listed(ListTransactions(states=frozenset({TransactionState.EMPTY}))) == {"idle"}
    assert listed(ListTransactions(producer_ids=frozenset({1, 99}))) == {"old"}
    assert listed(ListTransactions(duration_ms=0)) == {"old", "young"}
    assert listed(ListTransactions(duration_ms=1_000)) == {"old"}
    assert listed(ListTransactions(duration_ms=2_000)) == set()
    ongoing = frozenset({TransactionState.ONGOING})
    assert listed(ListTransactions(states=ongoing, duration_ms=1_000)) == {"old"}


def test_a_listing_is_of_one_moment_whenever_it_is_looked_through() -> None:
    world = TransactionWorld()
    begun = created(ProducerId(1), TIMEOUT_MS, world.now.time_ms)
    world.put(begun, "before")
    reply = world.ask(ListTransactions(), ListTransactionsReply)
    world.put(begun.enlisting(frozenset({P}), TV1, world.now.time_ms), "before")
    world.put(begun, "behind")
    (only,) = chosen(reply)
    assert (only.transactional_id, only.state) == ("before", TransactionState.EMPTY)
