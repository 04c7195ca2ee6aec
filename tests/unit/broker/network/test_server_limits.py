"""The limits of a server on real sockets: connections, requests in flight, memory, idleness."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.unit.broker.loopback import Loopback, run, serving
from tests.unit.broker.network.served import beat, describe, fetched, held_bytes, init
from tidelog.protocol.api import ApiKey
from tidelog.protocol.message import Response
from tidelog.protocol.schemas.cluster.metadata import (
    DescribeClusterRequest,
    DescribeClusterResponse,
)
from tidelog.protocol.schemas.fetch import FetchRequest
from tidelog.protocol.schemas.groups import HeartbeatRequest, HeartbeatResponse
from tidelog.protocol.schemas.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from tidelog.protocol.schemas.transactions import InitProducerIdResponse

LOOPS = ("uvloop", "asyncio")
Broker = Any


@pytest.mark.parametrize("loop", LOOPS)
def test_a_client_that_does_not_read_is_served_no_further_until_it_does(loop: str) -> None:
    async def story() -> None:
        served = 0

        async def large(_b: Broker, _r: object, _c: object) -> Response:
            nonlocal served
            served += 1
            return fetched(bytes(4_000_000))

        async with serving({ApiKey.FETCH: large, ApiKey.DESCRIBE_CLUSTER: describe}) as broker:
            greedy, other = await broker.connect(), await broker.connect()
            greedy.writer.transport.pause_reading()  # type: ignore[attr-defined]
            for _ in range(50):
                greedy.send(FetchRequest(), 12)
            for _ in range(20):
                await other.ask(DescribeClusterRequest(), DescribeClusterResponse, 0)
            assert served <= 3
            greedy.writer.transport.resume_reading()  # type: ignore[attr-defined]
            for _ in range(50):
                await greedy.receive_frame()
            assert served == 50

    run(story(), loop)


def test_too_many_requests_in_flight_wait_unread() -> None:
    async def story() -> None:
        waiting: list[asyncio.Event] = []

        async def held(_b: Broker, request: HeartbeatRequest, _c: object) -> Response:
            event = asyncio.Event()
            waiting.append(event)
            await event.wait()
            return HeartbeatResponse(throttle_time_ms=request.generation_id)

        async with serving(
            {ApiKey.HEARTBEAT: held, ApiKey.DESCRIBE_CLUSTER: describe},
            connection_requests_in_flight_max=3,
        ) as broker:
            client, other = await broker.connect(), await broker.connect()
            for number in range(10):
                client.send(beat(number), 4)
            while len(waiting) < 3:
                await other.ask(DescribeClusterRequest(), DescribeClusterResponse, 0)
            for number in range(10):
                waiting[number].set()
                _, answer = await client.receive(HeartbeatResponse, 4)
                assert answer.throttle_time_ms == number
                assert len(waiting) <= number + 4

    run(story())


@pytest.mark.parametrize("loop", LOOPS)
def test_little_memory_for_requests_delays_them_and_loses_none(loop: str) -> None:
    sizes: list[int] = []

    async def produce(_b: Broker, request: ProduceRequest, _c: object) -> Response | None:
        data = request.topic_data[0].partition_data[0].records
        assert data is not None
        sizes.append(len(data))
        await asyncio.sleep(0)
        return None

    async def story() -> None:
        handlers = {ApiKey.PRODUCE: produce, ApiKey.DESCRIBE_CLUSTER: describe}
        async with serving(handlers, queued_max_request_bytes=1_000_000) as broker:
            await asyncio.gather(*(one_client(broker) for _ in range(8)))
            assert held_bytes(broker) == 0

    async def one_client(broker: Loopback) -> None:
        client = await broker.connect()
        partition = PartitionProduceData(index=0, records=bytes(600_000))
        for _ in range(5):
            client.send(
                ProduceRequest(
                    acks=0, topic_data=[TopicProduceData(name="t", partition_data=[partition])]
                ),
                9,
            )
            await client.writer.drain()
        await client.ask(DescribeClusterRequest(), DescribeClusterResponse, 0)

    run(story(), loop)
    assert sizes == [600_000] * 40


@pytest.mark.parametrize(
    ("limit", "options"),
    [
        ("max.connections", {"max_connections": 2}),
        ("file.descriptors.reserved", {"descriptors_max": 12, "file_descriptors_reserved": 10}),
    ],
)
def test_a_connection_above_the_limit_is_closed_and_a_place_becomes_free_again(
    limit: str, options: dict[str, int]
) -> None:
    begun, finish = asyncio.Semaphore(0), asyncio.Event()

    async def wait(*request: Any) -> Response:
        begun.release()
        await finish.wait()
        return await describe(*request)

    async def story() -> None:
        async with serving({ApiKey.DESCRIBE_CLUSTER: wait}, **options) as broker:
            first, second = await broker.connect(), await broker.connect()
            for client in (first, second):
                client.send(DescribeClusterRequest(), 0)
                await begun.acquire()
            third = await broker.connect()
            assert await third.closed()
            assert broker.metrics.connections_refused.of(limit).value == 1
            await first.close()
            finish.set()
            await eventually_served(broker)

    run(story())


def test_an_idle_connection_gives_way_to_a_new_one_and_a_working_one_does_not() -> None:
    async def story() -> None:
        async with serving({ApiKey.DESCRIBE_CLUSTER: describe}, max_connections=2) as broker:
            working, silent = await broker.connect(), await broker.connect()
            for _ in range(10):
                await working.ask(DescribeClusterRequest(), DescribeClusterResponse, 0)
            await eventually_served(broker)
            assert await silent.closed()
            await working.ask(DescribeClusterRequest(), DescribeClusterResponse, 0)
            assert broker.metrics.connections_closed.of("displaced").value == 1

    run(story())


async def eventually_served(broker: Loopback) -> None:
    """The server notices a closed connection a moment later than its client."""
    async with asyncio.timeout(10):
        while True:
            client = await broker.connect()
            try:
                await client.ask(DescribeClusterRequest(), DescribeClusterResponse, 0)
            except (asyncio.IncompleteReadError, ConnectionError):
                continue
            return


def test_an_address_has_a_limit_of_its_own() -> None:
    async def story() -> None:
        async with serving(
            {ApiKey.DESCRIBE_CLUSTER: describe},
            max_connections_per_ip=100,
            max_connections_per_ip_overrides="127.0.0.1:1",
        ) as broker:
            first = await broker.connect()
            await first.ask(DescribeClusterRequest(), DescribeClusterResponse, 0)
            second = await broker.connect()
            assert await second.closed()
            refused = broker.metrics.connections_refused
            assert refused.of("max.connections.per.ip").value == 1

    run(story())


@pytest.mark.parametrize("loop", LOOPS)
def test_an_idle_connection_is_closed_and_a_waiting_one_is_not(loop: str) -> None:
    async def story() -> None:
        release = asyncio.Event()

        async def held(_b: Broker, _r: object, _c: object) -> Response:
            await release.wait()
            return InitProducerIdResponse(producer_id=7)

        async with serving(
            {ApiKey.INIT_PRODUCER_ID: held, ApiKey.DESCRIBE_CLUSTER: describe},
            connections_max_idle_ms=60,
        ) as broker:
            idle, busy = await broker.connect(), await broker.connect()
            busy.send(init(1), 4)
            assert await idle.closed()
            release.set()
            _, answer = await busy.receive(InitProducerIdResponse, 4)
            assert answer.producer_id == 7
            assert await busy.closed()
            assert broker.metrics.connections_closed.of("idle").value == 2

    run(story(), loop)
