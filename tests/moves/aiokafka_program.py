"""aiokafka with its defaults; the same commands as `confluent_program`."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition

from tests.moves.lines import ABORTED_EVERY, RECORDS_MAX, SEND_SECONDS, end_of_input, run, say

POLL_MS = 200
STOP_SECONDS_MAX = 10.0


@asynccontextmanager
async def member(bootstrap: str, group: str, *topics: str, **more: Any) -> AsyncIterator[Any]:
    """A member of a group.

    aiokafka's close repeats its last commit for ever if the coordinator moves meanwhile, since a
    consumer that closes no longer looks for its coordinator.
    """
    consumer = AIOKafkaConsumer(
        *topics,
        bootstrap_servers=bootstrap,
        group_id=group,
        auto_offset_reset="earliest",
        **more,
    )
    await consumer.start()
    try:
        yield consumer
    finally:
        try:
            await asyncio.wait_for(consumer.stop(), STOP_SECONDS_MAX)
        except TimeoutError:
            say("note", "the coordinator moved while the consumer closed")


async def produce(bootstrap: str, topic: str, partitions: str) -> None:
    """Send numbers, idempotently."""
    ends = end_of_input()
    acknowledged: set[asyncio.Task[None]] = set()

    async def told(future: asyncio.Future[Any], number: int) -> None:
        try:
            say("sent", (await future).partition, number)
        except Exception as error:  # noqa: BLE001 - the application sees it
            say("error", repr(error))

    async with AIOKafkaProducer(bootstrap_servers=bootstrap, enable_idempotence=True) as producer:
        say("ready")
        number = 0
        while not await waited(ends):
            future = await producer.send(topic, b"%d" % number, partition=number % int(partitions))
            task = asyncio.create_task(told(future, number))
            acknowledged.add(task)
            task.add_done_callback(acknowledged.discard)
            number += 1
        await asyncio.gather(*acknowledged)


async def waited(ends: threading.Event) -> bool:
    """Wait for the next record's time; true at the end."""
    return await asyncio.to_thread(ends.wait, SEND_SECONDS)


async def consume(bootstrap: str, group: str, *topics: str) -> None:
    """Read as a group."""
    ends = end_of_input()
    async with member(bootstrap, group, *topics, isolation_level="read_committed") as consumer:
        say("ready")
        while not ends.is_set():
            for found in (await consumer.getmany(timeout_ms=POLL_MS)).values():
                for m in found:
                    say("got", m.topic, m.partition, m.offset, m.value.decode())


async def transform(bootstrap: str, name: str, source: str, target: str) -> None:
    """Copy records in transactions, some of which are aborted."""
    ends = end_of_input()
    async with (
        AIOKafkaProducer(bootstrap_servers=bootstrap, transactional_id=name) as producer,
        member(bootstrap, name, source, enable_auto_commit=False) as consumer,
    ):
        say("ready")
        turn = 0
        while not ends.is_set():
            polled = await consumer.getmany(timeout_ms=POLL_MS, max_records=RECORDS_MAX)
            found = [m for each in polled.values() for m in each]
            if not found:
                continue
            turn += 1
            await producer.begin_transaction()
            sent = [await producer.send(target, m.value, partition=m.partition) for m in found]
            await asyncio.gather(*sent)
            following = {TopicPartition(source, m.partition): m.offset + 1 for m in found}
            await producer.send_offsets_to_transaction(following, name)
            if turn % ABORTED_EVERY:
                await producer.commit_transaction()
                say("committed", len(found))
                continue
            await producer.abort_transaction()
            say("aborted", len(found))
            for place, messages in polled.items():
                consumer.seek(place, messages[0].offset)


def role(main: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """A coroutine as a role."""
    return lambda *arguments: asyncio.run(main(*arguments))


if __name__ == "__main__":
    run({"produce": role(produce), "consume": role(consume), "transform": role(transform)})
