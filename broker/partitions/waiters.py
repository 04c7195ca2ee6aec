"""Fetches that long polling parks on partitions until something becomes readable.

A wake only sets an event. It is idempotent, and costs nothing if no fetch is parked.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable


class Waiter:
    """One parked request; it may watch many partitions."""

    __slots__ = ("_event", "_queues")

    def __init__(self, queues: Iterable[WaitQueue]) -> None:
        self._event = asyncio.Event()
        self._queues = list(queues)

    def __enter__(self) -> Waiter:
        for queue in self._queues:
            queue.waiters[self] = None
        return self

    def __exit__(self, *_: object) -> None:
        for queue in self._queues:
            queue.waiters.pop(self, None)

    def wake(self) -> None:
        """Let the request read again."""
        self._event.set()

    async def wait(self, seconds: float) -> bool:
        """True when woken, False when the time has passed. Ready for the next wait."""
        try:
            async with asyncio.timeout(seconds):
                await self._event.wait()
        except TimeoutError:
            return False
        self._event.clear()
        return True


class WaitQueue:
    """The requests parked on one partition."""

    __slots__ = ("waiters",)

    def __init__(self) -> None:
        # A dictionary, not a set: its order is the same in every run of a simulation.
        self.waiters: dict[Waiter, None] = {}

    def wake_all(self) -> None:
        """Wake every parked request, so that it reads again."""
        for waiter in self.waiters:
            waiter.wake()
