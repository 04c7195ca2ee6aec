"""FlushTopics: the waits of a flush, and the errors of flushes that cannot succeed."""

from __future__ import annotations

import asyncio

from tests.unit.broker.one_broker import TOPIC, OneBroker, World, batch, run, until
from tests.unit.broker.rolled import ShakyStore, decided, hosted, offsets, spoil, world
from tests.unit.broker.transactional_client import TransactionalClient, loaded
from tidelog.broker.handlers.data.flush import flush_topics
from tidelog.coordinator.internal_topics import GROUP_TOPIC
from tidelog.protocol.error_codes import ErrorCode
from tidelog.protocol.schemas.own.flush import FlushPartitionResult, FlushTopic, FlushTopicsRequest

OK = ErrorCode.NONE


async def flush(
    one: OneBroker, *partitions: int, topic: str = TOPIC, timeout_ms: int = 20_000
) -> list[FlushPartitionResult]:
    request = FlushTopicsRequest(
        timeout_ms=timeout_ms, topics=[FlushTopic(name=topic, partitions=list(partitions))]
    )
    response = await flush_topics(one.broker.services.data, request, one.context(0))
    (answer,) = response.topics
    assert answer.name == topic
    return answer.partitions


def test_all_that_is_decided_is_in_the_table_when_it_is_answered() -> None:
    here = world()

    async def story() -> None:
        async with here.broker() as one:
            topic_id = await one.create_topic(partitions=3)
            await one.produce(batch(b"a", b"b"), 0)
            await one.produce(batch(b"c"), 2)
            found = await flush(one, 0, 1, 2)
            assert [result.table_next_offset for result in found] == [2, 0, 1]
            assert all(result.error_code == OK for result in found)
            assert all(result.held_at_offset == -1 for result in found)
            assert await offsets(here.store, topic_id) == [0, 1]
            assert await offsets(here.store, topic_id, 2) == [0]

    run(story)


def test_the_transaction_that_holds_back_is_named() -> None:
    here = world()

    async def story() -> None:
        async with here.broker() as one:
            await loaded(one)
            await one.create_topic()
            client = TransactionalClient(one)
            assert await client.init() is OK
            await one.produce(batch(b"before"))
            assert await client.send(b"in it") is OK
            await one.produce(batch(b"behind"))
            (found,) = await flush(one, 0)
            assert found == FlushPartitionResult(
                partition_index=0,
                table_next_offset=1,
                high_watermark=3,
                held_at_offset=1,
                held_by_producer_id=client.producer_id,
            )
            assert await client.commit() is OK
            await decided(one, 4)
            (found,) = await flush(one, 0)
            assert (found.table_next_offset, found.held_at_offset) == (4, -1)

    run(story)


def test_a_flush_names_partitions_led_elsewhere_and_without_a_table() -> None:
    here = world()

    async def story() -> None:
        async with here.broker() as one:
            await loaded(one)
            await one.create_topic()
            await one.produce(batch(b"a"))
            found = await flush(one, 0, 7)
            assert [each.error_code for each in found] == [
                OK,
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            ]
            client = TransactionalClient(one)
            assert await client.init() is OK
            (found_,) = await flush(one, 0, topic="__transaction_state")
            assert found_.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
            (found_,) = await flush(one, 0, topic=GROUP_TOPIC)
            assert found_.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    run(story)


def test_a_corrupt_object_is_named_at_once() -> None:
    here = world(tail_cache_bytes=0)

    async def story() -> None:
        async with here.broker() as one:
            await one.create_topic(partitions=2)
            await one.produce(batch(b"a"), 0)
            await one.produce(batch(b"b"), 1)
            (extent,) = hosted(one).log.extents
            await spoil(here.store, extent.key, extent.position + extent.length - 1)
            wrong, right = await flush(one, 0, 1)
            assert wrong.error_code == ErrorCode.KAFKA_STORAGE_ERROR
            assert extent.key in (wrong.error_message or "")
            assert (right.error_code, right.table_next_offset) == (OK, 1)

    run(story)


def test_a_flush_that_times_out_names_the_last_failure() -> None:
    store = ShakyStore()
    here = world(store)

    async def story() -> None:
        async with here.broker() as one:
            await one.create_topic()
            await one.produce(batch(b"a"))
            store.refusals = {"/partition=": 1_000}
            asking = asyncio.create_task(flush(one, 0, timeout_ms=100))
            await until(lambda: one.broker.topic_tables.roller.metrics.failures)
            (found,) = await asking
            assert found.error_code == ErrorCode.REQUEST_TIMED_OUT
            assert "not now" in (found.error_message or "")
            # The roll goes on, and ends when the store is back.
            store.refusals = {}
            (found,) = await flush(one, 0)
            assert (found.error_code, found.table_next_offset) == (OK, 1)

    run(story)


def test_a_broker_whose_lease_is_not_fresh_does_not_answer_for_its_successor() -> None:
    here = World(world().store)

    async def story() -> None:
        async with here.broker() as one:
            await one.create_topic()
            await one.produce(batch(b"a"))
            assert not one.broker.health.obstacles()
            one.broker.membership.lease.fresh = lambda now: False
            (found,) = await flush(one, 0)
            assert found.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
            assert "lease" in " ".join(one.broker.health.obstacles())

    run(story)
