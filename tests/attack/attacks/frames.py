"""Frames that do not end."""

from __future__ import annotations

import asyncio

from tests.attack.attack import Target, attack
from tests.attack.wire import Wire, again_and_again, side_by_side

FRAME_BYTES = 100 * 1024 * 1024
_PIECE = bytes(1 << 20)


@attack(seconds=40)
async def three_large_frames_that_go_on_by_a_byte(target: Target) -> None:
    """Three connections send most of a frame of 100 MiB, then a byte each 5 s; they come again when
    they are closed."""

    async def one(_: int) -> None:
        await again_and_again(lambda: _begun(target, FRAME_BYTES * 9 // 10), 0.1)

    await side_by_side(3, one)


async def _begun(target: Target, size: int) -> None:
    wire = await Wire.connect(target.kafka)
    try:
        await wire.send(FRAME_BYTES.to_bytes(4, "big"))
        for _ in range(size // len(_PIECE)):
            await wire.send(_PIECE)
        while True:
            await wire.send(b"\0")
            await asyncio.sleep(5)
    finally:
        wire.close()
