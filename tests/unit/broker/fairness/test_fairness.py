"""One client's requests and answers beside another's, on real sockets."""

from __future__ import annotations

import asyncio
import socket
import struct
from typing import Any

import pytest

from tests.unit.broker.loopback import Client, Loopback, run, serving
from tidelog.broker.network.client_socket import COSTLY_AT_ONCE
from tidelog.protocol.api import ApiKey
from tidelog.protocol.message import Response
from tidelog.protocol.schemas.cluster.api_versions import ApiVersionsRequest
from tidelog.protocol.schemas.cluster.metadata import (
    DescribeClusterRequest,
    DescribeClusterResponse,
    MetadataRequest,
    MetadataResponse,
)
from tidelog.protocol.schemas.fetch import (
    FetchablePartitionResponse,
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
)
from tidelog.protocol.schemas.offsets import ListOffsetsRequest
from tidelog.protocol.schemas.transactions import InitProducerIdRequest, InitProducerIdResponse

MIB = 1 << 20


async def init(_b: Any, _r: object, _c: object) -> Response:
    return InitProducerIdResponse(producer_id=7)


async def ask(client: Client) -> None:
    request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=1)
    assert (await client.ask(request, InitProducerIdResponse, 4)).producer_id == 7


def waiting_bytes(broker: Loopback) -> float:
    """Bytes of answers that clients have not taken."""
    return broker.server._answer_memory.bytes_held


async def become(broker: Loopback, size: int, *, at_least: bool = True) -> None:
    """Wait until this many bytes wait, or fewer."""
    async with asyncio.timeout(20):
        while True:
            if (waiting_bytes(broker) >= size) is at_least:
                return
            await asyncio.sleep(0)


def test_a_client_is_served_beside_a_flood_of_requests() -> None:
    """The client's request comes behind 3,000 costly ones. The server begins few of these before it
    answers the client."""

    async def story() -> None:
        begun = 0

        async def metadata(_b: Any, _r: object, _c: object) -> Response:
            nonlocal begun
            begun += 1
            return MetadataResponse()

        handlers = {ApiKey.METADATA: metadata, ApiKey.INIT_PRODUCER_ID: init}
        async with serving(handlers) as broker:
            honest = await broker.connect()
            await ask(honest)
            for _ in range(30):
                client = await broker.connect()
                for _ in range(100):
                    client.send(MetadataRequest(topics=[]), 8)
            while not begun:
                await ask(honest)
            before = begun
            for _ in range(3):
                await ask(honest)
            assert begun - before < 300

    run(story())


class SlowPasses:
    """A clock on which each costly request takes ten milliseconds."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


def test_clients_that_ask_rarely_do_not_wait_for_the_turns_of_a_flood() -> None:
    """Fifty clients start together, and have their metadata before the flood advances."""

    async def story() -> None:
        clock = SlowPasses()
        begun = 0
        has_begun = asyncio.Event()

        async def metadata(_b: Any, request: MetadataRequest, _c: object) -> Response:
            nonlocal begun
            if request.topics is not None:
                begun += 1
                clock.now += 0.01
                has_begun.set()
            return MetadataResponse()

        async with serving({ApiKey.METADATA: metadata}, clock=clock) as broker:
            clients = [await broker.connect() for _ in range(50)]
            for _ in range(30):
                flooding = await broker.connect()
                for _ in range(100):
                    flooding.send(MetadataRequest(topics=[]), 8)
            await has_begun.wait()
            before = begun
            all_topics = MetadataRequest(topics=None)
            await asyncio.gather(*(each.ask(all_topics, MetadataResponse, 8) for each in clients))
            # The flooding connections begin a few each on arrival, and one in a turn.
            assert begun - before < 30 * (COSTLY_AT_ONCE + 1)
            before = begun
            await asyncio.gather(*(each.ask(all_topics, MetadataResponse, 8) for each in clients))
            assert begun - before < 10

    run(story())


def test_cheap_requests_of_a_flood_do_not_go_ahead_of_others_either() -> None:
    async def story() -> None:
        async with serving({ApiKey.INIT_PRODUCER_ID: init}) as broker:
            honest = await broker.connect()
            await ask(honest)
            for _ in range(50):
                client = await broker.connect()
                for _ in range(400):
                    client.send(ApiVersionsRequest(), 2)
            seen = broker.metrics.api("ApiVersions")
            while seen.count < 2000:
                await ask(honest)
            before = seen.count
            for _ in range(3):
                await ask(honest)
            assert seen.count - before < 2500

    run(story())


@pytest.mark.parametrize("reads_on", [False, True])
def test_slow_clients_that_hold_much_of_the_memory_for_answers_are_disconnected(
    monkeypatch: pytest.MonkeyPatch, reads_on: bool
) -> None:
    monkeypatch.setattr("tidelog.broker.network.server.SWEEP_SECONDS_MAX", 0.05)
    size = 16 * MIB

    async def large(_b: Any, _r: object, _c: object) -> Response:
        partition = FetchablePartitionResponse(aborted_transactions=None, records=bytes(size))
        topic = FetchableTopicResponse(topic="t", partitions=[partition])
        return FetchResponse(responses=[topic])

    async def story() -> None:
        handlers = {ApiKey.FETCH: large, ApiKey.INIT_PRODUCER_ID: init}
        async with serving(handlers, queued_max_answer_bytes=2 * MIB) as broker:
            honest, slow = await broker.connect(), await broker.connect()
            slow.writer.transport.pause_reading()  # type: ignore[attr-defined]
            slow.send(FetchRequest(), 12)
            await become(broker, MIB)
            await ask(honest)
            if reads_on:
                slow.writer.transport.resume_reading()  # type: ignore[attr-defined]
                assert len(await slow.receive_frame()) > size
                await ask(honest)
            await become(broker, MIB, at_least=False)
            await ask(honest)
            closed = broker.metrics.connections_closed.of("slow_reader").value
            assert closed == (0 if reads_on else 1)

    run(story())


def test_a_client_that_does_not_take_its_answers_is_asked_for_no_more_work() -> None:
    """Small answers count too, and the server begins no further request of the connection."""

    async def story() -> None:
        begun = 0

        async def describe(_b: Any, _r: object, _c: object) -> Response:
            nonlocal begun
            begun += 1
            return DescribeClusterResponse(cluster_id="c" * 20_000)

        handlers = {ApiKey.DESCRIBE_CLUSTER: describe, ApiKey.INIT_PRODUCER_ID: init}
        async with serving(handlers, connection_answers_bytes_max=100_000) as broker:
            honest, greedy = await broker.connect(), await broker.connect()
            greedy.writer.transport.pause_reading()  # type: ignore[attr-defined]
            for _ in range(2000):
                greedy.send(DescribeClusterRequest(), 0)
            await become(broker, 60_000)
            for _ in range(50):
                await ask(honest)
            assert begun < 1000
            assert waiting_bytes(broker) < 300_000
            greedy.writer.transport.resume_reading()  # type: ignore[attr-defined]
            for _ in range(2000):
                await greedy.receive_frame()
            assert begun == 2000

    run(story())


def test_a_lookup_of_a_client_that_hangs_up_is_ended() -> None:
    async def story() -> None:
        begun, ended = asyncio.Event(), asyncio.Event()

        async def lookup(_b: Any, _r: object, _c: object) -> Response:
            begun.set()
            try:
                await asyncio.Event().wait()
            finally:
                ended.set()
            raise AssertionError

        async with serving({ApiKey.LIST_OFFSETS: lookup}) as broker:
            client = await broker.connect()
            client.send(ListOffsetsRequest(), 5)
            await begun.wait()
            # The client resets the connection: a client that closes only its half may still wait
            # for the answer.
            linger = struct.pack("ii", 1, 0)
            client.writer.get_extra_info("socket").setsockopt(
                socket.SOL_SOCKET, socket.SO_LINGER, linger
            )
            await client.close()
            async with asyncio.timeout(10):
                await ended.wait()

    run(story())
