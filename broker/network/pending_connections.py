"""Connections whose clients are not known yet: those that shake hands or authenticate.

They count against the limits of connections. At a limit they are closed before all others.
"""

from __future__ import annotations

from typing import Protocol

from tidelog.broker.fairness.connection_limits import Idleness


class PendingConnection(Protocol):
    """A connection that has not become a client's."""

    def evict(self, reason: str, why: str) -> None:
        """Close the connection at once. It calls `PendingConnections.failed`."""
        ...

    def idleness(self) -> Idleness | None:
        """Always some idleness, since it may give way; None when it has ended."""
        ...


class PendingConnections(Protocol):
    """The server, as pending connections use it."""

    def arrived(self, connection: PendingConnection, host: str, *, is_new: bool = True) -> bool:
        """Count a pending connection; False if a limit forbids it.

        `is_new`: no other protocol had the connection before.
        """
        ...

    def passed(self, connection: PendingConnection) -> None:
        """Count it no longer: the next protocol takes over, and arrives in its place."""
        ...

    def failed(self, connection: PendingConnection, reason: str, why: str) -> None:
        """Count it no longer: its connection ends. `reason` is short and for the metrics."""
        ...
