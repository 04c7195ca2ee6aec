"""The HTTP side, which liveness probes use."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterable

from tests.attack.attack import Target, attack
from tests.attack.wire import Wire, again_and_again, side_by_side


@attack(seconds=15)
async def half_sent_http_requests(target: Target) -> None:
    """300 connections send half of an HTTP request and wait; they reconnect when they are
    closed."""
    half = [b"GET /metrics HTTP/1.1\r\nHost: x\r\nX-Header: "]
    await side_by_side(300, lambda _: again_and_again(lambda: _send(target, half), 0.1))


@attack(seconds=15)
async def http_headers_that_come_by_the_byte(target: Target) -> None:
    """300 connections send an HTTP header of which another byte comes each second, for ever."""
    bytewise = itertools.chain([b"GET /metrics HTTP/1.1\r\nX-Header: "], itertools.repeat(b"x"))
    await side_by_side(300, lambda _: again_and_again(lambda: _send(target, bytewise), 0.1))


@attack(seconds=15)
async def metrics_asked_for_without_a_pause(target: Target) -> None:
    """50 clients ask for /metrics as fast as they can."""

    async def ask() -> None:
        wire = await Wire.connect(target.http)
        try:
            await wire.send(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
            while True:
                await wire.receive()
        finally:
            wire.close()

    await side_by_side(50, lambda _: again_and_again(ask, 0))


async def _send(target: Target, pieces: Iterable[bytes]) -> None:
    wire = await Wire.connect(target.http)
    receiving = asyncio.ensure_future(wire.receive())
    try:
        for piece in pieces:
            await wire.send(piece)
            await asyncio.wait([receiving], timeout=1)
            if receiving.done():
                return
        await receiving
    finally:
        receiving.cancel()
        await asyncio.gather(receiving, return_exceptions=True)
        wire.close()
