"""Limits of the memory that producers can use in transaction coordinators."""

from __future__ import annotations

from tests.unit.coordinator.transaction.transaction_world import TXN, P, Q, TransactionWorld
from tidelog.coordinator.budget import Budget
from tidelog.coordinator.transaction.limits import TransactionBudgets
from tidelog.coordinator.transaction.settings import TransactionCoordinatorSettings
from tidelog.coordinator.transaction.transaction import EnlistedPartition
from tidelog.protocol.error_codes import ErrorCode

NONE = ErrorCode.NONE
HUGE = 2**40


def budgets(ids: int = HUGE, partitions: int = HUGE) -> TransactionBudgets:
    return TransactionBudgets(Budget(ids), Budget(partitions))


def held(world: TransactionWorld) -> tuple[int, int]:
    return world.budgets.ids.held, world.budgets.partitions.held


def test_a_transactional_id_has_a_length() -> None:
    world = TransactionWorld(TransactionCoordinatorSettings(id_length_max=10))
    assert world.init(key="x" * 11).error is ErrorCode.INVALID_REQUEST
    assert [each.setting for each in world.limits] == ["id.length.max"]
    assert not world.log
    assert world.init(key="x" * 10).error is NONE


def test_the_transactional_ids_of_a_broker_are_limited() -> None:
    shared = budgets(ids=2)
    one, other = TransactionWorld(budgets=shared), TransactionWorld(budgets=shared)
    assert one.init(key="a").error is NONE
    assert other.init(key="b").error is NONE
    assert one.init(key="c").error is ErrorCode.POLICY_VIOLATION
    assert other.init(key="c").error is ErrorCode.POLICY_VIOLATION
    assert [each.setting for each in one.limits] == ["transactional.ids.max"]
    assert "at most 2" in one.limits[0].why
    assert one.init(key="a").error is NONE
    other.machine.close()
    assert one.init(key="c").error is NONE


def test_an_expired_id_makes_room() -> None:
    world = TransactionWorld(budgets=budgets(ids=1))
    assert world.init(key="a").error is NONE
    world.advance(world.settings.id_expiration_ms + world.settings.expiry_check_interval_ms)
    assert held(world) == (0, 0)
    assert world.init(key="b").error is NONE


def test_open_transactions_have_so_many_partitions_together() -> None:
    world = TransactionWorld(budgets=budgets(partitions=2))
    producer = world.begin()
    assert world.add(producer, P, Q).error is NONE
    before = world.transaction
    refused = world.add(producer, P, Q, EnlistedPartition("r", 0))
    assert refused.error is ErrorCode.POLICY_VIOLATION
    assert [each.setting for each in world.limits] == ["transactions.max.partitions"]
    assert world.transaction == before
    assert world.add(producer, P, Q).error is NONE
    assert held(world) == (1, 2)


def test_an_ended_transaction_makes_room() -> None:
    world = TransactionWorld(budgets=budgets(partitions=2))
    producer = world.begin()
    assert world.add(producer, P, Q).error is NONE
    assert world.end(producer, commit=True).error is NONE
    assert world.settle(world.markers[-1])
    assert held(world) == (1, 0)
    assert world.add(producer, EnlistedPartition("r", 0)).error is NONE


def test_a_successor_holds_the_same_and_serves_more_than_the_limits() -> None:
    world = TransactionWorld(budgets=budgets())
    producer = world.begin()
    world.add(producer, P, Q)
    world.init(key="other")
    before = held(world)
    world.crash()
    assert held(world) == before == (2, 2)
    world.budgets = budgets(ids=1, partitions=1)
    world.crash()
    assert held(world) == (2, 2)
    assert world.init(key="third").error is ErrorCode.POLICY_VIOLATION
    assert world.add(producer, EnlistedPartition("r", 0)).error is ErrorCode.POLICY_VIOLATION
    assert world.end(producer, commit=False).error is NONE
    assert TXN in world.machine.transactions
