"""Watches other brokers, fences the dead, and divides their partitions (rules B2, C4).

The death of this broker at each step:

1. Before `BrokerFenced` is appended: nothing has happened. Another watcher fences.
2. After it: the fenced incarnation waits for a take-over. Each broker begins one in its turn
   (`takeover_turns`).
3. During the take-over: the next broker finds the same end of the WAL (`takeover`).

A lost reply to the append is resolved by the metadata log (rule A1). A watcher that was stalled
between its last look and its append fences a broker only if the log shows no entry of that broker
since. A broker whose lease was late writes an entry before it answers reads again (`lease_keeper`).
So the fenced broker answers no read after its fence.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from typing import NoReturn

from tidelog.client.security import ClientSecurity
from tidelog.clock import Clock
from tidelog.concurrency import all_results, read_all
from tidelog.coordinator.cluster.log.leases import Lease, lease_key, read_lease
from tidelog.coordinator.cluster.log.metadata_log import MetadataLog
from tidelog.coordinator.cluster.membership.assignment import NO_SIZES, spread
from tidelog.coordinator.cluster.membership.connection_watch import ConnectionWatch
from tidelog.coordinator.cluster.membership.departures import Departures
from tidelog.coordinator.cluster.membership.lease_keeper import LeaseKeeper
from tidelog.coordinator.cluster.membership.lease_watch import LeaseWatch, Look, Verdict
from tidelog.coordinator.cluster.membership.service_watch import (
    CannotServe,
    ServiceWatch,
    Uploads,
)
from tidelog.coordinator.cluster.membership.takeover import take_over
from tidelog.coordinator.cluster.membership.takeover_turns import TakeoverTurns
from tidelog.coordinator.cluster.records.records import BrokerFenced, Record
from tidelog.coordinator.cluster.state.incarnations import BrokerInfo
from tidelog.coordinator.cluster.state.state import ClusterState
from tidelog.entropy import Entropy
from tidelog.errors import Refused, UnsupportedFormat
from tidelog.identifiers import Epoch, Incarnation, TopicPartition
from tidelog.network import Network
from tidelog.storage.object_store import ObjectStore, StoreError

READ_HEARTBEATS_MAX = 0.5
"""How long a look waits for a lease."""
READS_AT_ONCE_MAX = 32
"""Leases that a look reads at a time; more than three only if all three watched are silent."""

logger = logging.getLogger(__name__)


class Watcher:
    """One broker's watch over the others."""

    def __init__(
        self,
        log: MetadataLog,
        store: ObjectStore,
        clock: Clock,
        entropy: Entropy,
        network: Network,
        lease: LeaseKeeper,
        departures: Departures,
        me: Incarnation,
        in_flight_max: int,
        uploads: Callable[[], Uploads],
        sizes: Callable[[], Mapping[TopicPartition, int]] = lambda: NO_SIZES,
        security: ClientSecurity | None = None,
    ) -> None:
        """`log` must be followed by another task: looks read no metadata.

        `lease`: the own lease. `in_flight_max`: see `take_over`. `uploads`: those of the own WAL.
        `sizes`: the known bytes of partitions, for their division. `departures` and `security`: see
        ConnectionWatch.
        """
        self._log = log
        self._store = store
        self._clock = clock
        self._entropy = entropy
        self._lease = lease
        self._me = me
        self._in_flight_max = in_flight_max
        self._uploads = uploads
        self._sizes = sizes
        self._heartbeat_seconds = log.settings.heartbeat_interval_ms / 1000
        self._leases = LeaseWatch(me, self._heartbeat_seconds)
        self._connections = ConnectionWatch(
            network,
            store,
            clock,
            entropy,
            log,
            lease,
            me,
            self._fence_by_connection,
            departures,
            security,
        )
        self._service = ServiceWatch(
            log.settings.session_timeout_ms / 1000, self._heartbeat_seconds
        )
        self._turns = TakeoverTurns(me, self._heartbeat_seconds)
        self._turn_may_be = asyncio.Event()

    async def run(self) -> NoReturn:
        """Watch and take over, for ever.

        Errors of the store, refusals and newer formats are logged. Raises other errors, Fenced
        among them, and CannotServe.
        """
        unsubscribe = self._log.subscribe(self._follow, BrokerFenced)
        try:
            await all_results([self._watch(), self._take_over_in_turn(), self._connections.run()])
        finally:
            unsubscribe()
        raise AssertionError("no task returns")

    # --- fences ---

    async def _watch(self) -> None:
        while True:
            look = await self._read_leases()
            self._end_if_it_cannot_serve(look)
            verdict = self._leases.observed(
                self._log.state, look, self._lease.renewal, self._entropy.uniform
            )
            if verdict is not None:
                await self._fence(verdict, "its lease was not renewed")
            await self._until(self._leases.next_read_at(look))

    def _end_if_it_cannot_serve(self, look: Look) -> None:
        if self._service.cannot_serve(look, self._uploads(), self._lease.renewal):
            raise CannotServe(
                f"incarnation {self._me} ends itself: for a session timeout none of its uploads to"
                " the WAL has succeeded, although its lease is renewed and the WALs of other"
                " brokers grow. Others take its partitions over; all acknowledged records are safe"
            )

    async def _read_leases(self) -> Look:
        asked_at = self._clock.monotonic()
        watched = self._leases.watched(self._log.state)
        read = await read_all(self._read, watched, asyncio.Semaphore(READS_AT_ONCE_MAX))
        leases = {epoch: lease for found in read for epoch, lease in found.items()}
        return Look(asked_at, self._clock.monotonic(), leases)

    async def _read(self, info: BrokerInfo) -> Mapping[Epoch, Lease | None]:
        """The lease by epoch; nothing if it could not be read in time."""
        try:
            async with asyncio.timeout(READ_HEARTBEATS_MAX * self._heartbeat_seconds):
                return {info.epoch: await read_lease(self._store, info.broker_id)}
        except (TimeoutError, StoreError, UnsupportedFormat) as error:
            logger.warning(
                "a broker's lease could not be read; it does not count as silent",
                extra={"incarnation": str(info.incarnation), "why": str(error)},
            )
            return {}

    async def _fence_by_connection(self, verdict: Verdict) -> bool:
        return await self._fence(verdict, "its connection broke and its address refuses")

    async def _fence(self, verdict: Verdict, why: str) -> bool:
        """Append the fence; whether it was appended."""
        dead = verdict.dead
        about = {
            "incarnation": str(dead.incarnation),
            "held_by": str(dead.process),
            "address": f"{dead.host}:{dead.port}",
            "lease": lease_key(dead.broker_id),
            "session_timeout_ms": dead.session_timeout_ms,
            "judged": why,
        }
        fences: Sequence[BrokerFenced] = ()

        def build(state: ClusterState) -> Sequence[BrokerFenced]:
            # The last call is the one whose records were appended.
            nonlocal fences
            fences = verdict.records(state)
            return fences

        try:
            await self._log.append(self._me.epoch, build)
        except (Refused, StoreError) as error:
            logger.warning(
                "a broker that looks dead could not be fenced", extra={**about, "why": str(error)}
            )
            return False
        if not fences:
            return False
        logger.warning("a dead broker is fenced", extra=about)
        self._turns.fenced(dead.epoch, self._clock.monotonic())
        self._turn_may_be.set()
        return True

    # --- take-overs ---

    def _follow(self, _: int, __: Sequence[Record]) -> None:
        self._turn_may_be.set()

    async def _take_over_in_turn(self) -> None:
        try:
            async with asyncio.TaskGroup() as tasks:
                while True:
                    self._turn_may_be.clear()
                    now, uniform = self._clock.monotonic(), self._entropy.uniform
                    for dead in self._turns.begin(self._log.state, now, uniform):
                        tasks.create_task(self._take_over_unless_refused(dead))
                    seconds = self._turns.next_at() - now
                    try:
                        async with asyncio.timeout(seconds if math.isfinite(seconds) else None):
                            await self._turn_may_be.wait()
                    except TimeoutError:
                        pass
        except BaseExceptionGroup as errors:
            # The first failure caused the others: the task group cancelled those tasks.
            raise errors.exceptions[0] from None

    async def take_over(self, dead: Incarnation) -> None:
        """Divide a fenced incarnation's partitions now, whatever its turn.

        Raises StoreError, after which the turns go on, and the errors of `take_over`.
        """
        sizes = self._sizes()

        def assign(state: ClusterState, dead: Epoch) -> Mapping[TopicPartition, Epoch]:
            return spread(state, dead, sizes, self._leases.doubtful | self._connections.lost)

        await take_over(
            self._log,
            self._store,
            self._clock,
            self._entropy,
            self._me,
            dead,
            self._in_flight_max,
            assign,
        )

    async def _take_over_unless_refused(self, dead: Incarnation) -> None:
        try:
            await self.take_over(dead)
        except (Refused, StoreError, UnsupportedFormat) as error:
            logger.warning(
                "a fenced broker's partitions could not be taken over; the next attempt follows",
                extra={"incarnation": str(dead), "why": str(error)},
            )
            self._turns.failed(dead.epoch, self._clock.monotonic(), self._entropy.uniform)
            self._turn_may_be.set()

    async def _until(self, due: float) -> None:
        while (seconds := due - self._clock.monotonic()) > 0:
            await self._clock.sleep(seconds)
