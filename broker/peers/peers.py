"""The requests of this broker to the others."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from tidelog.broker.peers.enlistments import Enlisted, Enlistment, EnlistmentForm
from tidelog.broker.peers.hints import HintForm
from tidelog.broker.peers.markers import MarkerCodes, MarkerForm, RemoteMarkers
from tidelog.broker.peers.metrics import PeerMetrics
from tidelog.broker.peers.moves import Move, MoveForm, MoveOutcome
from tidelog.broker.peers.reassignments import MoveUnderWay, ReassignmentForm
from tidelog.broker.peers.rebalances import Rebalanced, RebalanceForm
from tidelog.broker.peers.requests import PeerConnections, PeerRequests
from tidelog.broker.settings.settings import BrokerSettings
from tidelog.client.security import ClientSecurity
from tidelog.client.settings import ClientSettings
from tidelog.clock import Clock
from tidelog.coordinator.cluster.state.state import ClusterState
from tidelog.entropy import Entropy
from tidelog.identifiers import BrokerId, Epoch, Incarnation, TopicPartition
from tidelog.network import Network


class Peers:
    """Requests to the other live brokers. Each fails with PeerUnreachable if no answer comes."""

    def __init__(
        self,
        network: Network,
        clock: Clock,
        entropy: Entropy,
        state: Callable[[], ClusterState],
        incarnation: Incarnation,
        settings: BrokerSettings,
        security: ClientSecurity | None = None,
    ) -> None:
        """`security`: that of the listener between brokers; None is plain text."""
        self._state = state
        self._own = incarnation.epoch
        self.metrics = PeerMetrics()
        self._connections = PeerConnections(
            network, state, peer_settings(incarnation, settings, security)
        )
        self._enlistments: PeerRequests[Enlistment, Enlisted] = PeerRequests(
            self._connections, clock, entropy, EnlistmentForm(), self.metrics
        )
        self._markers: PeerRequests[RemoteMarkers, MarkerCodes] = PeerRequests(
            self._connections, clock, entropy, MarkerForm(), self.metrics
        )
        self._moves: PeerRequests[Move, MoveOutcome] = PeerRequests(
            self._connections, clock, entropy, MoveForm(), self.metrics
        )
        self._reassignments: PeerRequests[None, tuple[MoveUnderWay, ...]] = PeerRequests(
            self._connections, clock, entropy, ReassignmentForm(), self.metrics, in_flight_max=1
        )
        self._rebalances: PeerRequests[BrokerId, Rebalanced] = PeerRequests(
            self._connections, clock, entropy, RebalanceForm(), self.metrics, in_flight_max=1
        )
        self._hints: PeerRequests[int, None] = PeerRequests(
            self._connections, clock, entropy, HintForm(), self.metrics, in_flight_max=1
        )
        self._all = (
            self._enlistments,
            self._markers,
            self._moves,
            self._reassignments,
            self._rebalances,
            self._hints,
        )

    def leading(self, place: TopicPartition) -> Epoch | None:
        """The other live broker that leads a partition by this broker's view, if there is one."""
        state = self._state()
        tenure = state.leader(place)
        if tenure is None or tenure.incarnation.epoch == self._own:
            return None
        return tenure.incarnation.epoch if state.is_live(tenure.incarnation.epoch) else None

    def enlist(self, peer: Epoch, enlistment: Enlistment) -> asyncio.Future[Enlisted]:
        """Ask a transaction's coordinator."""
        return self._enlistments.ask(peer, enlistment)

    def mark(self, peer: Epoch, markers: RemoteMarkers) -> asyncio.Future[MarkerCodes]:
        """Ask a leader to write markers."""
        return self._markers.ask(peer, markers)

    def move(self, peer: Epoch, move: Move) -> asyncio.Future[MoveOutcome]:
        """Ask the owner of a partition to give it away."""
        return self._moves.ask(peer, move)

    def moves_under_way(self, peer: Epoch) -> asyncio.Future[tuple[MoveUnderWay, ...]]:
        """Ask a broker for the moves in which it takes part."""
        return self._reassignments.ask(peer, None)

    def rebalance(self, peer: Epoch, broker_id: BrokerId) -> asyncio.Future[Rebalanced]:
        """Ask a broker to give away the partitions above its fair share."""
        return self._rebalances.ask(peer, broker_id)

    def follow(self, sequence: int) -> None:
        """Follow an entry of the metadata log that the state has applied.

        Drops the incarnations that have ended. Hints the entry to all others if it is this
        broker's own.
        """
        state = self._state()
        for requests in self._all:
            for peer in requests.peers:
                if not state.is_live(peer):
                    requests.drop(peer)
        own = state.brokers.get(self._own)
        if own is not None and own.last_entry == sequence:
            for info in state.live_brokers():
                if info.epoch != self._own:
                    self._hints.ask(info.epoch, sequence)

    async def close(self) -> None:
        """Fail all requests and close the connections."""
        for requests in self._all:
            await requests.close()
        await self._connections.close()


def peer_settings(
    incarnation: Incarnation, settings: BrokerSettings, security: ClientSecurity | None
) -> ClientSettings:
    """The broker's part as a client of other brokers."""
    return ClientSettings(
        client_id=f"broker-{incarnation.broker_id}",
        connect_timeout_ms=settings.integer("socket.connection.setup.timeout.ms"),
        request_timeout_ms=settings.integer("request.timeout.ms"),
        security=security,
    )
