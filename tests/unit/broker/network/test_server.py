"""The server on real sockets: order, handlers that fail, clients that hang up, the end."""

from __future__ import annotations

import asyncio
import logging
import socket
import struct
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest

from tests.unit.broker.loopback import LOOPBACK, Client, run, serving
from tests.unit.broker.network.served import beat, describe, fetched, held_bytes, init
from tidelog.broker.handlers.request_context import CloseConnection, RequestContext
from tidelog.broker.network.reserved_address import ReservedAddress
from tidelog.errors import Refused
from tidelog.network import SocketNetwork
from tidelog.protocol.api import ApiKey
from tidelog.protocol.error_codes import ErrorCode
from tidelog.protocol.message import Response
from tidelog.protocol.schemas.cluster.api_versions import ApiVersionsRequest, ApiVersionsResponse
from tidelog.protocol.schemas.cluster.metadata import (
    DescribeClusterRequest,
    DescribeClusterResponse,
)
from tidelog.protocol.schemas.fetch import FetchRequest, FetchResponse
from tidelog.protocol.schemas.groups import HeartbeatRequest, HeartbeatResponse
from tidelog.protocol.schemas.produce import ProduceRequest
from tidelog.protocol.schemas.transactions import InitProducerIdRequest, InitProducerIdResponse

LOOPS = ("uvloop", "asyncio")
Broker = Any


async def counted_init(_b: Broker, request: InitProducerIdRequest, _c: RequestContext) -> Response:
    return InitProducerIdResponse(producer_id=request.transaction_timeout_ms)


@pytest.mark.parametrize("loop", LOOPS)
def test_pipelined_requests_are_answered_in_order_although_the_first_is_slow(loop: str) -> None:
    async def story() -> None:
        release = asyncio.Event()

        async def slow_first(_b: Broker, request: HeartbeatRequest, _c: object) -> Response:
            if request.generation_id == 0:
                await release.wait()
            else:
                release.set()
            return HeartbeatResponse(throttle_time_ms=request.generation_id)

        async with serving({ApiKey.HEARTBEAT: slow_first}) as broker:
            client = await broker.connect()
            sent = [client.send(beat(number), 4) for number in range(20)]
            for number, correlation_id in enumerate(sent):
                answered, answer = await client.receive(HeartbeatResponse, 4)
                assert (answered, answer.throttle_time_ms) == (correlation_id, number)

    run(story(), loop)


@pytest.mark.parametrize("loop", LOOPS)
def test_a_request_that_comes_byte_by_byte_is_a_request(loop: str) -> None:
    async def story() -> None:
        async with serving({ApiKey.INIT_PRODUCER_ID: counted_init}) as broker:
            client = await broker.connect()
            client.writer.get_extra_info("socket").setsockopt(
                socket.IPPROTO_TCP, socket.TCP_NODELAY, 1
            )
            whole = Client(client.reader, _Recorder())  # type: ignore[arg-type]
            whole.send(init(5), 4)
            for byte in whole.writer.data:  # type: ignore[attr-defined]
                client.writer.write(bytes([byte]))
                await asyncio.sleep(0)
            _, answer = await client.receive(InitProducerIdResponse, 4)
            assert answer.producer_id == 5

    run(story(), loop)


class _Recorder:
    def __init__(self) -> None:
        self.data = b""

    def writelines(self, buffers: list[bytes]) -> None:
        self.data += b"".join(buffers)


def test_a_handlers_failure_is_logged_and_answered_and_affects_no_other_request(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def broken(_b: Broker, _r: object, _c: object) -> Response:
        raise ZeroDivisionError("surprise")

    async def story() -> None:
        handlers = {ApiKey.INIT_PRODUCER_ID: broken, ApiKey.DESCRIBE_CLUSTER: describe}
        async with serving(handlers) as broker:
            client, other = await broker.connect(), await broker.connect()
            answer = await client.ask(init(1), InitProducerIdResponse, 4)
            assert answer.error_code == ErrorCode.UNKNOWN_SERVER_ERROR
            for each in (client, other):
                described = await each.ask(DescribeClusterRequest(), DescribeClusterResponse, 0)
                assert described.cluster_id == "c"
            errors = broker.metrics.api("InitProducerId").errors
            assert errors.of("UNKNOWN_SERVER_ERROR").value == 1

    with caplog.at_level(logging.ERROR):
        run(story())
    (record,) = [each for each in caplog.records if each.message == "request failed"]
    assert record.api == "InitProducerId"  # type: ignore[attr-defined]
    assert record.exc_info is not None
    assert "surprise" in str(record.exc_info[1])


def test_a_handler_whose_answer_does_not_fit_the_schema_is_a_handler_that_fails() -> None:
    async def wrong(_b: Broker, _r: object, _c: object) -> Response:
        return InitProducerIdResponse(producer_id="many")  # type: ignore[arg-type]

    async def story() -> None:
        async with serving({ApiKey.INIT_PRODUCER_ID: wrong}) as broker:
            client = await broker.connect()
            answer = await client.ask(init(1), InitProducerIdResponse, 4)
            assert answer.error_code == ErrorCode.UNKNOWN_SERVER_ERROR

    run(story())


@pytest.mark.parametrize("error", [CloseConnection("acks_0", "it failed"), ValueError("bug")])
def test_a_failed_request_that_gets_no_answer_closes_the_connection(error: Exception) -> None:
    """Like Kafka: with acks=0 only a closed connection informs the producer."""

    async def failing(_b: Broker, _r: object, _c: object) -> Response:
        raise error

    async def story() -> None:
        async with serving({ApiKey.PRODUCE: failing}) as broker:
            client = await broker.connect()
            client.send(ProduceRequest(acks=0), 9)
            assert await client.closed()
            reason = "acks_0" if isinstance(error, CloseConnection) else "handler_failed"
            assert broker.metrics.connections_closed.of(reason).value == 1

    run(story())


def test_a_produce_with_acks_0_is_not_answered() -> None:
    async def silent(_b: Broker, _r: object, _c: object) -> None:
        return None

    async def story() -> None:
        handlers = {ApiKey.PRODUCE: silent, ApiKey.DESCRIBE_CLUSTER: describe}
        async with serving(handlers) as broker:
            client = await broker.connect()
            client.send(ProduceRequest(acks=0), 9)
            await client.ask(DescribeClusterRequest(), DescribeClusterResponse, 0)

    run(story())


def test_an_answer_of_many_buffers_arrives_whole() -> None:
    records = bytes(range(256)) * 8192

    async def fetch(_b: Broker, _r: object, _c: object) -> Response:
        return fetched([records, memoryview(records)])

    async def story() -> None:
        async with serving({ApiKey.FETCH: fetch}) as broker:
            client = await broker.connect()
            answer = await client.ask(FetchRequest(), FetchResponse, 12)
            assert answer.responses[0].partitions[0].records == records * 2

    run(story())


@pytest.mark.parametrize("loop", LOOPS)
def test_closing_finishes_begun_requests(loop: str) -> None:
    async def story() -> None:
        begun, release = asyncio.Event(), asyncio.Event()

        async def held(_b: Broker, _r: object, _c: object) -> Response:
            begun.set()
            await release.wait()
            return InitProducerIdResponse(producer_id=7)

        handlers = {ApiKey.INIT_PRODUCER_ID: held, ApiKey.DESCRIBE_CLUSTER: describe}
        async with serving(handlers) as broker:
            client, idle = await broker.connect(), await broker.connect()
            await idle.ask(DescribeClusterRequest(), DescribeClusterResponse, 0)
            client.send(init(1), 4)
            await begun.wait()
            closing = asyncio.create_task(broker.server.close())
            assert await idle.closed()
            # The server disconnects a newcomer and does not refuse it: the broker lives as long as
            # it serves.
            assert await (await broker.connect()).closed()
            client.send(init(2), 4)
            release.set()
            _, answer = await client.receive(InitProducerIdResponse, 4)
            assert answer.producer_id == 7
            assert await client.closed()
            await closing
            await broker.server.close()
            await broker.server.release()
            with pytest.raises(ConnectionRefusedError):
                await broker.connect()

    run(story(), loop)


def test_closing_disconnects_clients_whose_requests_do_not_finish_in_time(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def story() -> None:
        begun = asyncio.Event()

        async def forever(_b: Broker, _r: object, _c: object) -> Response:
            begun.set()
            await asyncio.Event().wait()
            raise AssertionError

        async with serving({ApiKey.INIT_PRODUCER_ID: forever}, shutdown_timeout_ms=20) as broker:
            client = await broker.connect()
            client.send(init(1), 4)
            await begun.wait()
            await broker.server.close()
            assert await client.closed()
            assert held_bytes(broker) == 0

    run(story())
    assert "disconnected before their requests finished" in caplog.text


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("at_once", [True, False])
def test_a_fetch_of_a_client_that_hangs_up_is_ended_and_a_write_is_not(
    loop: str, at_once: bool
) -> None:
    async def story() -> None:
        ended: list[str] = []
        begun, written = asyncio.Event(), asyncio.Event()

        async def parked(_b: Broker, _r: object, _c: object) -> Response:
            begun.set()
            try:
                await asyncio.Event().wait()
            finally:
                ended.append("fetch")
            raise AssertionError

        async def write(_b: Broker, _r: object, _c: object) -> Response:
            if not at_once:
                await begun.wait()
            await asyncio.sleep(0)
            ended.append("write")
            written.set()
            return InitProducerIdResponse()

        handlers = {ApiKey.FETCH: parked, ApiKey.INIT_PRODUCER_ID: write}
        async with serving(handlers) as broker:
            reader, writer = await broker.connect(), await broker.connect()
            writer.send(init(1), 4)
            await writer.writer.drain()
            reader.send(FetchRequest(), 12)
            await reader.writer.drain()
            if not at_once:
                await begun.wait()
            linger = struct.pack("ii", 1, 0)
            for client in (writer, reader):
                client.writer.get_extra_info("socket").setsockopt(
                    socket.SOL_SOCKET, socket.SO_LINGER, linger
                )
                await client.close()
            async with asyncio.timeout(10):
                if not at_once:
                    await written.wait()
                await broker.server.close()
                assert held_bytes(broker) == 0
            if not at_once:
                assert sorted(ended) == ["fetch", "write"]

    run(story(), loop)


@pytest.mark.parametrize("loop", LOOPS)
def test_a_client_that_closes_its_half_still_gets_its_answers(loop: str) -> None:
    async def story() -> None:
        async with serving(
            {ApiKey.INIT_PRODUCER_ID: counted_init}, connection_requests_in_flight_max=2
        ) as broker:
            client = await broker.connect()
            for number in range(10):
                client.send(init(number), 4)
            client.writer.write_eof()
            for number in range(10):
                _, answer = await client.receive(InitProducerIdResponse, 4)
                assert answer.producer_id == number
            assert await client.closed()

    run(story(), loop)


@pytest.mark.parametrize(
    ("garbage", "reason", "words"),
    [
        (struct.pack(">i", 2_000_000), "malformed", "socket.request.max.bytes"),
        (b"\xff\xff\xff\xff", "malformed", "-1"),
        (b"GET / HTTP/1.1\r\n\r\n", "malformed", "HTTP"),
        (b"\x16\x03\x01\x02\x00", "malformed", "TLS"),
        (struct.pack(">ihh", 4, 500, 0), "malformed", "header"),
        (struct.pack(">ihhih", 10, 500, 0, 1, -1), "unknown_api", "500"),
        (struct.pack(">ihhih", 10, 11, 0, 1, -1), "unknown_api", "JoinGroup"),
        (struct.pack(">ihhihb", 11, 60, 99, 1, -1, 0), "unsupported_version", "DescribeCluster"),
    ],
)
def test_an_unintelligible_request_closes_its_own_connection_only(
    garbage: bytes, reason: str, words: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def story() -> None:
        async with serving(
            {ApiKey.DESCRIBE_CLUSTER: describe}, socket_request_max_bytes=1_000_000
        ) as broker:
            good, bad = await broker.connect(), await broker.connect()
            await good.ask(DescribeClusterRequest(), DescribeClusterResponse, 0)
            bad.writer.write(garbage)
            assert await bad.closed()
            await good.ask(DescribeClusterRequest(), DescribeClusterResponse, 0)
            assert broker.metrics.connections_closed.of(reason).value == 1

    with caplog.at_level(logging.INFO):
        run(story())
    (closed,) = [each for each in caplog.records if each.message == "connection closed"]
    assert words in closed.detail  # type: ignore[attr-defined]


def test_a_newer_client_learns_which_versions_of_api_versions_there_are() -> None:
    async def story() -> None:
        async with serving({ApiKey.DESCRIBE_CLUSTER: describe}) as broker:
            client = await broker.connect()
            newest = bytearray(struct.pack(">hhih", 18, 77, 5, -1) + b"\0anything")
            client.writer.write(struct.pack(">i", len(newest)) + newest)
            correlation_id, answer = await client.receive(ApiVersionsResponse, 0)
            assert correlation_id == 5
            assert answer.error_code == ErrorCode.UNSUPPORTED_VERSION
            assert [(each.api_key, each.max_version) for each in answer.api_keys] == [(18, 4)]
            request = ApiVersionsRequest(client_software_name="x", client_software_version="1.0")
            everything = await client.ask(request, ApiVersionsResponse, 4)
            assert [each.api_key for each in everything.api_keys] == [18, 60]
            (feature,) = everything.finalized_features
            assert (feature.name, feature.max_version_level) == ("transaction.version", 2)

    run(story())


def test_an_address_that_is_taken_is_an_error() -> None:
    async def story() -> None:
        async with serving({}) as broker:
            with pytest.raises(Refused, match="Address already in use; stop the process"):
                await ReservedAddress.of(SocketNetwork(), replace(LOOPBACK, address=broker.address))

    run(story())


@pytest.mark.parametrize("ending", ["close", "abort"])
def test_a_server_that_never_started_can_be_ended(ending: str) -> None:
    async def story() -> None:
        async with serving({}) as broker:
            end: Callable[[], Awaitable[None]] = getattr(broker.server, ending)
            await end()

    run(story())
