"""librdkafka reads the commits of an exactly-once sink, and compares every checksum."""

from __future__ import annotations

import asyncio
import uuid

import pytest
from confluent_kafka import Consumer

from tests.unit.broker.one_broker import TOPIC, run
from tests.unit.broker.sink_world import Sink, world
from tests.unit.broker.transactional_client import loaded

pytestmark = pytest.mark.compat

POLLS_MAX = 60


def consumed(address: tuple[str, int], isolation: str, count: int) -> list[tuple[int, int, bytes]]:
    """Partition, offset and value of `count` records, and of further records that follow at
    once."""
    consumer = Consumer(
        {
            "bootstrap.servers": f"{address[0]}:{address[1]}",
            "group.id": str(uuid.UUID(int=count)) + isolation,
            "isolation.level": isolation,
            "auto.offset.reset": "earliest",
            "check.crcs": True,
        }
    )
    consumer.subscribe([TOPIC])
    found = []
    for _ in range(POLLS_MAX):
        message = consumer.poll(0.5)
        if message is None:
            if len(found) >= count:
                break
            continue
        assert message.error() is None, message.error()
        found.append((message.partition(), message.offset(), message.value()))
    consumer.close()
    return sorted(found)


def test_librdkafka_reads_adopted_and_committed_records() -> None:
    here = world()

    async def story() -> None:
        async with here.broker() as one:
            await loaded(one)
            topic_id = await one.create_topic(partitions=2)
            sink = Sink(here)
            for number in range(3):
                values = {0: [b"a%d" % number] * 3, 1: [b"b%d" % number] * 2}
                staged = await sink.stage(topic_id, number, values, batch_bytes=1)
                await sink.commit(one, number, {0: [staged], 1: [staged]})
            undecided = await sink.stage(topic_id, 3, {0: [b"open"]})
            async with sink.producer(one) as producer:
                await producer.adopt(TOPIC, 0, [undecided])
                address = one.broker.membership.advertised
                committed = await asyncio.to_thread(consumed, address, "read_committed", 15)
                everything = await asyncio.to_thread(consumed, address, "read_uncommitted", 16)
                await producer.abort()
            expected = [(0, 4 * n + k, b"a%d" % n) for n in range(3) for k in range(3)]
            expected += [(1, 3 * n + k, b"b%d" % n) for n in range(3) for k in range(2)]
            assert committed == expected
            assert everything == sorted([*expected, (0, 12, b"open")])

    run(story)
