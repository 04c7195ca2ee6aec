"""Limits on a broker's connections, and the choice of the one that gives way at a limit. Pure.

Each connection takes a file descriptor of the process. Some are reserved for the store, the HTTP
server and the worker process. So clients that use up all others do not cut the broker off from its
store.

At the limit for all connections a new one displaces another, which must have no running requests:
first those with few requests so far, then others, the longest idle first. So a working client keeps
its connection, and a new client gets one, even if others hold many idle connections.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from heapq import nsmallest
from typing import Final, Generic, NamedTuple, Protocol, TypeVar

from tidelog.broker.settings.settings import BrokerSettings
from tidelog.errors import Refused

RESERVED = "file.descriptors.reserved"
OF_ALL = frozenset({"max.connections", RESERVED})
"""Limits for all connections, regardless of their address."""


class ConnectionLimits:
    """Counts the connections of one listener."""

    def __init__(
        self, settings: Callable[[], BrokerSettings], descriptors: int | None = None
    ) -> None:
        """`settings` returns the current settings. `descriptors`: how many file descriptors the
        process has for connections; None: any number."""
        self._settings = settings
        self._left = descriptors
        self._per_host: dict[str, int] = {}
        self._connections = 0

    def violated(self, host: str) -> str | None:
        """The setting that forbids one more connection from this host; None if all allow it."""
        settings = self._settings()
        overrides = host_limits(settings.text("max.connections.per.ip.overrides"))
        host_max = overrides.get(host, settings.integer("max.connections.per.ip"))
        if self._per_host.get(host, 0) >= host_max:
            return "max.connections.per.ip"
        if self._connections >= settings.integer("max.connections"):
            return "max.connections"
        if self._left is not None and self._connections >= self._left:
            return RESERVED
        return None

    def opened(self, host: str) -> None:
        """Count a new connection."""
        self._connections += 1
        self._per_host[host] = self._per_host.get(host, 0) + 1

    def closed(self, host: str) -> None:
        """Discount a closed connection."""
        self._connections -= 1
        self._per_host[host] -= 1
        if not self._per_host[host]:
            del self._per_host[host]


def descriptors_left(settings: BrokerSettings, descriptors_max: int | None) -> int | None:
    """How many file descriptors are left for connections; None: any number.

    `descriptors_max`: how many the process may have (RLIMIT_NOFILE); None: any number.

    Raises:
        Refused: none is left.
    """
    if descriptors_max is None:
        return None
    reserved = settings.integer(RESERVED)
    if descriptors_max <= reserved:
        raise Refused(
            f"the process may have {descriptors_max} file descriptors, and {RESERVED} keeps"
            f" {reserved} from connections: none is left; raise the limit (ulimit -n,"
            f" LimitNOFILE) or lower {RESERVED}"
        )
    return descriptors_max - reserved


def host_limits(overrides: str) -> Mapping[str, int]:
    """max.connections.per.ip.overrides, by address."""
    limits = {}
    for item in filter(None, overrides.split(",")):
        host, _, limit = item.rpartition(":")
        limits[host] = int(limit)
    return limits


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
