"""Produce requests with batches that decompress to much more than they are: what waits, and which
one is next. Pure.

To decompress and examine such a batch takes a worker tens of milliseconds, whatever few bytes the
client has sent. So that takes place in a lane of its own, within two budgets of time: one of a
connection, so that others come first, and one of the broker, so that requests of other kinds find
the processor free. What a connection sends behind such a request waits behind it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterable
from typing import Final, Generic, TypeVar

S = TypeVar("S")
C = TypeVar("C", bound=Hashable)

_ALL: Final = 100
"""A budget of so many percent has no pauses."""


class LargeBatches(Generic[C, S]):
    """`C` stands for a connection, `S` for a request."""

    def __init__(self, connection_percent: int, broker_percent: int) -> None:
        """How much of the time may be taken, by one connection and by all of them."""
        self._connection_percent = connection_percent
        self._broker_percent = broker_percent
        self._lines: dict[C, deque[S]] = {}
        self._next_at: dict[C, float] = {}
        """When a connection's next request may begin, where it may not yet."""
        self._begins_at = 0.0
        """When any may."""

    def __contains__(self, connection: C) -> bool:
        """Whether requests of the connection wait, or one is being examined."""
        return connection in self._lines

    def __len__(self) -> int:
        return sum(map(len, self._lines.values()))

    def add(self, connection: C, request: S) -> None:
        """The request waits, behind others of its connection."""
        self._lines.setdefault(connection, deque()).append(request)

    def next_connection(self, now: float) -> C | None:
        """The connection whose turn is next: of those that may begin, the one that has waited
        longest; else the one that may begin first."""
        waiting = [connection for connection, line in self._lines.items() if line]
        return min(waiting, key=lambda each: max(self._when(each), now), default=None)

    def seconds_until(self, connection: C, now: float) -> float:
        """How long the connection's first request still has to wait."""
        return max(self._when(connection), self._begins_at) - now

    def take(self, connection: C) -> S:
        """The connection's first request, which is examined now. What comes meanwhile waits."""
        return self._lines[connection].popleft()

    def examined(self, connection: C, seconds: float, now: float) -> Iterable[S]:
        """The connection's request took so long; those that waited behind it, which need not be
        large themselves."""
        self._begins_at = now + _pause(seconds, self._broker_percent)
        self._next_at[connection] = now + _pause(seconds, self._connection_percent)
        self._next_at = {each: at for each, at in self._next_at.items() if at > now}
        return self._lines.pop(connection, ())

    def lost(self, connection: C) -> Iterable[S]:
        """The connection is gone: what waited of it does so no more."""
        return self._lines.pop(connection, ())

    def drain(self) -> Iterable[S]:
        """All that waits, which does so no more."""
        lines, self._lines = self._lines, {}
        return [request for line in lines.values() for request in line]

    def _when(self, connection: C) -> float:
        return self._next_at.get(connection, 0.0)


def _pause(seconds: float, percent: int) -> float:
    return seconds * (_ALL - percent) / percent
