"""Decodes, serves and answers long requests in slices of the event loop.

A decoded request takes many times its size in memory. So the broker decodes long requests only
while their arrays fit its limit; the others wait in their order. Short requests do not wait for any
of this.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Generator
from contextlib import asynccontextmanager
from typing import Any, Final

from tidelog.broker.dispatch.request_parts import Division, Part, cut, join
from tidelog.broker.fairness.turns import SliceTurns
from tidelog.protocol.message import Request, Response
from tidelog.protocol.wire import ELEMENTS_MAX, STEP_ELEMENTS

PARTS_IN_FLIGHT_MAX: Final = 16
"""Parts of one request that run at a time."""


class LongRequests:
    """The long requests of one broker."""

    def __init__(self, turns: SliceTurns, elements_max: int) -> None:
        """`elements_max` limits the array elements of all long requests in service."""
        self._turns = turns
        self._elements_max = max(elements_max, ELEMENTS_MAX)
        self._elements = 0
        self._reading = asyncio.Lock()
        self._freed = asyncio.Event()

    @asynccontextmanager
    async def read(
        self, steps: Generator[None, None, Request[Response]]
    ) -> AsyncIterator[Request[Response]]:
        """The message that the steps decode; its elements count until the end of the context.

        Raises what the steps raise.
        """
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
                # The room suffices for the longest request, so that decoding never waits for room.
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
        """Serve a request in parts and join their answers.

        A part starts when the previous one has started; the first error ends all.
        """
        parts: list[Part] = []
        served: list[asyncio.Future[Response | None]] = []
        try:
            for number, part in enumerate(cut(division, request)):
                if number:
                    await self._turns.next()
                if number >= PARTS_IN_FLIGHT_MAX:
                    await served[number - PARTS_IN_FLIGHT_MAX]
                parts.append(part)
                served.append(asyncio.ensure_future(serve(part.request)))
            answers = [await each for each in served]
        finally:
            for each in served:
                each.cancel()
        return join(division, parts, answers)
