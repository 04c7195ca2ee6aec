"""The parts that bring partitions to this broker and take them away, assembled."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tidelog.broker.append.write_path import WritePath
from tidelog.broker.coordinate.coordinators import Coordinators
from tidelog.broker.environment import BrokerEnvironment
from tidelog.broker.membership import Membership
from tidelog.broker.ownership.balancer import Balancer, Rebalances
from tidelog.broker.ownership.partition_giving import PartitionGiving
from tidelog.broker.ownership.partition_moves import PartitionMoves
from tidelog.broker.ownership.partition_recovery import PartitionRecovery
from tidelog.broker.peers.peers import Peers
from tidelog.broker.settings.settings import BrokerSettings
from tidelog.client.security import ClientSecurity
from tidelog.coordinator.cluster.membership.departures import Departures
from tidelog.coordinator.cluster.membership.watcher import Watcher


@dataclass(frozen=True, slots=True)
class Ownership:
    """How partitions come to this broker and leave it."""

    watcher: Watcher
    departures: Departures
    recovery: PartitionRecovery
    giving: PartitionGiving
    balancer: Balancer
    moves: PartitionMoves
    rebalances: Rebalances


def new_ownership(
    environment: BrokerEnvironment,
    settings: Callable[[], BrokerSettings],
    membership: Membership,
    departures: Departures,
    writes: WritePath,
    recovery: PartitionRecovery,
    coordinators: Coordinators,
    peers: Peers,
    security: ClientSecurity | None,
) -> Ownership:
    """The parts of one incarnation. The start has taken over the fenced incarnations it found.

    `security`: that of the connections to other brokers.
    """
    metadata, me = membership.metadata, membership.incarnation
    watcher = Watcher(
        metadata,
        environment.store,
        environment.clock,
        environment.entropy,
        environment.network,
        membership.lease,
        departures,
        me,
        settings().integer("wal.uploads.in.flight.max"),
        membership.progress.uploads,
        security=security,
    )
    giving = PartitionGiving(metadata, writes, coordinators.follow_leadership)
    balancer = Balancer(
        metadata, me, giving, environment.clock, settings, coordinators.wanted_zones
    )
    moves = PartitionMoves(membership.state, me, giving, recovery, peers)
    rebalances = Rebalances(membership.state, me, balancer, peers)
    return Ownership(watcher, departures, recovery, giving, balancer, moves, rebalances)
