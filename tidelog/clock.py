"""Time as an argument: the only module that reads a clock or sleeps."""

from __future__ import annotations

import asyncio
import time
from functools import partial
from typing import TYPE_CHECKING, Protocol


class Clock(Protocol):
    """The time functions of a shell. Simulations replace them."""

    def monotonic(self) -> float:
        """Seconds from an arbitrary start; never decreases."""
        ...

    def time_ms(self) -> int:
        """Milliseconds since the Unix epoch."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Suspend the calling task."""
        ...


class SystemClock:
    """The machine's clock and the running event loop's timers."""

    # A suspended machine must not consider its lease fresh. So the clock also counts suspended
    # time, if the system has such a clock.
    _CLOCK_ID = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)

    if TYPE_CHECKING:

        def monotonic(self) -> float: ...
    else:
        # Without a frame of Python's: each request asks for the time several times.
        monotonic = partial(time.clock_gettime, _CLOCK_ID)

    def time_ms(self) -> int:
        return time.time_ns() // 1_000_000

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
