"""Requests whose answers are not read."""

from __future__ import annotations

import asyncio

from tests.attack.attack import Target, attack
from tests.attack.wire import Wire, again_and_again, creation, request_bytes, side_by_side
from tests.unit.broker.one_broker import produce_request
from tidelog.protocol.message import Request, Response
from tidelog.protocol.schemas.cluster.api_versions import ApiVersionsRequest
from tidelog.protocol.schemas.cluster.metadata import MetadataRequest
from tidelog.protocol.schemas.fetch import FetchPartition, FetchRequest, FetchTopic
from tidelog.records.records import NewRecord, encode_batch

_BATCH_BYTES = 1_000_000


@attack(seconds=15)
async def metadata_requests_whose_answers_are_not_read(target: Target) -> None:
    """30 connections send 100 Metadata requests each, for 5,000 partitions, and read nothing; after
    2 s they hang up and connect again."""
    wire = await Wire.connect(target.kafka)
    await wire.ask(creation("wide", 5000))
    flood = request_bytes(MetadataRequest(topics=None), 12) * 100
    await _floods(target, 30, flood, seconds=2.0)


@attack(seconds=15)
async def api_versions_requests_whose_answers_are_not_read(target: Target) -> None:
    """200 connections send ApiVersions requests as fast as the broker takes them, and read
    nothing."""
    flood = request_bytes(ApiVersionsRequest(), 2) * 2000
    await _floods(target, 200, flood, seconds=5.0)


@attack(seconds=15)
async def api_versions_requests_whose_answers_are_read(target: Target) -> None:
    """200 connections send ApiVersions requests as fast as the broker takes them, and read the
    answers."""
    flood = request_bytes(ApiVersionsRequest(), 2) * 200

    async def one(_: int) -> None:
        await again_and_again(read_on, 0.1)

    async def read_on() -> None:
        wire = await Wire.connect(target.kafka)
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(_send_on(wire, flood))
                tasks.create_task(_read_on(wire))
        except* OSError:
            pass
        finally:
            wire.close()

    await side_by_side(200, one)


@attack(seconds=25)
async def fetches_of_large_answers_that_are_not_read(target: Target) -> None:
    """100 connections fetch 50 MB each, of different places of a log of 200 MB, and read a byte a
    second of it."""
    wire = await Wire.connect(target.kafka)
    await wire.ask(creation("large", 1))
    value = bytes(_BATCH_BYTES)
    for number in range(200):
        batch = encode_batch([NewRecord(value, b"%d" % number)])
        await wire.ask(request_bytes(produce_request("large", 0, batch, -1, 10_000), 9))

    async def slow(offset: int) -> None:
        wire = await Wire.connect(target.kafka, receive_buffer_bytes=4096)
        try:
            await wire.send(_fetch("large", offset, 50 << 20))
            while True:
                await asyncio.sleep(1)
                await wire.receive(1)
        finally:
            wire.close()

    async def one(number: int) -> None:
        await again_and_again(lambda: slow(number), 0.1)

    await side_by_side(100, one)


async def _floods(target: Target, count: int, flood: bytes, seconds: float) -> None:
    async def flooding() -> None:
        wire = await Wire.connect(target.kafka, receive_buffer_bytes=4096)
        try:
            async with asyncio.timeout(seconds):
                await _send_on(wire, flood)
        except TimeoutError:
            pass
        finally:
            wire.close()

    async def one(_: int) -> None:
        await again_and_again(flooding, 0.1)

    await side_by_side(count, one)


async def _send_on(wire: Wire, data: bytes) -> None:
    while True:
        await wire.send(data)


async def _read_on(wire: Wire) -> None:
    while True:
        await wire.receive(1 << 20)


def _fetch(topic: str, offset: int, size: int) -> bytes:
    partition = FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=size)
    request: Request[Response] = FetchRequest(
        max_wait_ms=500,
        min_bytes=1,
        max_bytes=size,
        topics=[FetchTopic(topic=topic, partitions=[partition])],
    )
    return request_bytes(request, 12)
