"""Gives clients turns if they have more requests waiting than may start at once.

Cheap requests start on arrival if no request of their client waits. All others share the rest: some
start in each pass of the event loop, and fewer while passes are slow. So a client with rare
requests hardly notices a hundred others with constant ones.
"""

from __future__ import annotations

import asyncio
from typing import Final, Protocol

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
