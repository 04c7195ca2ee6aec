"""Limits the reads from the store by their number and bytes."""

from __future__ import annotations

import asyncio
from collections import deque


class ReadGate:
    """Admits reads in order, within a number and a sum of bytes; one is always admitted."""

    def __init__(self, count_max: int, bytes_max: int) -> None:
        self._count_max = count_max
        self._bytes_max = bytes_max
        self._count = 0
        self._bytes = 0
        self._queue: deque[tuple[asyncio.Future[None], int]] = deque()

    async def enter(self, size: int) -> None:
        """Wait for admission. Must be followed by `leave`."""
        if not self._queue and self._fits(size):
            self._count += 1
            self._bytes += size
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queue.append((turn, size))
        try:
            await turn
        except asyncio.CancelledError:
            if not turn.cancelled():
                self.leave(size)
            raise

    def leave(self, size: int) -> None:
        """Make room for waiting reads."""
        self._count -= 1
        self._bytes -= size
        while self._queue:
            turn, waiting = self._queue[0]
            if not turn.cancelled():
                if not self._fits(waiting):
                    return
                self._count += 1
                self._bytes += waiting
                turn.set_result(None)
            self._queue.popleft()

    def _fits(self, size: int) -> bool:
        return self._count == 0 or (
            self._count < self._count_max and self._bytes + size <= self._bytes_max
        )
