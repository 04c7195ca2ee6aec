"""Answers and markers of the transaction coordinator wait until the records behind them are
durable."""

from __future__ import annotations

from tests.unit.coordinator.transaction.transaction_world import (
    TIMEOUT_MS,
    TV1,
    TXN,
    P,
    Q,
    TransactionWorld,
    identity,
)
from tidelog.coordinator.transaction.commands import (
    AddPartitions,
    AddReply,
    IdentityReply,
    InitProducer,
    ListTransactions,
    MarkersSettled,
    Release,
    VerifyPartitions,
    VerifyReply,
)
from tidelog.coordinator.transaction.decision import Markers
from tidelog.coordinator.transaction.states import TransactionState
from tidelog.coordinator.transaction.transaction import EnlistedPartition
from tidelog.protocol.error_codes import ErrorCode

NONE = ErrorCode.NONE
FENCED = ErrorCode.PRODUCER_FENCED


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
    """Further requests of that transaction are refused, since a late batch of an earlier
    transaction would look the same."""
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
    # The coordinator cannot tell this abort from a late abort of the transaction before.
    assert world.end(producer, commit=False).error is ErrorCode.INVALID_TXN_STATE
    assert world.transaction == decided
    # The next producer goes on with a new epoch, which no late request has.
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


def test_a_refusal_waits_until_its_reason_is_durable() -> None:
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


def test_a_decision_that_was_not_durable_never_was() -> None:
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
