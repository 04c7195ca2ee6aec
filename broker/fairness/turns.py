"""Turns at the event loop: of clients that begin requests, and of the slices of long requests.

Cheap requests start on arrival if no request of their client waits. All others share the rest: some
start in each pass of the event loop, and fewer while passes are slow. So a client with rare
requests hardly notices a hundred others with constant ones.

Long work is cut into slices of about a millisecond. Between two slices the loop serves all ready
callbacks. Slices of all requests take turns, and rest for as long as they ran. So half of the
loop's time is left to others, even if many requests are long.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import AsyncIterator, Generator, Hashable, Iterable
from itertools import islice
from typing import Final, Protocol, TypeVar

from tidelog.clock import Clock

COSTLY: Final = 16
"""The cost of a request that may be costly; a cheap one costs 1."""
PASS_MAX: Final = 64
"""The cost that may start in a pass."""
PASS_MIN: Final = COSTLY
"""The cost that may start in a pass while passes are slow."""
PASSES_TO_ANSWER: Final = 2
"""A request that starts in a pass finishes in the next one, and is answered after that."""
SLOW_SECONDS: Final = 0.002
"""After a slower pass less starts. After costly requests, others get as much time."""
PAUSE_SECONDS_MAX: Final = 0.1


class TakesTurns(Protocol):
    """A client with a queue of requests."""

    def take_turn(self) -> int:
        """Start some requests; return their total cost."""
        ...

    @property
    def waits(self) -> bool:
        """Whether a received request may start."""
        ...


class Turns:
    """The turns of one server."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        # A dictionary, not a set: its order is the same in every run of a simulation.
        self._waiting: dict[TakesTurns, None] = {}
        self._next: asyncio.Handle | None = None
        self._pass_max = PASS_MAX
        self._has_costly = False
        """Whether a costly request started in the last pass."""
        self._began = 0.0

    def __contains__(self, client: TakesTurns) -> bool:
        return client in self._waiting

    def join(self, client: TakesTurns) -> None:
        """Queue the client, if it has a request that may start."""
        if client.waits and client not in self._waiting:
            self._waiting[client] = None
            if self._next is None:
                self._next = asyncio.get_running_loop().call_soon(self._pass)

    def leave(self, client: TakesTurns) -> None:
        """Remove a client that has gone."""
        self._waiting.pop(client, None)

    def _pass(self) -> None:
        self._began = self._clock.monotonic()
        self._has_costly = False
        begun = 0
        while self._waiting and begun < self._pass_max:
            client = next(iter(self._waiting))
            del self._waiting[client]
            counts = client.take_turn()
            begun += counts
            self._has_costly |= counts >= COSTLY
            if counts and client.waits:
                self._waiting[client] = None
        self._next = asyncio.get_running_loop().call_soon(self._settle, PASSES_TO_ANSWER - 1)

    def _settle(self, passes: int) -> None:
        """Measure the pass once its requests are done, and schedule the next one."""
        loop = asyncio.get_running_loop()
        if passes:
            self._next = loop.call_soon(self._settle, passes - 1)
            return
        took = self._clock.monotonic() - self._began
        pause = 0.0
        if took > SLOW_SECONDS:
            self._pass_max = max(PASS_MIN, self._pass_max // 2)
            pause = min(took, PAUSE_SECONDS_MAX) if self._has_costly else 0.0
        else:
            self._pass_max = min(PASS_MAX, self._pass_max + PASS_MIN)
        if not self._waiting:
            self._next = None
        elif pause:
            self._next = loop.call_later(pause, self._pass)
        else:
            self._next = loop.call_soon(self._pass)


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
