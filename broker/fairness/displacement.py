"""Which connection gives way to a new one where there may be no more of them. Pure.

A connection of which nothing is being served gives way: first those that have asked for little,
then others, each time the one that has been idle for longest. So a client that works keeps its
connection, and one that comes gets one, however many others hold connections for nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from heapq import nsmallest
from typing import Final, Generic, NamedTuple, Protocol, TypeVar

FOUND_AT_ONCE: Final = 128
PAUSE_SECONDS: Final = 0.1
"""Looking at all connections takes time: it happens no more often than this."""
ESTABLISHED_REQUESTS: Final = 8
"""A client has asked for so much when it has found its place and begun to work."""


class Idleness(NamedTuple):
    """How much a connection is worth to its client; the least gives way."""

    is_established: bool
    active: float
    """When bytes last came or went."""


class MayGiveWay(Protocol):
    """A connection."""

    def idleness(self) -> Idleness | None:
        """None while something of it is being served."""
        ...


C = TypeVar("C", bound=MayGiveWay)


class Displacement(Generic[C]):
    """Of one listener."""

    def __init__(self, connections: Callable[[], Iterable[C]]) -> None:
        self._connections = connections
        self._found: list[tuple[Idleness, C]] = []
        """The one that gives way next is last."""
        self._looked_at = -PAUSE_SECONDS

    def next(self, now: float) -> C | None:
        """The connection that gives way now; None where all work, or it is too soon to look."""
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
