"""A whole broker lists and describes transactions, and describes the producers of partitions. It
shows no state before that is durable, and answers only with a fresh lease."""

from __future__ import annotations

import asyncio
import gc
from typing import Any

import pytest

from tests.unit.broker.one_broker import TOPIC, OneBroker, World, batch, run
from tests.unit.broker.transactional_client import (
    FIRST,
    SECOND,
    TransactionalClient,
    ask,
    find,
    loaded,
)
from tidelog.broker.handlers.transactions.transaction_queries import (
    describe_producers,
    describe_transactions,
    list_transactions,
)
from tidelog.broker.partitions.partitions import Partition
from tidelog.clock import SystemClock
from tidelog.coordinator.runtime import RuntimeState
from tidelog.errors import CorruptObject
from tidelog.protocol.error_codes import ErrorCode
from tidelog.protocol.schemas.transaction_listing import (
    DescribedProducer,
    DescribedTransaction,
    DescribeProducersPartitionResponse,
    DescribeProducersRequest,
    DescribeProducersTopic,
    DescribeTransactionsRequest,
    ListTransactionsRequest,
    ListTransactionsResponse,
)
from tidelog.storage.stores.memory import MemoryStore

OK = ErrorCode.NONE
SETTINGS = {"offsets_topic_num_partitions": 1, "transaction_state_log_num_partitions": 3}


def world() -> World:
    return World(MemoryStore(SystemClock()), **SETTINGS)


async def described(broker: OneBroker, *keys: str) -> list[DescribedTransaction]:
    request = DescribeTransactionsRequest(transactional_ids=list(keys))
    return (await ask(broker, describe_transactions, request, 0)).transaction_states


async def listing(broker: OneBroker, version: int = 2, **filters: Any) -> ListTransactionsResponse:
    return await ask(broker, list_transactions, ListTransactionsRequest(**filters), version)


async def listed(broker: OneBroker, version: int = 2, **filters: Any) -> dict[str, str]:
    response = await listing(broker, version, **filters)
    assert response.error_code == OK
    return {each.transactional_id: each.transaction_state for each in response.transaction_states}


async def producers(
    broker: OneBroker, partition: int = 0, topic: str = TOPIC
) -> DescribeProducersPartitionResponse:
    request = DescribeProducersRequest(
        topics=[DescribeProducersTopic(name=topic, partition_indexes=[partition])]
    )
    response = await ask(broker, describe_producers, request, 0)
    (only,) = response.topics
    assert only.name == topic
    return only.partitions[0]


async def only_producer(broker: OneBroker, partition: int = 0) -> DescribedProducer:
    (found,) = (await producers(broker, partition)).active_producers
    return found


def hosted(broker: OneBroker, partition: int = 0) -> Partition:
    return broker.broker.writes.partitions.named(TOPIC, partition)


@pytest.mark.parametrize("version", [FIRST, SECOND])
def test_a_transaction_is_described_from_its_beginning_to_its_end(version: int) -> None:
    async def story() -> None:
        async with world().broker() as broker:
            await broker.create_topic(partitions=3)
            producer = TransactionalClient(broker, "txn", version)
            assert await producer.init(timeout_ms=1234) is OK
            (empty,) = await described(broker, "txn")
            assert (empty.error_code, empty.transaction_state) == (OK, "Empty")
            assert empty.transaction_timeout_ms == 1234
            assert (empty.producer_id, empty.producer_epoch) == (producer.producer_id, 0)
            assert (empty.transaction_start_time_ms, empty.topics) == (-1, [])
            for number in (2, 0):
                assert await producer.send(b"x", number) is OK
            (ongoing,) = await described(broker, "txn", "txn")
            assert ongoing.transaction_state == "Ongoing"
            assert (
                0
                <= broker.broker.environment.clock.time_ms() - ongoing.transaction_start_time_ms
                < 60_000
            )
            assert [(each.topic, each.partitions) for each in ongoing.topics] == [(TOPIC, [0, 2])]
            # The decision waits for a partition that cannot be written.
            partition = hosted(broker, 2)
            partition.fault = CorruptObject("some/key", "it is broken")
            assert await producer.commit() is OK
            (prepared,) = await described(broker, "txn")
            assert prepared.transaction_state == "PrepareCommit"
            assert prepared.topics == ongoing.topics
            assert prepared.producer_epoch == (version == SECOND)
            partition.fault = None
            while (await described(broker, "txn"))[0].transaction_state == "PrepareCommit":
                await broker.broker.environment.clock.sleep(0.001)
            (complete,) = await described(broker, "txn")
            assert (complete.transaction_state, complete.topics) == ("CompleteCommit", [])
            assert complete.transaction_start_time_ms == ongoing.transaction_start_time_ms

    run(story)


def test_transactions_that_cannot_be_described() -> None:
    async def story() -> None:
        async with world().broker() as broker:
            codes = [each.error_code for each in await described(broker, "a", "")]
            assert codes == [ErrorCode.NOT_COORDINATOR] * 2
            await find(broker, "a", 1)
            codes = [each.error_code for each in await described(broker, "a", "")]
            assert codes == [ErrorCode.TRANSACTIONAL_ID_NOT_FOUND, ErrorCode.INVALID_REQUEST]

    run(story)


def test_transactions_are_listed_by_state_producer_age_and_pattern() -> None:
    async def story() -> None:
        async with world().broker() as broker:
            assert await listed(broker) == {}
            await broker.create_topic()
            made = {}
            for number, key in enumerate(("shop-1", "shop-2", "bank-1")):
                made[key] = TransactionalClient(broker, key)
                assert await made[key].init() is OK
                if number:
                    assert await made[key].send(b"x") is OK
            assert await made["bank-1"].abort() is OK
            states = {"shop-1": "Empty", "shop-2": "Ongoing", "bank-1": "CompleteAbort"}
            for version in range(3):
                assert await listed(broker, version) == states
            assert await listed(broker, state_filters=["Ongoing"]) == {"shop-2": "Ongoing"}
            both = await listed(broker, state_filters=["Empty", "CompleteAbort"])
            assert sorted(both) == ["bank-1", "shop-1"]
            wanted = [made["shop-1"].producer_id, 999_999]
            assert await listed(broker, producer_id_filters=wanted) == {"shop-1": "Empty"}
            # A transaction that has not begun has no age.
            assert "shop-1" not in await listed(broker, 1, duration_filter=0)
            assert await listed(broker, 1, duration_filter=3_600_000) == {}
            matching = await listed(broker, transactional_id_pattern="shop-.*")
            assert sorted(matching) == ["shop-1", "shop-2"]
            assert await listed(broker, transactional_id_pattern="shop") == {}
            assert await listed(broker, transactional_id_pattern="") == states

    run(story)


def test_unknown_states_are_named_and_a_wrong_pattern_is_refused() -> None:
    async def story() -> None:
        async with world().broker() as broker:
            assert await TransactionalClient(broker, "a").init() is OK
            some = await listing(broker, state_filters=["Empty", "empty", "Late"])
            assert some.unknown_state_filters == ["empty", "Late"]
            assert [each.transactional_id for each in some.transaction_states] == ["a"]
            none = await listing(broker, state_filters=["Late"])
            assert (none.unknown_state_filters, none.transaction_states) == (["Late"], [])
            for pattern in ("(", "a)|(b", r"(a)\1"):
                wrong = await listing(broker, transactional_id_pattern=pattern)
                assert wrong.error_code == ErrorCode.INVALID_REGULAR_EXPRESSION
                assert wrong.transaction_states == []

    run(story)


def test_a_listing_is_refused_while_a_coordinator_loads_or_is_corrupt() -> None:
    async def story() -> None:
        async with world().broker() as broker:
            assert await TransactionalClient(broker, "a").init() is OK
            runtime = broker.broker.coordination.coordinators.transactions.all()[0]
            for state, code in (
                (RuntimeState.LOADING, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS),
                (RuntimeState.CORRUPT, ErrorCode.COORDINATOR_NOT_AVAILABLE),
                (RuntimeState.STOPPED, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS),
            ):
                runtime._state = state
                response = await listing(broker)
                assert (response.error_code, response.transaction_states) == (code, [])
            runtime._state = RuntimeState.READY
            assert await listed(broker) == {"a": "Empty"}

    run(story)


@pytest.mark.parametrize("version", [FIRST, SECOND])
def test_a_partitions_producers_with_their_open_transactions(version: int) -> None:
    async def story() -> None:
        async with world().broker() as broker:
            await broker.create_topic()
            assert (await producers(broker)).active_producers == []
            await broker.produce(batch(b"plain"))
            assert (await producers(broker)).active_producers == []
            producer = TransactionalClient(broker, "txn", version)
            assert await producer.init() is OK
            assert await producer.send(b"x") is OK
            assert await producer.send(b"y") is OK
            found = await only_producer(broker)
            assert (found.producer_id, found.producer_epoch) == (producer.producer_id, 0)
            assert (found.last_sequence, found.current_txn_start_offset) == (1, 1)
            assert found.coordinator_epoch == -1
            assert 0 <= broker.broker.environment.clock.time_ms() - found.last_timestamp < 60_000
            assert await producer.commit() is OK
            found = await only_producer(broker)
            assert (found.coordinator_epoch, found.current_txn_start_offset) == (0, -1)
            assert found.producer_epoch == (version == SECOND)
            idempotent = batch(b"z", producer_id=77, producer_epoch=3, base_sequence=0)
            assert (await broker.produce(idempotent)).error_code == OK
            found = (await producers(broker)).active_producers[-1]
            assert (found.producer_id, found.producer_epoch, found.last_sequence) == (77, 3, 0)
            assert found.current_txn_start_offset == -1

    run(story)


def test_partitions_whose_producers_cannot_be_described() -> None:
    async def story() -> None:
        async with world().broker() as broker:
            await broker.create_topic()
            for topic, partition in (("none", 0), (TOPIC, 1), (TOPIC, -1)):
                missing = await producers(broker, partition, topic)
                assert missing.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            hosted(broker).fault = CorruptObject("some/key", "it is broken")
            faulty = await producers(broker)
            assert faulty.error_code == ErrorCode.KAFKA_STORAGE_ERROR
            assert "some/key" in (faulty.error_message or "")

    run(story)


def test_a_broker_without_a_fresh_lease_refuses_to_describe_transactions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def story() -> None:
        async with world().broker() as broker:
            await broker.create_topic()
            producer = TransactionalClient(broker, "txn")
            assert await producer.init() is OK
            assert await producer.send(b"x") is OK
            lease = broker.broker.membership.lease
            with monkeypatch.context() as patched:
                patched.setattr(lease, "fresh", lambda _: False)
                told = await producers(broker)
                assert (told.error_code, told.active_producers) == (
                    ErrorCode.NOT_LEADER_OR_FOLLOWER,
                    [],
                )
                (described_,) = await described(broker, "txn")
                assert described_.error_code == ErrorCode.NOT_COORDINATOR
                response = await listing(broker)
                assert response.error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
            assert (await only_producer(broker)).current_txn_start_offset == 0
            assert await listed(broker) == {"txn": "Ongoing"}

    run(story)


class HeldStore(MemoryStore):
    """Lets puts through only while a test allows it."""

    def __init__(self) -> None:
        super().__init__(SystemClock())
        self.open = asyncio.Event()

    async def put(self, *args: Any, **options: Any) -> str:
        await self.open.wait()
        return await super().put(*args, **options)


def test_producers_are_listed_when_their_batches_are_durable() -> None:
    async def story() -> None:
        store = HeldStore()
        store.open.set()
        async with World(store, **SETTINGS).broker() as broker:
            await broker.create_topic()
            store.open.clear()
            await broker.send(batch(b"x", producer_id=5, producer_epoch=0, base_sequence=0))
            assert [each.producer_id for each in hosted(broker).log.producers] == [5]
            telling = asyncio.create_task(producers(broker))
            for _ in range(20):
                await asyncio.sleep(0)
            assert not telling.done()
            store.open.set()
            assert [each.producer_id for each in (await telling).active_producers] == [5]

    run(story)


def test_a_description_that_is_given_up_leaves_no_error_behind() -> None:
    async def story() -> None:
        unhandled: list[Any] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, what: unhandled.append(what))
        store = HeldStore()
        store.open.set()
        async with World(store, **SETTINGS).broker() as broker:
            producer = TransactionalClient(broker, "a")
            assert await producer.init() is OK
            transactions = broker.broker.coordination.coordinators.transactions
            elsewhere = next(
                key for key in "bcdefg" if transactions.find(key) is not transactions.find("a")
            )
            transactions.find(elsewhere)._state = RuntimeState.STOPPED
            store.open.clear()
            asking_again = asyncio.create_task(producer.init())
            # The first answer waits for the store; the second one is a refusal.
            describing = asyncio.create_task(described(broker, "a", elsewhere))
            for _ in range(20):
                await asyncio.sleep(0)
            describing.cancel()
            await asyncio.wait([describing])
            del describing
            gc.collect()
            store.open.set()
            assert await asking_again is OK
            assert unhandled == []

    run(story)


def test_all_answers_are_the_same_after_the_broker_died() -> None:
    async def story() -> None:
        here = world()
        async with here.broker(politely=False) as broker:
            await broker.create_topic()
            producer = TransactionalClient(broker, "txn")
            assert await producer.init() is OK
            assert await producer.send(b"x") is OK
            before = await described(broker, "txn")
            wrote = await only_producer(broker)
        async with here.broker() as broker:
            await loaded(broker)
            assert await listed(broker) == {"txn": "Ongoing"}
            assert await described(broker, "txn") == before
            known = await only_producer(broker)
            # The log takes the slot's time as the time at which a batch was appended.
            assert 0 <= known.last_timestamp - wrote.last_timestamp < 60_000
            wrote.last_timestamp = known.last_timestamp
            assert known == wrote

    run(story)
