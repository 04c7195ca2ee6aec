"""Requests that are too long to be read, served or answered at once.

Reading a message, serving what it names and writing the answer take their turns on the event loop.
What is read of long requests takes many times their size in memory, so only so much of them is read
as there is room for; the others wait as they came. Short requests do not wait for any of this.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Generator
from contextlib import asynccontextmanager
from typing import Any, Final

from tidelog.broker.dispatch.request_parts import Division, cut, join
from tidelog.broker.fairness.slice_turns import SliceTurns
from tidelog.protocol.message import Request, Response
from tidelog.protocol.wire import ELEMENTS_MAX, STEP_ELEMENTS

PARTS_IN_FLIGHT_MAX: Final = 16
"""Parts of one request that are served at a time."""


class LongRequests:
    """Those of one broker."""

    def __init__(self, turns: SliceTurns, elements_max: int) -> None:
        """`elements_max`: of arrays in all long requests that are being served."""
        self._turns = turns
        self._elements_max = max(elements_max, ELEMENTS_MAX)
        self._elements = 0
        self._reading = asyncio.Lock()
        self._freed = asyncio.Event()

    @asynccontextmanager
    async def read(
        self, steps: Generator[None, None, Request[Response]]
    ) -> AsyncIterator[Request[Response]]:
        """The message that the steps make; it counts until the end of the context. Raises what the
        steps raise."""
        elements = 0

        def counted() -> Generator[None, None, Request[Response]]:
            nonlocal elements
            while True:
                try:
                    next(steps)
                except StopIteration as end:
                    message: Request[Response] = end.value
                    return message
                elements += STEP_ELEMENTS
                self._elements += STEP_ELEMENTS
                yield

        try:
            async with self._reading:
                # However long this one is, it fits, so what is read never waits for room.
                while self._elements + ELEMENTS_MAX > self._elements_max:
                    self._freed.clear()
                    await self._freed.wait()
                message = await self._turns.through(counted())
            yield message
        finally:
            self._elements -= elements
            self._freed.set()

    async def serve(
        self,
        division: Division,
        request: Request[Response],
        serve: Callable[[Request[Any]], Awaitable[Response | None]],
    ) -> Response | None:
        """The answers to the parts of a request, put together. A part is begun when the one before
        has been; the first error ends all."""
        parts: list[asyncio.Future[Response | None]] = []
        try:
            for number, part in enumerate(cut(division, request)):
                if number:
                    await self._turns.next()
                if number >= PARTS_IN_FLIGHT_MAX:
                    await parts[number - PARTS_IN_FLIGHT_MAX]
                parts.append(asyncio.ensure_future(serve(part)))
            answers = [await each for each in parts]
        finally:
            for each in parts:
                each.cancel()
        return join(division, answers)
