"""Transactions through a whole broker: atomic, fenced, one slot a commit, and intact after the
broker dies within a transaction."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from tests.unit.broker.one_broker import OneBroker, World, batch, run
from tests.unit.broker.transactional_client import (
    FIRST,
    GROUP,
    SECOND,
    TransactionalClient,
    committed_offset,
    find,
    loaded,
    read,
)
from tests.unit.wal.gated_store import GatedStore
from tidelog.clock import SystemClock
from tidelog.protocol.error_codes import ErrorCode
from tidelog.storage.stores.memory import MemoryStore

OK = ErrorCode.NONE
SETTINGS = {
    "offsets_topic_num_partitions": 3,
    "transaction_state_log_num_partitions": 3,
    "group_initial_rebalance_delay_ms": 0,
}
both_versions = pytest.mark.parametrize("version", [FIRST, SECOND])


def world(**settings: object) -> World:
    return World(MemoryStore(SystemClock()), **{**SETTINGS, **settings})


@asynccontextmanager
async def serving(here: World, *, politely: bool = True) -> AsyncIterator[OneBroker]:
    async with here.broker(politely=politely) as broker:
        await loaded(broker)
        yield broker


@both_versions
def test_committed_records_are_seen_and_aborted_ones_are_not(version: int) -> None:
    async def story() -> None:
        async with serving(world()) as broker:
            await broker.create_topic(partitions=2)
            producer = TransactionalClient(broker, version=version)
            assert await producer.init() is OK
            assert await producer.send(b"a", 0) is OK
            assert await producer.send(b"b", 1) is OK
            assert await read(broker) == []
            assert await read(broker, committed=False) == [b"a"]
            assert await producer.commit() is OK
            assert (await read(broker), await read(broker, 1)) == ([b"a"], [b"b"])
            assert await producer.send(b"c") is OK
            assert await producer.abort() is OK
            assert await read(broker) == [b"a"]
            assert await read(broker, committed=False) == [b"a", b"c"]
            assert await producer.send(b"d") is OK
            assert await producer.commit() is OK
            assert await read(broker) == [b"a", b"d"]

    run(story)


@both_versions
def test_a_commit_of_many_partitions_is_one_slot(version: int) -> None:
    """Rule H3: prepare, markers and complete are in one WAL object."""

    async def story() -> None:
        async with serving(world()) as broker:
            await broker.create_topic(partitions=8)
            producer = TransactionalClient(broker, version=version)
            await producer.init()
            for partition in range(8):
                await producer.send(b"first", partition)
            await producer.commit()
            wal = broker.broker.writes.wal
            before = wal.durable_end
            for partition in range(8):
                assert await producer.send(b"x", partition) is OK
            sent = wal.durable_end
            assert await producer.commit() is OK
            assert wal.durable_end == sent + 1
            if version == SECOND:
                assert sent == before + 8
            assert wal.newest_slot == sent
            assert await read(broker, 7) == [b"first", b"x"]

    run(story)


def test_the_last_stable_offset_is_that_of_the_first_open_transaction() -> None:
    async def story() -> None:
        async with serving(world()) as broker:
            await broker.create_topic()
            one = TransactionalClient(broker, "one")
            two = TransactionalClient(broker, "two")
            await one.init()
            await two.init()
            await broker.produce(batch(b"plain"))
            assert await one.send(b"1") is OK
            await broker.produce(batch(b"between"))
            assert await two.send(b"2") is OK

            async def stable() -> int:
                answer = await broker.fetch(0, committed=True)
                assert (
                    answer.last_stable_offset == (await broker.offsets(-1, committed=True)).offset
                )
                return answer.last_stable_offset

            assert await stable() == 1
            assert await two.commit() is OK
            assert await stable() == 1
            assert await read(broker) == [b"plain"]
            assert await one.abort() is OK
            assert await stable() == 6 == (await broker.offsets(-1)).offset
            assert await read(broker) == [b"plain", b"between", b"2"]

    run(story)


@both_versions
def test_a_fenced_producer_can_neither_send_nor_commit_nor_move_offsets(version: int) -> None:
    async def story() -> None:
        async with serving(world()) as broker:
            await broker.create_topic(partitions=2)
            await find(broker, GROUP, 0)
            zombie = TransactionalClient(broker, version=version)
            await zombie.init()
            assert await zombie.send(b"zombie") is OK
            heir = TransactionalClient(broker, version=version)
            assert await heir.init() is OK
            assert heir.producer_id == zombie.producer_id
            assert heir.epoch > zombie.epoch
            fenced = ErrorCode.INVALID_PRODUCER_EPOCH
            assert await zombie.send(b"late", adds=False) is fenced
            assert await zombie.send(b"late", 1, adds=False) is fenced
            assert await zombie.commit_offset(5, adds=False) is fenced
            assert await zombie.commit() is ErrorCode.PRODUCER_FENCED
            if version == FIRST:
                assert await zombie.add(1) is ErrorCode.PRODUCER_FENCED
                assert await zombie.add(1, version=1) is fenced
            assert await heir.send(b"heir") is OK
            assert await heir.commit() is OK
            assert await read(broker) == [b"heir"]
            assert await read(broker, 1) == []
            assert await committed_offset(broker) == -1

    run(story)


def test_a_batch_of_a_partition_without_an_addition_is_refused() -> None:
    async def story() -> None:
        async with serving(world()) as broker:
            await broker.create_topic(partitions=2)
            producer = TransactionalClient(broker, version=FIRST)
            await producer.init()
            abortable = ErrorCode.TRANSACTION_ABORTABLE
            assert await producer.send(b"x", adds=False) is abortable
            assert await producer.add(0) is OK
            assert await producer.send(b"x", adds=False) is OK
            assert await producer.send(b"x", 1, adds=False) is abortable
            assert await producer.commit() is OK
            assert await producer.send(b"late", adds=False) is abortable
            assert await read(broker, committed=False) == [b"x"]

    run(story)


@both_versions
def test_offsets_count_if_and_when_the_transaction_does(version: int) -> None:
    async def story() -> None:
        async with serving(world()) as broker:
            await broker.create_topic()
            assert await find(broker, GROUP, 0) is OK
            producer = TransactionalClient(broker, version=version)
            await producer.init()
            assert await producer.send(b"out") is OK
            assert await producer.commit_offset(7) is OK
            assert await committed_offset(broker) == -ErrorCode.UNSTABLE_OFFSET_COMMIT
            assert await committed_offset(broker, stable=False) == -1
            assert await producer.commit() is OK
            assert await committed_offset(broker) == 7
            assert await producer.commit_offset(9) is OK
            assert await producer.abort() is OK
            assert await committed_offset(broker) == 7

    run(story)


@both_versions
@pytest.mark.parametrize("politely", [True, False])
def test_an_open_transaction_survives_the_death_of_the_broker(version: int, politely: bool) -> None:
    async def story() -> None:
        here = world()
        async with serving(here, politely=politely) as broker:
            await broker.create_topic(partitions=2)
            await find(broker, GROUP, 0)
            producer = TransactionalClient(broker, version=version)
            await producer.init()
            await producer.send(b"a")
            await producer.commit_offset(3)
            await producer.commit()
            await producer.send(b"aborted")
            await producer.abort()
            await producer.send(b"open", 1)
            await producer.commit_offset(4)
        async with serving(here) as broker:
            assert await read(broker) == [b"a"]
            assert await read(broker, 1) == []
            assert await committed_offset(broker, stable=False) == 3
            assert await committed_offset(broker) == -ErrorCode.UNSTABLE_OFFSET_COMMIT
            producer.broker = broker
            # The same producer continues its open transaction.
            assert await producer.send(b"more", 1) is OK
            assert await producer.commit() is OK
            assert await read(broker, 1) == [b"open", b"more"]
            assert await committed_offset(broker) == 4
        async with serving(here) as broker:
            heir = TransactionalClient(broker, version=version)
            assert await heir.init() is OK
            assert heir.producer_id == producer.producer_id
            assert heir.epoch > producer.epoch
            assert await read(broker, committed=False) == [b"a", b"aborted"]

    run(story)


@pytest.mark.parametrize("is_group", [False, True])
def test_an_addition_is_told_when_nothing_that_it_rests_on_can_be_lost(is_group: bool) -> None:
    """The previous transaction is decided, but its markers are not durable yet. The broker may die
    and lose them. A batch that follows the addition would then count as part of the previous
    transaction, which is still open in the partition, and would be committed with it."""

    async def story() -> None:
        store = GatedStore(MemoryStore(SystemClock()))
        store.open()
        one_entry_a_slot = {"wal_object_max_bytes": 1, "wal_uploads_in_flight_max": 1}
        here = World(store, **{**SETTINGS, **one_entry_a_slot})
        async with serving(here) as broker:
            await broker.create_topic()
            await find(broker, GROUP, 0)
            producer = TransactionalClient(broker, version=FIRST)
            await producer.init()
            await producer.send(b"a")
            store.hold("wal/")
            commit = asyncio.create_task(producer.commit())
            for _ in range(1000):
                await asyncio.sleep(0)
            (decision,) = store.waiting
            store.release(decision)
            assert await commit is OK
            addition = producer.add_group() if is_group else producer.add(0)
            told = asyncio.create_task(addition)
            for _ in range(1000):
                await asyncio.sleep(0)
            assert not told.done()
            store.open()
            assert await told is OK
            assert await producer.send(b"b", adds=is_group) is OK
            assert await producer.abort() is OK
            assert await read(broker) == [b"a"]

    run(story)


def test_requests_behind_a_missing_addition_are_refused() -> None:
    """No part of the transaction exists, and its producer gets a new epoch."""

    async def story() -> None:
        here = world()
        async with serving(here) as broker:
            await broker.create_topic()
            await find(broker, GROUP, 0)
            producer = TransactionalClient(broker, version=FIRST)
            await producer.init()
            await producer.send(b"a")
            await producer.commit()
        async with serving(here) as broker:
            producer.broker = broker
            abortable = ErrorCode.TRANSACTION_ABORTABLE
            assert await producer.send(b"b", adds=False) is abortable
            assert await producer.commit_offset(3, adds=False) is abortable
            assert await producer.abort() is ErrorCode.INVALID_TXN_STATE
            assert await producer.init() is OK
            assert await producer.send(b"b") is OK
            assert await producer.commit() is OK
            assert await read(broker) == [b"a", b"b"]
            assert await committed_offset(broker) == -1

    run(story)


@both_versions
def test_an_open_transaction_that_times_out_is_aborted(version: int) -> None:
    async def story() -> None:
        here = world(transaction_abort_timed_out_transaction_cleanup_interval_ms=10)
        async with serving(here) as broker:
            await broker.create_topic()
            producer = TransactionalClient(broker, version=version)
            await producer.init(timeout_ms=1000)
            assert await producer.send(b"x") is OK
            # The marker is written, and the last stable offset moves.
            answer = await broker.fetch(1, committed=True, wait_ms=30_000)
            assert answer.last_stable_offset == 2
            assert await read(broker) == []
            # Under the second version the request may repeat a commit that was decided.
            fenced, decided = ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_TXN_STATE
            assert await producer.commit() is (fenced if version == FIRST else decided)
            assert await producer.send(b"late", adds=False) is ErrorCode.INVALID_PRODUCER_EPOCH

    run(story)


def test_a_transaction_of_a_deleted_topic_ends_in_its_other_topics() -> None:
    async def story() -> None:
        async with serving(world()) as broker:
            await broker.create_topic()
            doomed = await broker.create_topic("doomed")
            producer = TransactionalClient(broker)
            await producer.init()
            assert await producer.send(b"x") is OK
            assert await producer.send(b"y", topic="doomed") is OK
            await broker.delete_topic(doomed)
            assert await producer.commit() is OK
            assert await read(broker) == [b"x"]
            assert await producer.send(b"z") is OK
            assert await producer.commit() is OK
            assert await read(broker) == [b"x", b"z"]

    run(story)


def test_an_addition_with_a_missing_partition_adds_no_partition() -> None:
    async def story() -> None:
        async with serving(world()) as broker:
            await broker.create_topic()
            producer = TransactionalClient(broker, version=FIRST)
            await producer.init()
            assert await producer.add(5, 0) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            assert await producer.add(0, 5) is ErrorCode.OPERATION_NOT_ATTEMPTED
            assert await producer.add(0, topic="missing") is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            assert await producer.commit() is ErrorCode.INVALID_TXN_STATE

    run(story)


@both_versions
def test_while_the_lease_is_stale_a_producer_is_told_to_try_again_and_its_batch_counts_once(
    version: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story() -> None:
        async with serving(world()) as broker:
            await broker.create_topic()
            producer = TransactionalClient(broker, version=version)
            assert await producer.init() is OK
            if version == FIRST:
                assert await producer.add(0) is OK
            with monkeypatch.context() as patched:
                patched.setattr(broker.broker.membership.lease, "fresh", lambda _: False)
                refused = await producer.send(b"a", adds=False)
                assert refused is ErrorCode.NOT_ENOUGH_REPLICAS
            assert await read(broker, committed=False) == []
            assert await producer.send(b"a", adds=False) is OK
            assert await producer.commit() is OK
            assert await read(broker) == [b"a"]

    run(story)
