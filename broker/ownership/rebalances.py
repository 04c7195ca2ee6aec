"""Balances all brokers on an operator's request, without interval and tolerance.

Only the owner of a partition gives it away (C3). So the broker that is asked passes the request on
to all others, once. A request that is lost changes nothing or has moved partitions; the operator
may repeat it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tidelog.broker.ownership.balancer import Balancer
from tidelog.broker.peers.connections import PeerUnreachable
from tidelog.broker.peers.peers import Peers
from tidelog.broker.peers.rebalances import Rebalanced
from tidelog.concurrency import all_results
from tidelog.coordinator.cluster.state.incarnations import BrokerInfo
from tidelog.coordinator.cluster.state.state import ClusterState
from tidelog.errors import TidelogError
from tidelog.identifiers import BrokerId, Incarnation
from tidelog.protocol.error_codes import ErrorCode


class Rebalances:
    """One broker's part in balancing the cluster at once."""

    def __init__(
        self,
        state: Callable[[], ClusterState],
        me: Incarnation,
        balancer: Balancer,
        peers: Peers,
    ) -> None:
        self._state = state
        self._me = me
        self._balancer = balancer
        self._peers = peers

    async def rebalance(self, *, passes_on: bool) -> Mapping[BrokerId, Rebalanced]:
        """What each broker gave away. `passes_on`: ask the others too."""
        others = [each for each in self._state().live_brokers() if each.incarnation != self._me]
        asked = [self._ask(each) for each in others] if passes_on else []
        own, *theirs = await all_results([self._give(), *asked])
        found = {self._me.broker_id: own}
        if passes_on:
            found |= zip((each.broker_id for each in others), theirs, strict=True)
        return found

    async def _give(self) -> Rebalanced:
        try:
            return Rebalanced(await self._balancer.rebalance())
        except TidelogError as error:
            return Rebalanced(0, ErrorCode.UNKNOWN_SERVER_ERROR, str(error))

    async def _ask(self, other: BrokerInfo) -> Rebalanced:
        try:
            return await self._peers.rebalance(other.epoch, other.broker_id)
        except PeerUnreachable as error:
            return Rebalanced(0, ErrorCode.REQUEST_TIMED_OUT, str(error))
