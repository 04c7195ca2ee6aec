"""Timeouts of many requests with few different durations: one timer for each duration.

Waits of equal length expire in the order in which they began. So one timer for the first of them
suffices. Starting or ending a wait is one dictionary operation: brokers serve thousands of small
requests a second.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from tidelog.concurrency import OfOneLoop


class Deadline:
    """One wait. `cancel` ends it; after its expiry that changes nothing."""

    __slots__ = ("_late", "_line", "when")

    def __init__(self, when: float, late: Callable[[], None], line: _Line) -> None:
        self.when = when
        """The end of the wait, by the loop's clock."""
        self._late = late
        self._line = line

    def cancel(self) -> None:
        """End the wait in time: its callback is not called."""
        self._line.remove(self)

    def expire(self) -> None:
        """Call the callback: the time has passed."""
        self._late()


class Deadlines(OfOneLoop):
    """The waits of one event loop. Ended waits leave nothing behind."""

    def __init__(self) -> None:
        self._lines: dict[float, _Line] = {}

    def __len__(self) -> int:
        return sum(map(len, self._lines.values()))

    def add(self, seconds: float, late: Callable[[], None]) -> Deadline:
        """Call `late` after `seconds`, unless the wait is cancelled before."""
        line = self._lines.get(seconds)
        if line is None:
            line = self._lines[seconds] = _Line(seconds, self._lines, self.loop)
        return line.add(late)


class _Line:
    """The waits of one length, by their ends. Deadlines lists it while it has any."""

    def __init__(
        self, seconds: float, lines: dict[float, _Line], loop: asyncio.AbstractEventLoop
    ) -> None:
        self._seconds = seconds
        self._lines = lines
        self._waiting: dict[Deadline, None] = {}
        self._loop = loop
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, late: Callable[[], None]) -> Deadline:
        deadline = Deadline(self._loop.time() + self._seconds, late, self)
        self._waiting[deadline] = None
        if self._timer is None:
            self._timer = self._loop.call_at(deadline.when, self._expire_due)
        return deadline

    def remove(self, deadline: Deadline) -> None:
        self._waiting.pop(deadline, None)
        if not self._waiting and self._timer is not None:
            self._timer.cancel()
            self._close()

    def _expire_due(self) -> None:
        """Expire the waits whose time has passed; set the timer for the next one."""
        now = self._loop.time()
        while self._waiting:
            first = next(iter(self._waiting))
            if first.when > now:
                self._timer = self._loop.call_at(first.when, self._expire_due)
                return
            del self._waiting[first]
            # A callback of its own: one that fails does not stop the others.
            self._loop.call_soon(first.expire)
        self._close()

    def _close(self) -> None:
        self._timer = None
        del self._lines[self._seconds]
