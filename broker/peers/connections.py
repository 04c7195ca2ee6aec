"""Connections to other brokers, by incarnation."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from tidelog.client.connections import Connections
from tidelog.client.settings import ClientSettings
from tidelog.coordinator.cluster.state.state import ClusterState
from tidelog.errors import TidelogError, Unreachable
from tidelog.identifiers import Epoch
from tidelog.network import Network
from tidelog.protocol.message import Request, Response

R = TypeVar("R", bound=Response)


class PeerUnreachable(Unreachable):
    """Another broker gave no answer. The request may have taken effect there."""


class PeerConnections:
    """Connections to live incarnations, opened on demand: one for each purpose.

    A broker answers a connection's requests in order. With one connection for all purposes, an
    answer that waits for a PUT would hold up those that do not.

    The address may meanwhile belong to a later incarnation. A request names no incarnation, so
    that one answers for what it leads itself. An answer of an earlier incarnation can only come
    over its own connection, which `drop` closes.
    """

    def __init__(
        self, network: Network, state: Callable[[], ClusterState], settings: ClientSettings
    ) -> None:
        self._state = state
        self._connections: Connections[tuple[Epoch, str]] = Connections(network, settings)

    async def request(self, peer: Epoch, purpose: str, message: Request[R]) -> R:
        """Ask an incarnation once. Raises PeerUnreachable."""
        info = self._state().brokers.get(peer)
        if info is None or info.fenced:
            raise PeerUnreachable(f"broker incarnation {peer} is fenced")
        try:
            connection = await self._connections.get((peer, purpose), (info.host, info.port))
            return await connection.request(message)
        except TidelogError as error:
            raise PeerUnreachable(f"broker {info.broker_id}: {error}") from error

    def drop(self, peer: Epoch, purpose: str) -> None:
        """Close the connection to an incarnation that has ended."""
        self._connections.abort((peer, purpose), "the broker's incarnation has ended")

    async def close(self) -> None:
        """Close all connections. Unanswered requests fail."""
        await self._connections.close()
