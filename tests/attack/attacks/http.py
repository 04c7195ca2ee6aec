"""The HTTP side, on which liveness probes rest."""

from __future__ import annotations

from tests.attack.attack import Target, attack
from tests.attack.wire import Wire, again_and_again, side_by_side


@attack(seconds=15)
async def half_sent_http_requests(target: Target) -> None:
    """300 connections send half of an HTTP request and wait; they come again when they are
    closed."""

    async def half() -> None:
        wire = await Wire.connect(target.http)
        try:
            await wire.send(b"GET /metrics HTTP/1.1\r\nHost: x\r\nX-Header: ")
            await wire.receive()
        finally:
            wire.close()

    async def one(_: int) -> None:
        await again_and_again(half, 0.1)

    await side_by_side(300, one)
