"""Connections that use up places and work."""

from __future__ import annotations

import asyncio
import contextlib

from tests.attack.attack import Target, attack
from tests.attack.wire import Wire, again_and_again, request_bytes, side_by_side
from tidelog.protocol.schemas.cluster.api_versions import ApiVersionsRequest


@attack(seconds=15, store="file", descriptors_max=256)
async def more_connections_than_file_descriptors(target: Target) -> None:
    """400 connections are opened to a broker that may open 256 files, ask once, and stay; they
    reconnect when they are closed."""
    await side_by_side(400, lambda _: again_and_again(lambda: _stay(target, asks=True), 0.05))


@attack(seconds=15, settings={"max.connections": 500})
async def silent_connections_up_to_the_limit(target: Target) -> None:
    """600 connections take all of 500 places and send nothing; they reconnect when they are
    closed."""
    await side_by_side(600, lambda _: again_and_again(lambda: _stay(target, asks=False), 0.05))


@attack(seconds=15)
async def connections_that_are_opened_and_closed(target: Target) -> None:
    """50 clients open connections, ask once, and hang up, as fast as they can."""

    async def come_and_go() -> None:
        wire = await Wire.connect(target.kafka)
        try:
            await wire.ask(request_bytes(ApiVersionsRequest(), 2))
        finally:
            wire.close()

    await side_by_side(50, lambda _: again_and_again(come_and_go, 0))


@attack(seconds=15)
async def connections_that_are_opened_and_reset(target: Target) -> None:
    """50 clients open connections and close them unused, as fast as they can."""

    async def come_and_go() -> None:
        (await Wire.connect(target.kafka)).close()

    await side_by_side(50, lambda _: again_and_again(come_and_go, 0))


async def _stay(target: Target, *, asks: bool) -> None:
    wire = await Wire.connect(target.kafka)
    try:
        if asks:
            await wire.ask(request_bytes(ApiVersionsRequest(), 2))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(60):
                await wire.receive()
    finally:
        wire.close()
