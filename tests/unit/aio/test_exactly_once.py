"""Consume, transform, produce with asyncio: the output equals the input after every
interruption."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from tests.unit.sdk.test_exactly_once import COUNT, check_output, filled
from tidelog.aio.admin import Admin
from tidelog.aio.consumer import Consumer
from tidelog.aio.exactly_once import exactly_once
from tidelog.aio.producer import Producer
from tidelog.aio.table import Table
from tidelog.errors import InvalidConfiguration
from tidelog.sdk.errors import RetriableError
from tidelog.sdk.messages import Message, NewMessage
from tidelog.testing.broker import Broker


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_worker_that_is_cancelled_again_and_again_doubles_and_loses_nothing(
    shared: Broker, protocol: str
) -> None:
    source, sink = filled(shared)

    async def run() -> None:
        seen: Counter[bytes] = Counter()
        arrived = asyncio.Event()

        async def transform(message: Message) -> NewMessage:
            await asyncio.sleep(0)
            seen[message.value] += 1
            arrived.set()
            return NewMessage(sink, message.value, message.key)

        async with (
            Consumer(
                shared.bootstrap,
                source,
                f"aio-{protocol}",
                auto_offset_reset="earliest",
                enable_auto_commit=False,
                group_protocol=protocol,
            ) as consumer,
            Producer(shared.bootstrap, transactional_id=f"aio-{protocol}") as producer,
        ):
            for turns in range(8):
                arrived.clear()
                worker = asyncio.create_task(
                    exactly_once(consumer, producer, transform, batch_records_max=7)
                )
                await arrived.wait()
                for _ in range(turns * 3):
                    await asyncio.sleep(0)
                worker.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await worker
                if len(seen) == COUNT:
                    break
            await exactly_once(
                consumer,
                producer,
                transform,
                batch_records_max=7,
                stop=lambda: is_complete(shared, sink),
            )

    asyncio.run(run())
    check_output(shared, sink)


def is_complete(broker: Broker, sink: str) -> bool:
    return len(broker.read(sink)) >= COUNT


def fail(message: Message) -> NewMessage:
    raise ZeroDivisionError


async def call_another_client(message: Message) -> NewMessage:
    raise RetriableError("of another client")


def test_a_function_does_as_transform_and_failures_are_told(shared: Broker) -> None:
    source, sink = filled(shared)

    async def run() -> None:
        async with (
            Consumer(
                shared.bootstrap,
                source,
                "aio-function",
                auto_offset_reset="earliest",
                enable_auto_commit=False,
            ) as consumer,
            Producer(shared.bootstrap, transactional_id="aio-function") as producer,
        ):
            with pytest.raises(ZeroDivisionError):
                await exactly_once(consumer, producer, fail)
            with pytest.raises(RetriableError, match="of another client"):
                await exactly_once(consumer, producer, call_another_client)
            await exactly_once(
                consumer,
                producer,
                lambda message: NewMessage(sink, message.value),
                stop=lambda: is_complete(shared, sink),
            )
        async with Consumer(shared.bootstrap, source) as consumer:
            with pytest.raises(InvalidConfiguration, match="group"):
                await exactly_once(consumer, producer, lambda message: None)

    asyncio.run(run())
    check_output(shared, sink)


def test_an_admin_and_a_table_answer_without_holding_up_the_loop(broker: Broker) -> None:
    async def run() -> None:
        admin = Admin(broker.bootstrap)
        await admin.create_topic("flights", 2, {"retention.ms": 1000})
        await admin.set_configs("flights", {"retention.ms": 2000})
        assert (await admin.configs("flights"))["retention.ms"] == "2000"
        await admin.add_partitions("flights", 3)
        assert await admin.topics() == {"flights": 3}
        async with Producer(broker.bootstrap, transactional_id="aio-table") as producer:
            async with producer.transaction():
                await producer.send("flights", "a", partition=1)
            assert (await admin.transaction("aio-table")).transactional_id == "aio-table"
        assert list(await admin.transactions()) == ["aio-table"]
        assert await admin.groups() == []
        table = Table(broker.store, "flights")
        rows = await table.to_arrow(partitions=[1])
        assert rows.column("value").to_pylist() == [b"a"]
        assert len(await table.to_pandas()) == 1
        assert len(await table.to_polars()) == 1
        assert (await table.to_duckdb()).aggregate("count(*)").fetchone() == (1,)
        await admin.delete_topic("flights")

    asyncio.run(run())
