"""The queue of produce requests whose batches decompress to much more than their size. Pure.

A worker needs tens of milliseconds to decompress and examine such a batch, even if the client sent
few bytes. The broker therefore does it in a lane of its own, within two budgets of time. A
connection's budget lets other connections come first. The broker's budget keeps the processor free
for other kinds of requests. Later requests of a connection wait behind such a request.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterable
from typing import Final, Generic, TypeVar

S = TypeVar("S")
C = TypeVar("C", bound=Hashable)

_ALL: Final = 100
"""At 100 percent a budget has no pauses."""


class LargeBatches(Generic[C, S]):
    """`C` is the type of a connection, `S` of a request."""

    def __init__(self, connection_percent: int, broker_percent: int) -> None:
        """The shares of time that one connection, and all of them together, may take."""
        self._connection_percent = connection_percent
        self._broker_percent = broker_percent
        self._lines: dict[C, deque[S]] = {}
        self.connections = self._lines.keys()
        """The connections with requests that wait, or with one under examination."""
        self._next_at: dict[C, float] = {}
        """When a connection's next request may begin, if its budget is spent."""
        self._examined: C | None = None
        """The connection whose request is under examination."""
        self._begins_at = 0.0
        """When the next request of any connection may begin."""

    def __len__(self) -> int:
        return sum(map(len, self._lines.values()))

    def add(self, connection: C, request: S) -> None:
        """Queue the request behind others of its connection."""
        self._lines.setdefault(connection, deque()).append(request)

    def next_connection(self, now: float) -> C | None:
        """The connection to serve next.

        Of the connections that may begin, the one that has waited longest; else the one that may
        begin first.
        """
        waiting = [connection for connection, line in self._lines.items() if line]
        return min(waiting, key=lambda each: max(self._when(each), now), default=None)

    def seconds_until(self, connection: C, now: float) -> float:
        """How long the connection's first request still has to wait."""
        return max(self._when(connection), self._begins_at) - now

    def take(self, connection: C) -> S:
        """Take the connection's first request for examination. Later requests wait."""
        self._examined = connection
        return self._lines[connection].popleft()

    def examined(self, connection: C, seconds: float, now: float) -> Iterable[S]:
        """Charge `seconds` to the budgets; return the requests that waited behind the examined one.

        The returned requests need not have large batches.
        """
        self._examined = None
        self._begins_at = now + _pause(seconds, self._broker_percent)
        self._next_at[connection] = now + _pause(seconds, self._connection_percent)
        self._next_at = {each: at for each, at in self._next_at.items() if at > now}
        return self._lines.pop(connection, ())

    def lost(self, connection: C) -> Iterable[S]:
        """Remove and return a closed connection's requests.

        One that is under examination goes on, and later ones of the connection wait behind it.
        """
        line = self._lines.pop(connection, ())
        if connection == self._examined:
            self._lines[connection] = deque()
        return line

    def drain(self) -> Iterable[S]:
        """Remove and return all requests."""
        drained = [request for line in self._lines.values() for request in line]
        self._lines.clear()
        return drained

    def _when(self, connection: C) -> float:
        return self._next_at.get(connection, 0.0)


def _pause(seconds: float, percent: int) -> float:
    return seconds * (_ALL - percent) / percent
