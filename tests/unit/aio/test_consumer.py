"""The asyncio consumer against a broker: groups, commits, ends, cancelled tasks."""

from __future__ import annotations

import asyncio

import pytest

from tidelog.aio.admin import Admin
from tidelog.aio.consumer import Consumer
from tidelog.aio.producer import Producer
from tidelog.errors import InvalidConfiguration, Refused
from tidelog.sdk.errors import KafkaRequestError
from tidelog.testing.broker import Broker

COUNT = 50


def member(broker: Broker, topic: str, group: str, **settings: object) -> Consumer:
    return Consumer(broker.bootstrap, topic, group, auto_offset_reset="earliest", **settings)


async def taken(consumer: Consumer, count: int) -> list[bytes]:
    found: list[bytes] = []
    async for message in consumer:
        found.append(message.value)
        if len(found) == count:
            break
    return found


def test_a_group_resumes_at_its_committed_offset(shared: Broker) -> None:
    topic, group = shared.topic(), shared.group()
    shared.produce(topic, [b"%d" % number for number in range(10)])

    async def run() -> None:
        async with member(shared, topic, group, enable_auto_commit=False) as consumer:
            assert await taken(consumer, 4) == [b"0", b"1", b"2", b"3"]
            await consumer.commit()
            await consumer.poll(30)
        assert await Admin(shared.bootstrap).group_offsets(group) == {(topic, 0): 4}
        async with member(shared, topic, group) as consumer:
            assert await taken(consumer, 1) == [b"4"]

    asyncio.run(run())


def test_a_message_that_was_perhaps_not_processed_is_not_committed(shared: Broker) -> None:
    topic, group = shared.topic(), shared.group()
    shared.produce(topic, [b"%d" % number for number in range(5)])

    async def fail_at_two() -> None:
        async with member(shared, topic, group) as consumer:
            async for message in consumer:
                if message.value == b"2":
                    raise ValueError("2")

    async def run() -> None:
        with pytest.raises(ValueError, match="2"):
            await fail_at_two()
        assert await Admin(shared.bootstrap).group_offsets(group) == {(topic, 0): 2}

    asyncio.run(run())


def test_cancelled_tasks_lose_no_message(shared: Broker) -> None:
    topic, group = shared.topic(), shared.group()

    async def run() -> None:
        async with (
            member(shared, topic, group) as consumer,
            Producer(shared.bootstrap) as producer,
        ):
            found = []
            for number in range(COUNT):
                await producer.send(topic, b"%d" % number)
                # The task is cancelled while it waits, or while the thread stores the message.
                waiting = asyncio.create_task(consumer.poll(30))
                await producer.flush(30)
                waiting.cancel()
                try:
                    message = await waiting
                except asyncio.CancelledError:
                    continue
                assert message is not None
                found.append(message.value)
            found += await taken(consumer, COUNT - len(found))
            assert found == [b"%d" % number for number in range(COUNT)]

    asyncio.run(run())


def test_a_cancelled_close_can_be_repeated(shared: Broker) -> None:
    topic, group = shared.topic(), shared.group()

    async def run() -> None:
        consumer = member(shared, topic, group)
        await consumer.start()
        waiting = asyncio.create_task(consumer.poll(600))
        await asyncio.sleep(0)
        assert consumer._turn.locked()
        closing = asyncio.create_task(consumer.close())
        await asyncio.sleep(0)
        closing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await closing
        async with asyncio.timeout(30):
            # The poll ends with its step: the consumer is about to close.
            assert await waiting is None
        await consumer.close()
        assert consumer._made is not None
        assert consumer._made._is_closed
        with pytest.raises(Refused, match="the consumer is closed"):
            await consumer.poll(0)

    asyncio.run(run())


def test_tasks_share_a_consumer_in_turns(shared: Broker) -> None:
    topic = shared.topic(2)
    shared.produce(topic, [b"%d" % number for number in range(COUNT)])

    async def run() -> None:
        found: set[bytes] = set()

        async def work(consumer: Consumer) -> None:
            while len(found) < COUNT:
                message = await consumer.poll(0.05)
                if message is not None:
                    assert message.value not in found
                    found.add(message.value)

        async with Consumer(shared.bootstrap, topic, auto_offset_reset="earliest") as consumer:
            await asyncio.gather(*(work(consumer) for _ in range(3)))

    asyncio.run(run())


def test_a_consumer_without_a_group_reads_to_the_end(shared: Broker) -> None:
    topic = shared.topic(3)
    shared.produce(topic, [b"%d" % number for number in range(COUNT)])

    async def run() -> None:
        settings = {"auto_offset_reset": "earliest", "value_deserializer": "json"}
        async with Consumer(shared.bootstrap, topic, **settings) as consumer:
            found = [message.value async for message in consumer.to_end()]
            assert sorted(found) == list(range(COUNT))
            assert [message async for message in consumer.to_end()] == []
            with pytest.raises(Refused, match="group"):
                await consumer.commit()

    asyncio.run(run())


def test_wrong_settings_are_refused(shared: Broker) -> None:
    with pytest.raises(InvalidConfiguration, match="acks"):
        Consumer(shared.bootstrap, "topic", acks="all")

    async def run() -> None:
        with pytest.raises(KafkaRequestError, match="create it first"):
            await Consumer(shared.bootstrap, "absent", allow_auto_create_topics=False).start()
        consumer = Consumer(shared.bootstrap, shared.topic())
        with pytest.raises(Refused, match="not started"):
            consumer.transaction_offsets()
        assert await consumer.poll(0) is None
        await consumer.close()
        with pytest.raises(Refused, match="closed"):
            await consumer.poll(0)

    asyncio.run(run())
