"""The states of a transaction: the transitions of the table happen, and no others."""

from __future__ import annotations

import itertools

import pytest

from tidelog.coordinator.transaction.states import (
    STATES_BY_LABEL,
    TransactionState,
    may_follow,
)
from tidelog.coordinator.transaction.transaction import (
    EPOCH_MAX,
    NO_EPOCH,
    NO_ID,
    EnlistedPartition,
    InvalidTransactionTransition,
    Transaction,
    created,
)
from tidelog.identifiers import ProducerEpoch, ProducerId

(
    EMPTY,
    ONGOING,
    PREPARE_COMMIT,
    PREPARE_ABORT,
    COMPLETE_COMMIT,
    COMPLETE_ABORT,
    DEAD,
    PREPARE_EPOCH_FENCE,
) = TransactionState
LEGAL = {
    *itertools.product((EMPTY, COMPLETE_COMMIT, COMPLETE_ABORT), (EMPTY, ONGOING, DEAD)),
    (ONGOING, ONGOING),
    (ONGOING, PREPARE_COMMIT),
    (ONGOING, PREPARE_ABORT),
    (ONGOING, PREPARE_EPOCH_FENCE),
    (PREPARE_EPOCH_FENCE, PREPARE_ABORT),
    (PREPARE_COMMIT, COMPLETE_COMMIT),
    (PREPARE_ABORT, COMPLETE_ABORT),
}
LEGAL_UNDER_V2 = LEGAL | {
    (EMPTY, PREPARE_ABORT),
    (COMPLETE_COMMIT, PREPARE_ABORT),
    (COMPLETE_ABORT, PREPARE_ABORT),
}
PARTITIONS = frozenset({EnlistedPartition("t", 0)})


@pytest.mark.parametrize(("before", "after"), [*itertools.product(TransactionState, repeat=2)])
def test_a_state_follows_only_the_states_of_the_table(
    before: TransactionState, after: TransactionState
) -> None:
    assert may_follow(before, after) == ((before, after) in LEGAL)
    assert may_follow(before, after, has_own_epochs=True) == ((before, after) in LEGAL_UNDER_V2)


def transaction(state: TransactionState, epoch: int = 3) -> Transaction:
    return Transaction(
        producer_id=ProducerId(1),
        producer_epoch=ProducerEpoch(epoch),
        state=state,
        timeout_ms=1,
        updated_ms=0,
        partitions=frozenset() if state in (EMPTY, COMPLETE_COMMIT, COMPLETE_ABORT) else PARTITIONS,
    )


@pytest.mark.parametrize("state", [ONGOING, PREPARE_COMMIT, PREPARE_ABORT])
def test_no_producer_takes_over_an_open_transaction(state: TransactionState) -> None:
    before = transaction(state)
    with pytest.raises(InvalidTransactionTransition):
        before.initialised(ProducerEpoch(4), NO_EPOCH, 1, 5)
    with pytest.raises(InvalidTransactionTransition):
        before.rotated(ProducerId(2), NO_EPOCH, 1, 5)


@pytest.mark.parametrize("state", [PREPARE_COMMIT, PREPARE_ABORT])
@pytest.mark.parametrize("commit", [True, False])
@pytest.mark.parametrize("version", [0, 2])
def test_a_decided_transaction_is_not_decided_again(
    state: TransactionState, commit: bool, version: int
) -> None:
    with pytest.raises(InvalidTransactionTransition):
        transaction(state).prepared(
            commit=commit, client_version=version, next_producer_id=NO_ID, now_ms=5
        )
    with pytest.raises(InvalidTransactionTransition):
        transaction(state).enlisting(PARTITIONS, version, 5)


def test_an_epoch_goes_up_by_one_and_no_further_than_the_highest() -> None:
    before = transaction(EMPTY)
    with pytest.raises(InvalidTransactionTransition):
        before.initialised(ProducerEpoch(5), NO_EPOCH, 1, 5)
    with pytest.raises(InvalidTransactionTransition):
        before.initialised(ProducerEpoch(2), NO_EPOCH, 1, 5)
    with pytest.raises(InvalidTransactionTransition):
        transaction(ONGOING, EPOCH_MAX).fenced(NO_EPOCH, 5)


def test_a_transaction_is_numbered_when_it_begins() -> None:
    empty = created(ProducerId(1), 60, 0)
    first = empty.enlisting(PARTITIONS, 0, 10)
    more = first.enlisting(frozenset({EnlistedPartition("t", 1)}), 0, 20)
    done = more.prepared(
        commit=True, client_version=0, next_producer_id=NO_ID, now_ms=30
    ).completed(40)
    second = done.enlisting(PARTITIONS, 0, 50)
    ordinals = [each.ordinal for each in (empty, first, more, done, second)]
    assert ordinals == [0, 1, 1, 1, 2]
    assert [each.begun_ms for each in (first, more, done, second)] == [10, 10, 10, 50]
    assert len(more.partitions) == 2
    assert done.partitions == frozenset()
    assert second.partitions == PARTITIONS


def test_states_have_the_names_of_kafka() -> None:
    assert list(STATES_BY_LABEL) == [
        "Empty",
        "Ongoing",
        "PrepareCommit",
        "PrepareAbort",
        "CompleteCommit",
        "CompleteAbort",
        "Dead",
        "PrepareEpochFence",
    ]
