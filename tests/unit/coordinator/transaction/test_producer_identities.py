"""Transactional ids: producer ids, epochs and fences, repeated and used up."""

from __future__ import annotations

from tests.unit.coordinator.transaction.transaction_world import (
    PID,
    TIMEOUT_MS,
    TV2,
    TXN,
    P,
    Q,
    TransactionWorld,
    identity,
    with_epoch,
)
from tidelog.coordinator.transaction.commands import (
    AddReply,
    FreshIdNeeded,
    Identity,
    IdentityReply,
    InitProducer,
)
from tidelog.coordinator.transaction.states import TransactionState
from tidelog.coordinator.transaction.transaction import EPOCH_MAX
from tidelog.identifiers import ProducerEpoch, ProducerId
from tidelog.protocol.error_codes import ErrorCode

NONE = ErrorCode.NONE
CONCURRENT = ErrorCode.CONCURRENT_TRANSACTIONS
FENCED = ErrorCode.PRODUCER_FENCED
MAPPING = ErrorCode.INVALID_PRODUCER_ID_MAPPING
LAST_EPOCH = EPOCH_MAX - 1


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
    assert token not in world.replies, "answered before the record is durable"
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


def test_a_successor_aborts_the_open_transaction_and_takes_an_unused_epoch() -> None:
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


def test_a_producer_is_told_its_new_id_as_often_as_it_asks() -> None:
    world = TransactionWorld()
    world.put(with_epoch(LAST_EPOCH))
    told = world.init(identity(PID, LAST_EPOCH))
    assert [world.init(identity(PID, LAST_EPOCH)) for _ in range(3)] == [told] * 3
    producer = Identity(told.producer_id, told.epoch)
    assert world.add(producer, P) == AddReply(NONE, 1)
    assert world.init(identity(PID, LAST_EPOCH)).error is FENCED, "it has the new id"


def test_used_up_epochs_bring_no_fenced_producer_back() -> None:
    """A producer with an epoch that another one has followed gets no new producer id. Otherwise its
    successor, when it repeats the request, would get the same id."""
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


def test_a_producer_that_was_fenced_with_the_highest_epoch_stays_fenced() -> None:
    world = TransactionWorld()
    world.put(with_epoch(LAST_EPOCH))
    old = identity(PID, LAST_EPOCH)
    world.add(old, P)
    assert world.init().error is CONCURRENT
    assert world.settle(world.markers[0])
    assert world.init(old).error is FENCED
    assert world.begin() == (1001, 0)
    assert world.init(old).error is FENCED


def test_a_fence_may_take_the_highest_epoch_which_no_producer_gets() -> None:
    world = TransactionWorld()
    world.put(with_epoch(LAST_EPOCH))
    producer = identity(PID, LAST_EPOCH)
    world.add(producer, P, version=TV2)
    world.advance(TIMEOUT_MS + 10_001)
    assert world.markers[0].producer_epoch == EPOCH_MAX
    assert world.settle(world.markers[0])
    # With any other epoch a repeated abort would be answered with the current epoch, which is the
    # fence's.
    assert world.end(producer, commit=False, version=TV2).error is FENCED
    for forged in (world.add(identity(PID, EPOCH_MAX), P), world.verify(identity(PID, EPOCH_MAX))):
        assert forged.error is FENCED
    assert world.begin() == (1001, 0)


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
    # The producer knows its new id before that id is durable.
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


def test_an_unknown_epoch_is_no_repetition() -> None:
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
