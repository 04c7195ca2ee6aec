"""Keeps this broker at its fair share of the cluster's partitions (`balance`).

A broker that has more than its share gives the rest to those that have less. It looks when brokers
have come or gone, and at intervals. After a fence it waits a session timeout, because the others
open the dead broker's partitions then. Moves go in groups, so that few partitions are on their way
at a time, and the moves of a minute are bounded.

A failed group changes nothing: its partitions stay, and the next look plans anew.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Final, NoReturn

from tidelog.broker.ownership.partition_giving import PartitionGiving
from tidelog.broker.settings.settings import BrokerSettings
from tidelog.clock import Clock
from tidelog.coordinator.cluster.log.metadata_log import MetadataLog
from tidelog.coordinator.cluster.membership.balance import plan_moves
from tidelog.coordinator.cluster.records.records import (
    BrokerFenced,
    BrokerRegistered,
    IncarnationRetired,
    Record,
)
from tidelog.errors import Refused
from tidelog.identifiers import Incarnation
from tidelog.storage.object_store import StoreError

logger = logging.getLogger(__name__)

MOVES_AT_ONCE_MAX: Final = 64
MINUTE_SECONDS: Final = 60.0


class Balancer:
    """Gives this broker's surplus away. `run` is its task."""

    def __init__(
        self,
        metadata: MetadataLog,
        me: Incarnation,
        giving: PartitionGiving,
        clock: Clock,
        settings: Callable[[], BrokerSettings],
    ) -> None:
        self._metadata = metadata
        self._me = me
        self._giving = giving
        self._clock = clock
        self._settings = settings
        self._look_at = clock.monotonic()
        self._news = asyncio.Event()
        metadata.subscribe(self._follow)

    async def run(self) -> NoReturn:
        """Look and give, until cancelled. Raises WalLost and Fenced."""
        while True:
            await self._until_due()
            given = 0
            try:
                given = await self._give_some()
            except (Refused, StoreError) as error:
                logger.warning("partitions were not given away", extra={"why": str(error)})
            self._look_at = self._clock.monotonic() + self._pause(given)

    async def _give_some(self) -> int:
        settings = self._settings()
        if not settings.boolean("auto.leader.rebalance.enable"):
            return 0
        moves = plan_moves(
            self._metadata.state,
            self._me.epoch,
            settings.integer("leader.imbalance.per.broker.percentage"),
            MOVES_AT_ONCE_MAX,
        )
        return len(await self._giving.give(moves)) if moves else 0

    def _pause(self, given: int) -> float:
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
                case _:
                    continue
            self._look_at = self._clock.monotonic() + pause_ms / 1000
            self._news.set()
