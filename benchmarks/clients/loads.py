"""One client writes or reads one topic: `python -m benchmarks.clients.loads CLIENT ...`.

Prints the seconds and the CPU seconds of the process as JSON. Each client sends idempotently with
`acks=all`, looks at each delivery's outcome, and reads key, value and offset of each message.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from collections.abc import Callable, Coroutine
from typing import Any

LINGER_MS = 5
READ_SECONDS = 1.0
UNFLUSHED_MAX = 50_000
Load = (
    Callable[[str, str, int, int], None] | Callable[[str, str, int, int], Coroutine[Any, Any, None]]
)


class Deliveries:
    """Counts the delivery reports of a raw client."""

    def __init__(self) -> None:
        self.count = 0

    def report(self, error: Any, message: Any) -> None:
        """librdkafka's callback."""
        if error is not None:
            raise RuntimeError(str(error))
        self.count += 1


def produce_raw(bootstrap: str, topic: str, count: int, size: int) -> None:
    """confluent-kafka, with a callback for each message."""
    import confluent_kafka

    settings = {"bootstrap.servers": bootstrap, "linger.ms": LINGER_MS, "enable.idempotence": True}
    producer, deliveries, value = confluent_kafka.Producer(settings), Deliveries(), b"x" * size
    for number in range(count):
        while True:
            try:
                producer.produce(topic, value, on_delivery=deliveries.report)
                break
            except BufferError:
                producer.poll(READ_SECONDS)
        if number % 64 == 0:
            producer.poll(0)
    producer.flush()
    assert deliveries.count == count


def assigned(bootstrap: str, topic: str) -> Any:
    """A raw consumer of all partitions, with those defaults of our clients that change its work."""
    import confluent_kafka

    from tidelog.sdk.settings import CONSUMER_DEFAULTS

    alike = {name: CONSUMER_DEFAULTS[name] for name in ("check.crcs", "fetch.queue.backoff.ms")}
    settings = {"bootstrap.servers": bootstrap, "group.id": topic, "auto.offset.reset": "earliest"}
    consumer = confluent_kafka.Consumer(settings | alike | {"enable.auto.commit": False})
    partitions = consumer.list_topics(topic).topics[topic].partitions
    consumer.assign([confluent_kafka.TopicPartition(topic, number, 0) for number in partitions])
    return consumer


def consume_raw(bootstrap: str, topic: str, count: int, size: int) -> None:
    """confluent-kafka, in batches of 500."""
    consumer = assigned(bootstrap, topic)
    left = count
    while left > 0:
        for message in consumer.consume(500, READ_SECONDS):
            assert message.error() is None
            message.key(), message.offset()
            left -= len(message.value() or b"") == size
    consumer.close()


def consume_polled(bootstrap: str, topic: str, count: int, size: int) -> None:
    """confluent-kafka, message by message."""
    consumer = assigned(bootstrap, topic)
    left = count
    while left > 0:
        message = consumer.poll(READ_SECONDS)
        if message is not None:
            assert message.error() is None
            message.key(), message.offset()
            left -= len(message.value() or b"") == size
    consumer.close()


def produce_sdk(bootstrap: str, topic: str, count: int, size: int) -> None:
    """`tidelog.Producer`."""
    from tidelog import Producer

    value = b"x" * size
    with Producer(bootstrap, linger_ms=LINGER_MS) as producer:
        for _ in range(count):
            producer.send(topic, value)


def consume_sdk(bootstrap: str, topic: str, count: int, size: int) -> None:
    """`tidelog.Consumer`, message by message."""
    from tidelog import Consumer

    left = count
    with Consumer(bootstrap, topic, auto_offset_reset="earliest") as consumer:
        for message in consumer:
            assert message.key is None
            left -= message.offset >= 0 and len(message.value) == size
            if not left:
                break


async def produce_aio(bootstrap: str, topic: str, count: int, size: int) -> None:
    """`tidelog.aio.Producer`."""
    from tidelog.aio import Producer

    value = b"x" * size
    async with Producer(bootstrap, linger_ms=LINGER_MS) as producer:
        for _ in range(count):
            await producer.send(topic, value)


async def consume_aio(bootstrap: str, topic: str, count: int, size: int) -> None:
    """`tidelog.aio.Consumer`, message by message."""
    from tidelog.aio import Consumer

    left = count
    async with Consumer(bootstrap, topic, auto_offset_reset="earliest") as consumer:
        async for message in consumer:
            assert message.key is None
            left -= message.offset >= 0 and len(message.value) == size
            if not left:
                break


async def produce_aiokafka(bootstrap: str, topic: str, count: int, size: int) -> None:
    """aiokafka."""
    import aiokafka

    value = b"x" * size
    async with aiokafka.AIOKafkaProducer(
        bootstrap_servers=bootstrap, linger_ms=LINGER_MS, enable_idempotence=True
    ) as producer:
        for _ in range(count):
            await producer.send(topic, value)
        await producer.flush()


async def consume_aiokafka(bootstrap: str, topic: str, count: int, size: int) -> None:
    """aiokafka, message by message."""
    import aiokafka

    left = count
    async with aiokafka.AIOKafkaConsumer(
        topic, bootstrap_servers=bootstrap, auto_offset_reset="earliest"
    ) as consumer:
        async for message in consumer:
            assert message.key is None
            left -= message.offset >= 0 and len(message.value) == size
            if not left:
                break


async def produce_raw_aio(bootstrap: str, topic: str, count: int, size: int) -> None:
    """`confluent_kafka.aio`, with its default batches."""
    from confluent_kafka.aio import AIOProducer

    settings = {"bootstrap.servers": bootstrap, "linger.ms": LINGER_MS, "enable.idempotence": True}
    value = b"x" * size
    async with AIOProducer(settings) as producer:
        # It fails messages for which librdkafka's queue, of 100,000, has no room.
        for first in range(0, count, UNFLUSHED_MAX):
            some = range(first, min(count, first + UNFLUSHED_MAX))
            sent = [await producer.produce(topic, value) for _ in some]
            await producer.flush()
            await asyncio.gather(*sent)


async def consume_raw_aio(bootstrap: str, topic: str, count: int, size: int) -> None:
    """`confluent_kafka.aio`, in batches of 500."""
    from confluent_kafka import TopicPartition
    from confluent_kafka.aio import AIOConsumer

    settings = {"bootstrap.servers": bootstrap, "group.id": topic, "auto.offset.reset": "earliest"}
    consumer = AIOConsumer(settings | {"enable.auto.commit": False})
    found = await consumer.list_topics(topic)
    places = [TopicPartition(topic, number, 0) for number in found.topics[topic].partitions]
    await consumer.assign(places)
    left = count
    while left > 0:
        for message in await consumer.consume(500, READ_SECONDS):
            assert message.error() is None
            message.key(), message.offset()
            left -= len(message.value() or b"") == size
    await consumer.close()


LOADS: dict[str, dict[str, Load]] = {
    "confluent-kafka": {"produce": produce_raw, "consume": consume_raw},
    "confluent-kafka poll": {"produce": produce_raw, "consume": consume_polled},
    "tidelog": {"produce": produce_sdk, "consume": consume_sdk},
    "confluent_kafka.aio": {"produce": produce_raw_aio, "consume": consume_raw_aio},
    "aiokafka": {"produce": produce_aiokafka, "consume": consume_aiokafka},
    "tidelog.aio": {"produce": produce_aio, "consume": consume_aio},
}
"""By client and direction."""


def main() -> None:
    """Measure one load. A load of one message before it imports the modules."""
    parser = argparse.ArgumentParser()
    parser.add_argument("client", choices=LOADS)
    parser.add_argument("--direction", choices=("produce", "consume"), required=True)
    parser.add_argument("--bootstrap", required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--count", type=int, required=True)
    parser.add_argument("--size", type=int, required=True)
    asked = parser.parse_args()
    load = LOADS[asked.client][asked.direction]

    def run(count: int) -> None:
        ended = load(asked.bootstrap, asked.topic, count, asked.size)
        if ended is not None:
            asyncio.run(ended)

    run(1)
    started, cpu_started = time.monotonic(), time.process_time()
    run(asked.count)
    cpu_seconds = time.process_time() - cpu_started
    print(json.dumps({"seconds": time.monotonic() - started, "cpu_seconds": cpu_seconds}))


if __name__ == "__main__":
    main()
