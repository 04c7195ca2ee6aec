"""Frames that do not end."""

from __future__ import annotations

import asyncio

from tests.attack.attack import Target, attack
from tests.attack.wire import Wire, again_and_again, side_by_side

LARGEST_BYTES = 100 * 1024 * 1024
_PIECE = bytes(1 << 20)


@attack(seconds=40)
async def three_large_frames_that_go_on_by_a_byte(target: Target) -> None:
    """Three connections send most of a frame of 100 MiB, then a byte each 5 s; they reconnect when
    they are closed."""

    async def one(_: int) -> None:
        await again_and_again(lambda: _part(target, LARGEST_BYTES, LARGEST_BYTES * 9 // 10), 0.1)

    await side_by_side(3, one)


@attack(seconds=30)
async def a_thousand_small_frames_that_go_on_by_a_byte(target: Target) -> None:
    """1,000 connections send all but some bytes of a frame of 280 kB, then a byte each 5 s; they
    reconnect when they are closed."""

    async def one(_: int) -> None:
        await again_and_again(lambda: _part(target, 280_000, 279_900), 0.1)

    await side_by_side(1000, one)


@attack(seconds=15)
async def large_frames_that_are_announced_and_do_not_come(target: Target) -> None:
    """2,000 connections announce a frame of 100 MiB and send a byte of it each 5 s."""

    async def one(_: int) -> None:
        await again_and_again(lambda: _part(target, LARGEST_BYTES, 1), 0.1)

    await side_by_side(2000, one)


@attack(seconds=20)
async def a_byte_from_each_of_five_thousand(target: Target) -> None:
    """5,000 connections send the first byte of a request's size, and nothing more."""

    async def lone() -> None:
        wire = await Wire.connect(target.kafka)
        try:
            await wire.send(b"\0")
            await wire.receive()
        finally:
            wire.close()

    async def one(_: int) -> None:
        await again_and_again(lone, 0.1)

    await side_by_side(5000, one)


async def _part(target: Target, size: int, sent: int) -> None:
    """Announce a frame, send this much of it, and then a byte every 5 s."""
    wire = await Wire.connect(target.kafka)
    try:
        await wire.send(size.to_bytes(4, "big"))
        for at in range(0, sent, len(_PIECE)):
            await wire.send(_PIECE[: sent - at])
        while True:
            await asyncio.sleep(5)
            await wire.send(b"\0")
    finally:
        wire.close()
