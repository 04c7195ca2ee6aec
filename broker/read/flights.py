"""Reads of the store that are under way: limited in number and bytes, each shared by its readers.

A flight is one such read. A reader joins a flight that brings its records, or begins one. The
last reader to give up cancels the flight, unless it was begun ahead of readers. If a flight fails,
each reader that waits gets its error, and the next reader begins another.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

from tidelog.wal.read.read_cache import ReadMemory


class ReadGate:
    """Lets reads begin in order, within a number and a sum of bytes; one may always run."""

    def __init__(self, count_max: int, bytes_max: int) -> None:
        self._count_max = count_max
        self._bytes_max = bytes_max
        self._count = 0
        self._bytes = 0
        self._queue: deque[tuple[asyncio.Future[None], int]] = deque()

    async def enter(self, size: int) -> None:
        """Wait until the read may begin. Must be followed by `leave`."""
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


class AtOnce(NamedTuple):
    """Limits of the reads of one kind at a time."""

    count_max: int
    bytes_max: int


class Flight:
    """One read. Its task is set by `Flights.begin`."""

    __slots__ = ("begun_ahead", "size_bytes", "task", "waiting")

    def __init__(self, size_bytes: int, *, is_ahead: bool) -> None:
        self.size_bytes = size_bytes
        self.begun_ahead = is_ahead
        """True if no reader waited when it was begun."""
        self.waiting = 0
        self.task: asyncio.Task[Any]

    def join(self) -> None:
        """Wait for it, on a shielded future; followed by `leave`."""
        self.waiting += 1

    def leave(self) -> None:
        """Wait no more. The last reader ends a flight that is still under way."""
        self.waiting -= 1
        if self.waiting == 0 and not self.begun_ahead:
            self.task.cancel()

    @property
    def may_be_joined(self) -> bool:
        """False once it is being cancelled."""
        return not self.task.cancelling()


class Flights:
    """One broker's flights of one kind. To be closed."""

    def __init__(self, waited_for: AtOnce, ahead: AtOnce, memory: ReadMemory) -> None:
        """`memory` keeps the ranges that came; half of it is for those read ahead."""
        self._gate = ReadGate(*waited_for)
        self._ahead_gate = ReadGate(*ahead)
        self._memory = memory
        self._tasks: dict[asyncio.Task[Any], None] = {}
        self._ahead_bytes = 0
        self.is_closed = False
        self.ahead = 0
        """Flights ahead of readers that are under way or wait for their turn."""
        self.joined = 0
        """The reads that joined another reader's flight."""
        self.ahead_bytes_total = 0
        """Bytes whose read was begun before a reader asked for them."""

    async def close(self) -> None:
        """End the flights; readers that wait for them are cancelled."""
        self.is_closed = True
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def has_room_ahead(self, size_bytes: int) -> bool:
        """Whether the memory has room for this much more read ahead of readers."""
        unused_bytes = self._memory.ahead_bytes + self._ahead_bytes
        return unused_bytes + size_bytes <= self._memory.bytes_max // 2

    def begin(
        self,
        flight: Flight,
        bring: Callable[[], Awaitable[object]],
        landed: Callable[[], None],
        name: str,
    ) -> None:
        """Begin a flight. `bring` reads. `landed` is called at the end, also after an error."""
        if flight.begun_ahead:
            self.ahead += 1
            self._ahead_bytes += flight.size_bytes
            self.ahead_bytes_total += flight.size_bytes

        def over(task: asyncio.Task[Any]) -> None:
            del self._tasks[task]
            if flight.begun_ahead:
                self.ahead -= 1
                self._ahead_bytes -= flight.size_bytes
            landed()

        flight.task = asyncio.create_task(self._read_behind_gate(flight, bring), name=name)
        self._tasks[flight.task] = None
        # Not in `_read_behind_gate`: a task that is cancelled before its first step runs none of
        # its code.
        flight.task.add_done_callback(over)

    async def _read_behind_gate(
        self, flight: Flight, bring: Callable[[], Awaitable[object]]
    ) -> object:
        gate = self._ahead_gate if flight.begun_ahead else self._gate
        await gate.enter(flight.size_bytes)
        try:
            return await bring()
        finally:
            gate.leave(flight.size_bytes)
