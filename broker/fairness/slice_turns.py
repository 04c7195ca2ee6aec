"""Long work of requests shares the event loop with everything else.

Work is cut into slices of about a millisecond. Between two slices the loop serves all that is ready
then. Slices take turns, whatever request they belong to, and rest for as long as they ran: however
many requests are long, half of the loop's time is left to others.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import AsyncIterator, Generator, Hashable, Iterable
from itertools import islice
from typing import Final, TypeVar

T = TypeVar("T")
H = TypeVar("H", bound=Hashable)

COUNTED_ITEMS: Final = 2048
"""Of a slice that only counts."""
REST_SECONDS_MAX: Final = 0.02
"""A slice that took longer than it should is no reason to leave the others waiting."""


class SliceTurns:
    """The turns of one event loop."""

    def __init__(self) -> None:
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._is_turning = False
        self._began: float | None = None
        """By the loop's clock: when the present slice began."""

    async def next(self) -> None:
        """End a slice; the next one begins when this returns."""
        loop = asyncio.get_running_loop()
        turn: asyncio.Future[None] = loop.create_future()
        self._waiting.append(turn)
        if not self._is_turning:
            self._is_turning = True
            loop.call_soon(self._turn)
        await turn

    async def over(self, items: Iterable[T], slice_items: int) -> AsyncIterator[T]:
        """The items, so many in a slice."""
        left = slice_items
        for each in items:
            if not left:
                left = slice_items
                await self.next()
            left -= 1
            yield each

    async def list_of(self, items: Iterable[T], slice_items: int) -> list[T]:
        """All items of an iterable that makes them one by one, so many in a slice."""
        iterator = iter(items)
        found: list[T] = []
        while True:
            more = list(islice(iterator, slice_items))
            found += more
            if len(more) < slice_items:
                return found
            await self.next()

    async def counted(self, items: Iterable[H]) -> Counter[H]:
        """How often each of the items is there."""
        counts: Counter[H] = Counter()
        iterator = iter(items)
        counts.update(islice(iterator, COUNTED_ITEMS))
        while more := list(islice(iterator, COUNTED_ITEMS)):
            await self.next()
            counts.update(more)
        return counts

    async def through(self, steps: Generator[None, None, T]) -> T:
        """What a generator returns, each of whose steps is a slice."""
        while True:
            try:
                next(steps)
            except StopIteration as end:
                result: T = end.value
                return result
            await self.next()

    def _turn(self) -> None:
        """Let the next one go on. Its slice runs before this is called again."""
        loop = asyncio.get_running_loop()
        if self._began is not None:
            rest_seconds = min(loop.time() - self._began, REST_SECONDS_MAX)
            self._began = None
            loop.call_later(rest_seconds, self._turn)
            return
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                self._began = loop.time()
                loop.call_soon(self._turn)
                return
        self._is_turning = False
