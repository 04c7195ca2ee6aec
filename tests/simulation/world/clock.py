"""The clocks of simulated processes."""

from __future__ import annotations

import asyncio

from tests.simulation.world.loop import START_SECONDS, SimulatedLoop

EPOCH_MS = 1_750_000_000_000
"""The wall clock's time at virtual time 0."""


class SimulatedClock:
    """A process's clock (tidelog.clock.Clock): the loop's time, its rate and wall clock skewed.

    The error of a wrong rate counts from the loop's beginning: two clocks differ by their offsets
    at first, and then drift apart slowly.
    """

    def __init__(self, loop: SimulatedLoop, offset_ms: int = 0, rate: float = 1.0) -> None:
        self._loop = loop
        self._offset_ms = offset_ms
        self._rate = rate

    def monotonic(self) -> float:
        return self._loop.time() * self._rate

    def time_ms(self) -> int:
        elapsed = (self._loop.time() - START_SECONDS) * self._rate
        return EPOCH_MS + self._offset_ms + int((START_SECONDS + elapsed) * 1000)

    def jump(self, milliseconds: int) -> None:
        """Set the wall clock, as an operator may do."""
        self._offset_ms += milliseconds

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds / self._rate)
