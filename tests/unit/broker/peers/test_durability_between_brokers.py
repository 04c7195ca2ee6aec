"""Brokers tell each other only durable facts about a transaction (H2, H3)."""

from __future__ import annotations

import asyncio

import pytest

from tests.unit.broker.one_broker import TOPIC, OneBroker, run, until
from tests.unit.broker.ownership.test_several_brokers import epoch_of, take_over
from tests.unit.broker.peers.several import OK, RoutedClient, create, divided, new_world, refreshed
from tests.unit.broker.peers.test_transactions_between_brokers import leader_end, until_stable
from tests.unit.broker.transactional_client import FIRST, SECOND, read
from tests.unit.wal.gated_store import GatedStore
from tidelog.clock import SystemClock
from tidelog.coordinator.internal_topics import TRANSACTION_TOPIC
from tidelog.coordinator.transaction.transaction import Transaction
from tidelog.protocol.error_codes import ErrorCode
from tidelog.storage.stores.memory import MemoryStore
from tidelog.wal.format.object_format import wal_prefix

both_versions = pytest.mark.parametrize("version", [FIRST, SECOND])


def open_store() -> GatedStore:
    store = GatedStore(MemoryStore(SystemClock()))
    store.open()
    return store


def wal_of(one: OneBroker) -> str:
    return wal_prefix(one.broker.membership.incarnation)


async def settled() -> None:
    """Time in which another broker could do everything that needs no waiting."""
    for _ in range(50):
        await asyncio.sleep(0.002)


def transaction_at(coordinator: OneBroker) -> Transaction:
    (runtime,) = coordinator.broker.coordination.coordinators.transactions.all()
    return runtime._machine.transactions["t"]  # type: ignore[attr-defined]


def test_an_addition_that_is_not_durable_admits_nothing() -> None:
    async def story() -> None:
        store = open_store()
        async with divided(new_world(store), 0) as brokers:
            leader, coordinator = brokers
            producer = RoutedClient(coordinator, [leader], coordinator)
            assert await producer.init() is OK
            store.hold(wal_of(coordinator))
            sent = asyncio.create_task(producer.send(b"x"))
            await until(lambda: store.waiting)
            await settled()
            assert not sent.done()
            assert leader_end(leader) == 0
            store.open()
            assert await sent is OK

    run(story)


def test_an_addition_that_is_lost_with_its_broker_has_admitted_nothing() -> None:
    async def story() -> None:
        store = open_store()
        world = new_world(store)
        async with world.broker(0) as leader:
            async with world.broker(1, politely=False) as dead:
                await create(dead, TRANSACTION_TOPIC, dead, internal=True)
                await create(dead, TOPIC, leader)
                await refreshed(leader)
                producer = RoutedClient(dead, [leader], dead)
                assert await producer.init() is OK
                store.hold(wal_of(dead))
                sent = asyncio.create_task(producer.send(b"x"))
                await until(lambda: store.waiting)
            store.open()
            await take_over(leader, dead, {0: epoch_of(leader)})
            transactions = leader.broker.coordination.coordinators.transactions
            # The successor admits the request, or refuses it with a code that makes the producer
            # repeat it.
            code = await sent
            assert code in (OK, ErrorCode.NOT_ENOUGH_REPLICAS)
            producer.broker = producer.coordinator = leader
            await until(lambda: transactions.all())
            while code is not OK:
                await leader.broker.environment.clock.sleep(0.001)
                code = await producer.send(b"x")
            assert await producer.commit() is OK
            await until_stable(leader, 0, 2)
            assert await read(leader) == [b"x"]

    run(story)


@both_versions
def test_a_marker_leaves_when_the_decision_is_durable(version: int) -> None:
    async def story() -> None:
        store = open_store()
        async with divided(new_world(store), 0) as brokers:
            leader, coordinator = brokers
            producer = RoutedClient(coordinator, [leader], coordinator, version)
            assert await producer.init() is OK
            assert await producer.send(b"x") is OK
            store.hold(wal_of(coordinator))
            committed = asyncio.create_task(producer.commit())
            await until(lambda: store.waiting)
            await settled()
            assert not committed.done()
            assert leader_end(leader) == 1
            store.open()
            assert await committed is OK
            await until_stable(leader, 0, 2)

    run(story)


@both_versions
def test_a_transaction_is_complete_when_all_its_markers_are_durable(version: int) -> None:
    async def story() -> None:
        store = open_store()
        async with divided(new_world(store), 0, 1) as brokers:
            leader, coordinator = brokers
            producer = RoutedClient(coordinator, brokers, coordinator, version)
            assert await producer.init() is OK
            assert await producer.send(b"x") is OK
            assert await producer.send(b"y", 1) is OK
            store.hold(wal_of(leader))
            assert await producer.commit() is OK
            await until(lambda: store.waiting)
            await settled()
            # The marker is appended there, but could still be lost.
            assert leader_end(leader) == 2
            assert await read(leader) == []
            assert await read(coordinator, 1) == [b"y"]
            assert transaction_at(coordinator).state.is_prepared
            store.open()
            await until(lambda: transaction_at(coordinator).state.is_complete)
            await until_stable(leader, 0, 2)
            assert await read(leader) == [b"x"]

    run(story)
