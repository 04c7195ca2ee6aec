"""A TLS handshake as the server sees it: it counts as a connection and has a deadline."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from typing import Final

from tidelog.broker.fairness.connection_limits import Idleness
from tidelog.broker.network.pending_connections import PendingConnections
from tidelog.clock import Clock

FAILED: Final = "tls_handshake"


class TlsHandshake:
    """See tidelog.socket_listener.Handshake."""

    def __init__(
        self,
        pending: PendingConnections,
        context: ssl.SSLContext,
        seconds_max: float,
        clock: Clock,
        successor: Callable[[TlsHandshake], asyncio.BaseProtocol],
    ) -> None:
        """`successor` makes the connection's protocol, which calls `done` when it is connected."""
        self.context = context
        self.seconds_max = seconds_max
        self._pending = pending
        self._arrived = clock.monotonic()
        self._successor = successor
        self._end: Callable[[], None] | None = None

    def begun(self, end: Callable[[], None]) -> None:
        """The handshake has begun; `end` ends it and the connection."""
        self._end = end

    def protocol(self) -> asyncio.BaseProtocol:
        """The protocol behind the handshake."""
        return self._successor(self)

    def done(self) -> None:
        """The handshake has ended well: the protocol arrives in its place."""
        self._end = None
        self._pending.passed(self)

    def failed(self, error: Exception) -> None:
        """The client did not shake hands as it must, or left."""
        if self._end is not None:
            self._end = None
            self._pending.failed(self, FAILED, _reason(error))

    def idleness(self) -> Idleness | None:
        """The handshake's age; None when it has ended."""
        if self._end is None:
            return None
        return Idleness(is_established=False, active=self._arrived)

    def evict(self, reason: str, why: str) -> None:
        """Close the connection at once."""
        end, self._end = self._end, None
        if end is not None:
            self._pending.failed(self, reason, why)
            end()


def _reason(error: Exception) -> str:
    if isinstance(error, ssl.SSLError) and error.reason is not None:
        return error.reason.replace("_", " ").lower()
    return str(error) or type(error).__name__
