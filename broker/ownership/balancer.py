"""Keeps this broker at its fair share of the cluster's partitions (`assignment`).

A broker that has more than its share gives the rest to those that have less. It looks when brokers
have come or gone, and at intervals. After a fence it waits a session timeout, because the others
open the dead broker's partitions then. Moves go in groups, so that few partitions are on their way
at a time, and the moves of a minute are bounded.

If the counts are within the tolerance, it gives away partitions of coordinators whose clients are
in another zone, one at a time, to brokers there.

A failed group changes nothing: its partitions stay, and the next look plans anew.

While this broker is being drained, it gives away all that it has, and what it is still given. An
operator asked for that, as for `rebalance`: neither the settings nor the moves of a minute hold
them up. The drain is in the metadata log, so it goes on if the asked broker ends.

Only the owner of a partition gives it away (C3). So the broker that an operator asks for a
`rebalance` passes the request on to all others, once. A lost request has moved partitions or
nothing; the operator may repeat it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NoReturn

from tidelog.broker.ownership.partition_giving import PartitionGiving
from tidelog.broker.ownership.partition_moves import MOVES_AT_ONCE_MAX
from tidelog.broker.peers.peers import Peers
from tidelog.broker.peers.rebalances import Rebalanced
from tidelog.broker.peers.requests import PeerUnreachable
from tidelog.broker.settings.settings import BrokerSettings
from tidelog.clock import Clock
from tidelog.concurrency import all_results
from tidelog.coordinator.cluster.log.metadata_log import MetadataLog
from tidelog.coordinator.cluster.membership.assignment import (
    keeps_balance,
    plan_moves,
    plan_zone_moves,
)
from tidelog.coordinator.cluster.records.records import (
    BrokerFenced,
    BrokerRegistered,
    DrainChanged,
    IncarnationRetired,
    Record,
)
from tidelog.coordinator.cluster.state.incarnations import BrokerInfo
from tidelog.coordinator.cluster.state.state import ClusterState
from tidelog.errors import Refused, TidelogError
from tidelog.identifiers import BrokerId, Incarnation, TopicPartition
from tidelog.protocol.error_codes import ErrorCode
from tidelog.storage.object_store import StoreError

logger = logging.getLogger(__name__)

MOVES_A_REQUEST_MAX: Final = 512
"""The moves of one `rebalance`, so that its answer comes in seconds."""
ZONE_MOVES_AT_ONCE_MAX: Final = 1
"""Members of a group must find its coordinator again: few groups at a time."""
MINUTE_SECONDS: Final = 60.0
DRAINING_SECONDS: Final = 1.0
"""How often a draining broker looks whether it was given partitions, or can give more of them."""


class Balancer:
    """Gives this broker's surplus away. `run` is its task."""

    def __init__(
        self,
        metadata: MetadataLog,
        me: Incarnation,
        giving: PartitionGiving,
        clock: Clock,
        settings: Callable[[], BrokerSettings],
        wanted_zones: Callable[[], Mapping[TopicPartition, str]],
    ) -> None:
        """`wanted_zones`: the zones whose clients use this broker's coordinators most."""
        self._metadata = metadata
        self._me = me
        self._giving = giving
        self._clock = clock
        self._settings = settings
        self._wanted_zones = wanted_zones
        self._look_at = clock.monotonic()
        self._news = asyncio.Event()
        self._turn = asyncio.Lock()
        """One plan at a time: the next one needs the moves of the one before."""
        metadata.subscribe(self._follow)

    async def run(self) -> NoReturn:
        """Look and give, until cancelled. Raises WalLost and Fenced."""
        while True:
            await self._until_due()
            self._news.clear()
            given = 0
            try:
                given = await self._give_some()
            except (Refused, StoreError) as error:
                logger.warning("partitions were not given away", extra={"why": str(error)})
            look_at = self._clock.monotonic() + self._pause(given)
            # News that came meanwhile may have set an earlier time; this plan did not know them.
            is_earlier = self._news.is_set() and not given
            self._look_at = min(look_at, self._look_at) if is_earlier else look_at

    async def rebalance(self) -> int:
        """Give away the partitions above the fair share; return how many: 0 when all are given.

        It keeps partitions that are opening or damaged, and those above MOVES_A_REQUEST_MAX. Raises
        Refused and StoreError, after which it may be repeated, and WalLost and Fenced.
        """
        total = 0
        async with self._turn:
            while total < MOVES_A_REQUEST_MAX and (given := await self._give_group(0)):
                total += given
        return total

    @property
    def _is_draining(self) -> bool:
        info = self._metadata.state.brokers.get(self._me.epoch)
        return info is not None and info.draining

    async def _give_some(self) -> int:
        if self._is_draining:
            return await self.rebalance()
        settings = self._settings()
        if not settings.boolean("auto.leader.rebalance.enable"):
            return 0
        tolerance_percent = settings.integer("leader.imbalance.per.broker.percentage")
        async with self._turn:
            return await self._give_group(tolerance_percent) or await self._give_to_zone(
                tolerance_percent
            )

    async def _give_group(self, tolerance_percent: int) -> int:
        moves = plan_moves(
            self._metadata.state,
            self._me.epoch,
            tolerance_percent,
            MOVES_AT_ONCE_MAX,
            self._giving.unmovable,
            self._wanted_zones(),
        )
        return len(await self._giving.give(moves)) if moves else 0

    async def _give_to_zone(self, tolerance_percent: int) -> int:
        wanted = self._wanted_zones()
        moves = plan_zone_moves(
            self._metadata.state,
            self._me.epoch,
            wanted,
            tolerance_percent,
            ZONE_MOVES_AT_ONCE_MAX,
            self._giving.unmovable,
        )
        if not moves:
            return 0
        given = await self._giving.give(
            moves,
            lambda state, place, receiver: keeps_balance(state, place, receiver, tolerance_percent),
        )
        for place in given:
            about = {"partition": str(place), "zone": wanted[place]}
            logger.info("a coordinator moves to the zone of its clients", extra=about)
        return len(given)

    def _pause(self, given: int) -> float:
        if self._is_draining:
            return 0.0 if given else DRAINING_SECONDS
        if not given:
            return self._settings().integer("leader.imbalance.check.interval.seconds")
        return given * MINUTE_SECONDS / self._settings().integer("rebalance.moves.per.minute.max")

    async def _until_due(self) -> None:
        while (seconds := self._look_at - self._clock.monotonic()) > 0:
            self._news.clear()
            try:
                async with asyncio.timeout(seconds):
                    await self._news.wait()
            except TimeoutError:
                pass

    def _follow(self, _: int, records: Sequence[Record]) -> None:
        """Brokers have come or gone: look soon, and wait where partitions are opened."""
        settings = self._metadata.settings
        for record in records:
            match record:
                case BrokerRegistered():
                    pause_ms = settings.heartbeat_interval_ms
                case BrokerFenced() | IncarnationRetired():
                    pause_ms = settings.session_timeout_ms
                case DrainChanged():
                    pause_ms = 0
                case _:
                    continue
            self._look_at = self._clock.monotonic() + pause_ms / 1000
            self._news.set()


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
        """The partitions that each broker gave away. `passes_on`: ask the others too."""
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
