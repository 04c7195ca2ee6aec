"""Garbage on the wire: the server neither crashes nor grows, and honest clients notice nothing."""

from __future__ import annotations

import asyncio
import random
import resource
import struct
from contextlib import suppress
from typing import Any

import pytest

from tests.unit.broker.loopback import Loopback, run, serving
from tests.unit.broker.network.served import held_bytes
from tidelog.broker.dispatch.routes import HANDLERS
from tidelog.protocol.api import ADVERTISED, ApiKey
from tidelog.protocol.frames import FIRST_READ_BYTES
from tidelog.protocol.headers import encode_request
from tidelog.protocol.message import Request, Response
from tidelog.protocol.schemas.cluster.api_versions import ApiVersionsRequest
from tidelog.protocol.schemas.cluster.configs import DescribeConfigsRequest, DescribeConfigsResource
from tidelog.protocol.schemas.cluster.metadata import (
    DescribeClusterRequest,
    DescribeClusterResponse,
    MetadataRequest,
    MetadataRequestTopic,
)
from tidelog.protocol.schemas.fetch import FetchPartition, FetchRequest, FetchTopic
from tidelog.protocol.schemas.produce import PartitionProduceData, ProduceRequest, TopicProduceData

CONNECTIONS = 500
MEGABYTE = 1024 * 1024


async def describe(_b: Any, _r: object, _c: object) -> Response:
    return DescribeClusterResponse(cluster_id="c")


async def faulty(_b: Any, request: Request[Response], _c: object) -> Response:
    """A failing handler serves each decoded request: the answer takes the request's shape."""
    raise RuntimeError(type(request).__name__)


async def holding(broker: Loopback, size: int) -> None:
    """Wait until the broker holds this many bytes of requests."""
    async with asyncio.timeout(10):
        while True:
            if held_bytes(broker) >= size:
                return
            await asyncio.sleep(0)


def frames(chance: random.Random) -> list[bytes]:
    """Well-formed requests, to be damaged."""
    topic = TopicProduceData(
        name="t", partition_data=[PartitionProduceData(index=0, records=chance.randbytes(300))]
    )
    requests: list[tuple[Request[Response], int]] = [
        (MetadataRequest(topics=[MetadataRequestTopic(name="t")]), chance.randint(0, 13)),
        (ProduceRequest(acks=chance.choice([-1, 0, 1]), topic_data=[topic]), chance.randint(3, 11)),
        (
            FetchRequest(topics=[FetchTopic(topic="t", partitions=[FetchPartition()])]),
            chance.randint(4, 12),
        ),
        (ApiVersionsRequest(), chance.randint(0, 4)),
        (
            DescribeConfigsRequest(
                resources=[DescribeConfigsResource(resource_type=2, resource_name="t")]
            ),
            chance.randint(1, 4),
        ),
    ]
    return [
        b"".join(bytes(each) for each in encode_request(request, version, 7, "fuzz"))
        for request, version in requests
    ]


def damaged(chance: random.Random) -> bytes:
    """Damaged bytes for one connection."""
    data = bytearray(b"".join(chance.choices(frames(chance), k=chance.randint(1, 6))))
    match chance.randrange(6):
        case 0:
            return chance.randbytes(chance.randint(1, 2000))
        case 1:
            for _ in range(chance.randint(1, 20)):
                data[chance.randrange(len(data))] = chance.randrange(256)
        case 2:
            del data[chance.randrange(len(data)) :]
        case 3:
            position = chance.randrange(len(data))
            data[position:position] = chance.randbytes(chance.randint(1, 30))
        case 4:
            body = struct.pack(
                ">hhih", chance.choice(list(ADVERTISED)), chance.randint(0, 14), 1, -1
            ) + chance.randbytes(chance.randint(0, 200))
            return struct.pack(">i", len(body)) + body
        case _:
            return struct.pack(">i", 100 * MEGABYTE) + bytes(chance.randint(0, 4000))
    return bytes(data)


@pytest.mark.parametrize("seed", range(3))
def test_garbage_disturbs_no_other_client(seed: int, caplog: pytest.LogCaptureFixture) -> None:
    chance = random.Random(seed)
    handlers = {**dict.fromkeys(HANDLERS, faulty), ApiKey.DESCRIBE_CLUSTER: describe}
    caplog.set_level("CRITICAL")

    async def attack(broker: Loopback, data: bytes) -> None:
        client = await broker.connect()
        try:
            client.writer.write(data)
            client.writer.write_eof()
            await client.reader.read()
        except ConnectionError:
            return

    async def honest(broker: Loopback, over: asyncio.Event) -> int:
        client = await broker.connect()
        answers = 0
        while not over.is_set():
            await client.ask(DescribeClusterRequest(), DescribeClusterResponse, 0)
            answers += 1
        return answers

    async def story() -> None:
        async with serving(handlers) as broker:
            over = asyncio.Event()
            witness = asyncio.create_task(honest(broker, over))
            for _ in range(CONNECTIONS // 10):
                await asyncio.gather(*(attack(broker, damaged(chance)) for _ in range(10)))
            over.set()
            assert await witness > 0
            await broker.server.close()
            assert held_bytes(broker) == 0

    run(story())


def test_announced_requests_that_do_not_come_cost_no_memory() -> None:
    async def story() -> None:
        async with serving({ApiKey.DESCRIBE_CLUSTER: describe}) as broker:
            honest = await broker.connect()
            await honest.ask(DescribeClusterRequest(), DescribeClusterResponse, 0)
            before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            for _ in range(100):
                client = await broker.connect()
                client.writer.write(struct.pack(">i", 100 * MEGABYTE) + b"\0")
                await client.writer.drain()
            await honest.ask(DescribeClusterRequest(), DescribeClusterResponse, 0)
            grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
            assert grown * 1024 < 50 * MEGABYTE

    run(story())


def test_parts_of_large_requests_from_many_clients_stay_within_their_share() -> None:
    """One of the large requests may go on. An honest client with small requests is served
    meanwhile."""

    async def story() -> None:
        async with serving(
            {ApiKey.DESCRIBE_CLUSTER: describe}, queued_max_request_bytes=4 * MEGABYTE
        ) as broker:
            for _ in range(8):
                client = await broker.connect()
                client.writer.write(struct.pack(">i", 3 * MEGABYTE) + bytes(MEGABYTE))
            await holding(broker, 3 * MEGABYTE)
            honest = await broker.connect()
            for _ in range(3):
                answer = await honest.ask(DescribeClusterRequest(), DescribeClusterResponse, 0)
                assert answer.cluster_id == "c"
            # One large request is admitted whole. The server holds the first read of the seven
            # others.
            assert held_bytes(broker) < 3 * MEGABYTE + 8 * FIRST_READ_BYTES

    run(story())


def test_a_request_that_goes_on_too_slowly_is_closed() -> None:
    """The server closes the connection even if no other client waits for memory. Idle connections
    and waiting fetches stay open."""

    async def story() -> None:
        settings = {"request_receive_grace_ms": 50}
        async with serving({ApiKey.DESCRIBE_CLUSTER: describe}, **settings) as broker:
            idle = await broker.connect()
            for begun in (b"\0", struct.pack(">i", 5000) + bytes(20)):
                slow = await broker.connect()
                slow.writer.write(begun)
                assert await slow.closed()
            assert broker.metrics.connections_closed.of("slow_request").value == 2
            answer = await idle.ask(DescribeClusterRequest(), DescribeClusterResponse, 0)
            assert answer.cluster_id == "c"

    run(story())


def test_a_request_that_drips_for_ever_is_closed() -> None:
    async def story() -> None:
        settings = {"request_receive_timeout_ms": 300}
        async with serving({ApiKey.DESCRIBE_CLUSTER: describe}, **settings) as broker:
            slow = await broker.connect()
            slow.writer.write(struct.pack(">i", 10**8))
            with suppress(ConnectionError):
                async with asyncio.timeout(30):
                    while not slow.reader.at_eof():
                        slow.writer.write(bytes(1000))
                        await slow.writer.drain()
                        await asyncio.sleep(0)
            assert broker.metrics.connections_closed.of("slow_request").value == 1

    run(story())


def test_slow_requests_give_way_where_others_wait_for_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The server closes them long before it would close them for slowness alone."""
    monkeypatch.setattr("tidelog.broker.network.server.PATIENCE_SECONDS", 0.05)
    monkeypatch.setattr("tidelog.broker.network.server.SWEEP_SECONDS_MAX", 0.02)

    async def story() -> None:
        async with serving(
            {ApiKey.DESCRIBE_CLUSTER: describe}, queued_max_request_bytes=1000
        ) as broker:
            slow = await broker.connect()
            slow.writer.write(struct.pack(">i", 5000) + bytes(2000))
            await holding(broker, 5000)
            honest = await broker.connect()
            answer = await honest.ask(DescribeClusterRequest(), DescribeClusterResponse, 0)
            # The client's next request waits for memory.
            answer = await honest.ask(DescribeClusterRequest(), DescribeClusterResponse, 0)
            assert answer.cluster_id == "c"
            assert await slow.closed()
            assert broker.metrics.connections_closed.of("slow_request").value == 1

    run(story())
