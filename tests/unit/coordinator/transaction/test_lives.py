"""The course of transactions: markers, successors, time, limits and descriptions."""

from __future__ import annotations

import pytest

from tests.unit.coordinator.transaction.transaction_world import (
    START_MS,
    TIMEOUT_MS,
    TV1,
    TXN,
    P,
    Q,
    TransactionWorld,
    with_epoch,
)
from tidelog.coordinator.budget import Budget
from tidelog.coordinator.transaction.commands import (
    DescribeTransaction,
    DescribeTransactionReply,
    ListTransactions,
    ListTransactionsReply,
    MarkersSettled,
    SettledReply,
)
from tidelog.coordinator.transaction.limits import TransactionBudgets
from tidelog.coordinator.transaction.listing import chosen
from tidelog.coordinator.transaction.log_records import TransactionRemoved
from tidelog.coordinator.transaction.settings import TransactionCoordinatorSettings
from tidelog.coordinator.transaction.states import TransactionState
from tidelog.coordinator.transaction.transaction import EnlistedPartition, created
from tidelog.identifiers import ProducerEpoch, ProducerId
from tidelog.protocol.error_codes import ErrorCode

NONE = ErrorCode.NONE
CONCURRENT = ErrorCode.CONCURRENT_TRANSACTIONS
FENCED = ErrorCode.PRODUCER_FENCED
MAPPING = ErrorCode.INVALID_PRODUCER_ID_MAPPING
DAY_MS = 24 * 60 * 60_000


def test_a_late_marker_of_an_earlier_transaction_does_not_end_the_open_transaction() -> None:
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
def test_a_successor_asks_for_the_markers_of_decided_transactions(commit: bool) -> None:
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


def test_an_open_transaction_times_out_at_the_successor() -> None:
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
def test_an_id_with_an_unended_transaction_is_never_forgotten(state: TransactionState) -> None:
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


def test_partitions_of_a_transaction_and_ids_of_a_coordinator_are_limited() -> None:
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


def test_adding_no_partition_does_not_begin_a_transaction() -> None:
    world = TransactionWorld()
    producer = world.begin()
    assert world.add(producer).error is NONE
    assert world.transaction.state is TransactionState.EMPTY


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


def test_a_description_waits_until_its_state_is_durable() -> None:
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
