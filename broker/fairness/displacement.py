"""Chooses the connection that gives way to a new one at the connection limit. Pure.

Only a connection without running requests gives way: first those with few requests so far, then
others, the longest idle first. So a working client keeps its connection, and a new client gets one,
even if others hold many idle connections.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from heapq import nsmallest
from typing import Final, Generic, NamedTuple, Protocol, TypeVar

FOUND_AT_ONCE: Final = 128
PAUSE_SECONDS: Final = 0.1
"""The least time between two scans of all connections, which are slow."""
ESTABLISHED_REQUESTS: Final = 8
"""After this many requests a client is established."""


class Idleness(NamedTuple):
    """A connection's worth to its client; the least gives way first."""

    is_established: bool
    active: float
    """When bytes last arrived or left."""


class MayGiveWay(Protocol):
    """A connection."""

    def idleness(self) -> Idleness | None:
        """The connection's idleness; None while it has running requests."""
        ...


C = TypeVar("C", bound=MayGiveWay)


class Displacement(Generic[C]):
    """The displacements of one listener."""

    def __init__(self, connections: Callable[[], Iterable[C]]) -> None:
        self._connections = connections
        self._found: list[tuple[Idleness, C]] = []
        """The one that gives way next is last."""
        self._looked_at = -PAUSE_SECONDS

    def next(self, now: float) -> C | None:
        """The connection to displace; None if all work, or the last scan is too recent."""
        if not self._found and now - self._looked_at >= PAUSE_SECONDS:
            self._looked_at = now
            idle = [
                (idleness, connection)
                for connection in self._connections()
                if (idleness := connection.idleness()) is not None
            ]
            self._found = nsmallest(FOUND_AT_ONCE, idle, key=lambda each: each[0])[::-1]
        while self._found:
            idleness, connection = self._found.pop()
            if connection.idleness() == idleness:
                return connection
        return None
