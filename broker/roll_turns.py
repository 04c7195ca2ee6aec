"""The pauses of a roll: between its pieces others have the cores and the disk for themselves."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress

from tidelog.clock import Clock
from tidelog.wal.roll_pace import RollPace


class RollTurns:
    """When the roll of one partition may take up its next piece."""

    def __init__(
        self, pace: RollPace, clock: Clock, asked: asyncio.Event, is_wanted: Callable[[], bool]
    ) -> None:
        """`asked`: somebody waits for a roll, behind this one; there are no pauses then.
        `is_wanted`: whether this one is of any use still."""
        self._pace = pace
        self._clock = clock
        self._asked = asked
        self._is_wanted = is_wanted

    async def wait(self) -> bool:
        """Until the next piece may begin; whether it is wanted still."""
        seconds = self._pace.seconds_to_wait(self._clock.monotonic())
        if seconds:
            await wait_for(self._asked, seconds)
        self._pace.begin(self._clock.monotonic())
        return self._is_wanted()

    def note(self, work_bytes: int) -> None:
        """So much was done since it could begin."""
        self._pace.note(work_bytes)


async def wait_for(event: asyncio.Event, seconds: float | None) -> None:
    """Until the event, but not longer than that."""
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()
