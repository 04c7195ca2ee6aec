"""Shares the event loop between requests' long work and everything else.

Work is cut into slices of about a millisecond. Between two slices the loop serves all ready
callbacks. Slices of all requests take turns, and rest for as long as they ran. So half of the
loop's time is left to others, even if many requests are long.
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
"""The items of a slice that only counts."""
REST_SECONDS_MAX: Final = 0.02
"""The longest rest: an overlong slice must not delay the others."""


class SliceTurns:
    """The turns of one event loop."""

    def __init__(self) -> None:
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._is_turning = False
        self._began: float | None = None
        """When the present slice began, by the loop's clock."""

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
        """The items, `slice_items` in a slice."""
        left = slice_items
        for each in items:
            if not left:
                left = slice_items
                await self.next()
            left -= 1
            yield each

    async def list_of(self, items: Iterable[T], slice_items: int) -> list[T]:
        """All items of a lazy iterable, `slice_items` in a slice."""
        iterator = iter(items)
        found: list[T] = []
        while True:
            more = list(islice(iterator, slice_items))
            found += more
            if len(more) < slice_items:
                return found
            await self.next()

    async def counted(self, items: Iterable[H]) -> Counter[H]:
        """The number of occurrences of each item."""
        counts: Counter[H] = Counter()
        iterator = iter(items)
        counts.update(islice(iterator, COUNTED_ITEMS))
        while more := list(islice(iterator, COUNTED_ITEMS)):
            await self.next()
            counts.update(more)
        return counts

    async def through(self, steps: Generator[None, None, T]) -> T:
        """The return value of a generator whose steps are slices."""
        while True:
            try:
                next(steps)
            except StopIteration as end:
                result: T = end.value
                return result
            await self.next()

    def _turn(self) -> None:
        """Start the next slice. It runs before the next call."""
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
