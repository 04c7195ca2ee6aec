"""Lets clients that have more requests waiting than are begun at once go on by turns.

Cheap requests that come while nothing of their client waits are begun as soon as they come. All
others share what is left: some in each pass of the event loop, and fewer while these take long. So
a client that asks now and then hardly notices a hundred others that ask without a pause.
"""

from __future__ import annotations

import asyncio
from typing import Final, Protocol

from tidelog.clock import Clock

COSTLY: Final = 16
"""What a request that may be costly counts, where a cheap one counts 1."""
PASS_MAX: Final = 64
"""What may be begun in a pass, counted so."""
PASS_MIN: Final = COSTLY
"""The least, while passes take long."""
PASSES_TO_ANSWER: Final = 2
"""What is begun in a pass of the event loop is done in the next one, and answered behind that."""
SLOW_SECONDS: Final = 0.002
"""What took longer is followed by less. Behind costly requests as much time is left to others."""
PAUSE_SECONDS_MAX: Final = 0.1


class TakesTurns(Protocol):
    """A client."""

    def take_turn(self) -> int:
        """Begin some requests; what they count."""
        ...

    @property
    def waits(self) -> bool:
        """Whether there are requests that can be begun."""
        ...


class Turns:
    """Of one server."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        # A dictionary, not a set: its order is the same in every run of a simulation.
        self._waiting: dict[TakesTurns, None] = {}
        self._next: asyncio.Handle | None = None
        self._pass_max = PASS_MAX
        self._has_costly = False
        """Whether one was begun in the last pass."""
        self._began = 0.0

    def __contains__(self, client: TakesTurns) -> bool:
        return client in self._waiting

    def join(self, client: TakesTurns) -> None:
        """The client waits for its turn, if it has requests that can be begun."""
        if client.waits and client not in self._waiting:
            self._waiting[client] = None
            if self._next is None:
                self._next = asyncio.get_running_loop().call_soon(self._pass)

    def leave(self, client: TakesTurns) -> None:
        """The client is gone."""
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
        """See, when what was begun is done, how long it took."""
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
