"""Timeouts of many requests that wait for few different times: one timer for each of these times.

Requests that wait equally long run out in the order in which they began, so only the first one's
end has to be watched. Beginning and ending a wait costs a step in a dictionary, which thousands of
small requests a second notice.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class Deadline:
    """One wait. `cancel` ends it; once it has run out that changes nothing."""

    __slots__ = ("_late", "_line", "when")

    def __init__(self, when: float, late: Callable[[], None], line: _Line) -> None:
        self.when = when
        """By the loop's clock."""
        self._late = late
        self._line = line

    def cancel(self) -> None:
        """It is over in time, and nobody is called."""
        self._line.remove(self)

    def run_out(self) -> None:
        """It is too late."""
        self._late()


class Deadlines:
    """The waits of one event loop. What does not wait any more leaves nothing behind."""

    def __init__(self) -> None:
        self._lines: dict[float, _Line] = {}

    def __len__(self) -> int:
        return sum(map(len, self._lines.values()))

    def add(self, seconds: float, late: Callable[[], None]) -> Deadline:
        """Call `late` in so many seconds, unless the wait is cancelled before."""
        line = self._lines.get(seconds)
        if line is None:
            line = self._lines[seconds] = _Line(seconds, self._lines)
        return line.add(late)


class _Line:
    """The waits of one length, in the order of their ends; it is listed while there are any."""

    def __init__(self, seconds: float, lines: dict[float, _Line]) -> None:
        self._seconds = seconds
        self._lines = lines
        self._waiting: dict[Deadline, None] = {}
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, late: Callable[[], None]) -> Deadline:
        deadline = Deadline(self._loop.time() + self._seconds, late, self)
        self._waiting[deadline] = None
        if self._timer is None:
            self._timer = self._loop.call_at(deadline.when, self._look)
        return deadline

    def remove(self, deadline: Deadline) -> None:
        self._waiting.pop(deadline, None)
        if not self._waiting and self._timer is not None:
            self._timer.cancel()
            self._close()

    def _look(self) -> None:
        """The end of the one that was first when the timer was set."""
        now = self._loop.time()
        while self._waiting:
            first = next(iter(self._waiting))
            if first.when > now:
                self._timer = self._loop.call_at(first.when, self._look)
                return
            del self._waiting[first]
            # On its own, so that one that fails does not keep the others from theirs.
            self._loop.call_soon(first.run_out)
        self._close()

    def _close(self) -> None:
        self._timer = None
        del self._lines[self._seconds]
