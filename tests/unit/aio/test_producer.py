"""The asyncio producer against a broker."""

from __future__ import annotations

import asyncio
from typing import Any
from unittest import mock

import confluent_kafka
import pytest

from tests.unit.sdk.test_producer import values
from tidelog.aio.producer import Delivery, Producer
from tidelog.errors import InvalidConfiguration, Refused
from tidelog.sdk.errors import DeliveryError, RetriableError
from tidelog.testing.broker import Broker

COUNT = 1000


def test_tasks_share_a_producer_and_each_gets_its_places(shared: Broker) -> None:
    topic = shared.topic(3)

    async def run() -> list[tuple[int, int]]:
        async with Producer(shared.bootstrap, value_serializer="json") as producer:

            async def send(number: int) -> tuple[int, int]:
                return await (await producer.send(topic, number, headers={"n": str(number)}))

            return await asyncio.gather(*(send(number) for number in range(COUNT)))

    places = asyncio.run(run())
    found = {
        int(message.value): (message.partition, message.offset) for message in shared.read(topic)
    }
    assert [found[number] for number in range(COUNT)] == places


def test_flush_and_the_end_of_the_block_wait_for_everything(shared: Broker) -> None:
    topic = shared.topic()

    async def run() -> None:
        async with Producer(shared.bootstrap) as producer:
            first = await producer.send(topic, "first")
            await producer.flush(30)
            assert first.is_done
            await producer.send(topic, "second")

    asyncio.run(run())
    assert values(shared, topic) == [b"first", b"second"]


def test_a_failed_delivery_is_told_by_the_delivery_and_by_flush(shared: Broker) -> None:
    topic = shared.topic(max_message_bytes=1000)

    async def run() -> None:
        producer = Producer(shared.bootstrap)
        delivery = await producer.send(topic, b"x" * 5000)
        with pytest.raises(DeliveryError, match="MSG_SIZE_TOO_LARGE"):
            await delivery.result(30)
        with pytest.raises(DeliveryError, match="MSG_SIZE_TOO_LARGE"):
            await producer.flush(30)
        await producer.close()
        with pytest.raises(Refused, match="closed"):
            await producer.send(topic, b"")

    asyncio.run(run())


def test_a_full_queue_lets_the_sender_wait_and_the_loop_go_on(shared: Broker) -> None:
    topic = shared.topic()

    async def run() -> None:
        async with Producer(shared.bootstrap, queue_buffering_max_messages=10) as producer:
            for number in range(COUNT):
                await producer.send(topic, str(number))

    asyncio.run(run())
    assert len(values(shared, topic)) == COUNT


def test_without_a_broker_sends_end_at_their_limit(broker: Broker) -> None:
    bootstrap = broker.bootstrap
    broker.kill()

    async def run() -> None:
        producer = Producer(bootstrap, max_block_ms=0, queue_buffering_max_messages=1)
        delivery = await producer.send("topic", "")
        with pytest.raises(RetriableError, match="no room"):
            await producer.send("topic", "")
        with pytest.raises(RetriableError, match="not delivered"):
            await delivery.result(0)
        with pytest.raises(RetriableError, match="not delivered"):
            await producer.flush(0)

    asyncio.run(run())


async def cancelled_close(producer: Producer) -> None:
    """A close that is cancelled while it flushes, and again while librdkafka closes."""
    closing = asyncio.create_task(producer.close())
    for _ in range(2):
        await asyncio.sleep(0)
        closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing


def test_the_failures_of_a_cancelled_close_are_told_by_the_next_one(broker: Broker) -> None:
    topic = broker.topic()

    async def run() -> None:
        await asyncio.to_thread(broker.kill)
        producer = Producer(broker.bootstrap, delivery_timeout_ms=1000, request_timeout_ms=500)
        await producer.send(topic, "late")
        await cancelled_close(producer)
        with pytest.raises(DeliveryError, match="_MSG_TIMED_OUT"):
            await producer.close()
        await producer.close()

    asyncio.run(run())


def test_a_close_beside_another_one_waits_for_the_messages(shared: Broker) -> None:
    async def run() -> None:
        producer = Producer(shared.bootstrap, linger_ms=500)
        delivery = await producer.send(shared.topic(), "durable")
        first = asyncio.create_task(producer.close())
        # The first one begins, and comes to its wait.
        await asyncio.sleep(0)
        await producer.close()
        assert delivery.is_done
        await first

    asyncio.run(run())


def test_tasks_that_wait_hear_of_the_end_of_a_cancelled_close(broker: Broker) -> None:
    topic = broker.topic()

    async def run() -> None:
        await asyncio.to_thread(broker.kill)
        producer = Producer(
            broker.bootstrap,
            delivery_timeout_ms=1000,
            request_timeout_ms=500,
            queue_buffering_max_messages=1,
        )
        await producer.send(topic, "late")
        flushing = asyncio.create_task(producer.flush())
        sending = asyncio.create_task(producer.send(topic, "no room"))
        await cancelled_close(producer)
        with pytest.raises(RetriableError, match="wait longer"):
            await producer.flush(0)
        _, waiting = await asyncio.wait([flushing, sending], timeout=30)
        assert not waiting, "tasks wait without end"
        with pytest.raises(DeliveryError, match="_MSG_TIMED_OUT"):
            await flushing
        with pytest.raises(Refused, match="closed"):
            await sending

    asyncio.run(run())


def test_one_cancelled_task_leaves_the_outcome_to_other_tasks(broker: Broker) -> None:
    topic = broker.topic()

    async def run() -> None:
        async with Producer(broker.bootstrap) as producer:
            await (await producer.send(topic, "connected"))
            broker.kill()
            delivery: Delivery = await producer.send(topic, "later")
            waiting = [asyncio.create_task(delivery.result()) for _ in range(2)]
            await asyncio.sleep(0)
            waiting[0].cancel()
            await asyncio.to_thread(broker.start)
            assert await waiting[1] == (0, 1)
            assert waiting[0].cancelled()

    asyncio.run(run())


def test_a_producer_belongs_to_one_loop_and_has_the_settings_of_the_other_sdk(
    shared: Broker,
) -> None:
    with pytest.raises(InvalidConfiguration, match=r"group\.id"):
        Producer(shared.bootstrap, group_id="g")
    producer = Producer(shared.bootstrap)
    topic = shared.topic()

    async def send() -> None:
        await producer.send(topic, "")
        await producer.flush(30)

    asyncio.run(send())
    with pytest.raises(Refused, match="another event loop"):
        asyncio.run(send())
    producer._sender.client.flush(30)
    # The refused message was not sent.
    assert values(shared, topic) == [b""]


def test_a_delivery_that_is_told_while_a_task_begins_to_wait_wakes_it(broker: Broker) -> None:
    """The thread of blocking calls tells deliveries too, at any moment."""

    async def run() -> None:
        producer = Producer(broker.bootstrap)
        delivery = Delivery(producer._sender)
        loop = asyncio.get_running_loop()
        create_future = loop.create_future
        told = confluent_kafka.Message(topic="t", partition=1, offset=7)

        def interrupted() -> asyncio.Future[Any]:
            if asyncio.current_task() is waiting and not delivery.is_done:
                delivery(None, told)
            return create_future()

        with mock.patch.object(loop, "create_future", interrupted):
            waiting = asyncio.create_task(delivery.result())
            done, _ = await asyncio.wait([waiting], timeout=5)
        assert done, "the delivery does not wake the task"
        assert waiting.result() == (1, 7)
        await producer.close()

    asyncio.run(run())
