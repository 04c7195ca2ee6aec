"""Keeps a connection to each watched broker, and investigates when one breaks (rule B2).

The connections are idle: each carries one DescribeCluster request, by which the broker names its
incarnation. A connection that cannot be made is tried again after a pause that doubles. If the
address refuses after a connection broke, the watch investigates; not at the break itself, since a
dying process may close its connections before its listener.

Nothing depends on these connections. Without them the dead are found by their leases.
"""

from __future__ import annotations

import asyncio
import errno
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import NoReturn

from tidelog.client.security import ClientSecurity
from tidelog.client.settings import ClientSettings
from tidelog.client.transport import BrokerConnection
from tidelog.clock import Clock
from tidelog.concurrency import all_results
from tidelog.coordinator.cluster.log.leases import read_durable_end
from tidelog.coordinator.cluster.log.metadata_log import MetadataLog
from tidelog.coordinator.cluster.membership.departures import Departures
from tidelog.coordinator.cluster.membership.lease_keeper import LeaseKeeper
from tidelog.coordinator.cluster.membership.lease_watch import (
    WATCHED_BROKERS,
    Verdict,
    ring_after,
)
from tidelog.coordinator.cluster.membership.lost_connection import (
    REFUSALS_SECONDS_APART,
    ConnectionVerdicts,
    LostConnection,
)
from tidelog.coordinator.cluster.records.records import BrokerFenced, BrokerRegistered, Record
from tidelog.coordinator.cluster.state.incarnations import BrokerInfo
from tidelog.entropy import Entropy
from tidelog.errors import Refused, TidelogError, UnsupportedFormat
from tidelog.identifiers import FIRST_SLOT, Epoch, Incarnation, Slot
from tidelog.network import Network
from tidelog.protocol.frames import new_scratch
from tidelog.protocol.schemas.cluster.metadata import DescribeClusterRequest
from tidelog.storage.object_store import ObjectStore, StoreError

ANSWER_MS_MAX = 1000
"""How long a broker may take to accept a connection, and to answer."""
PAUSE_SECONDS_FIRST = 0.1
PAUSE_SECONDS_MAX = 5.0
"""Pauses between attempts to connect double between these two, with jitter."""

logger = logging.getLogger(__name__)


class ConnectionWatch:
    """One broker's connections to those that it watches."""

    def __init__(
        self,
        network: Network,
        store: ObjectStore,
        clock: Clock,
        entropy: Entropy,
        log: MetadataLog,
        lease: LeaseKeeper,
        me: Incarnation,
        fence: Callable[[Verdict], Awaitable[bool]],
        departures: Departures,
        security: ClientSecurity | None,
    ) -> None:
        """`fence`: appends a verdict's fence, and tells whether it did.

        `departures` learns of each connection that breaks, and that comes back.
        `security`: that of the listener between brokers; None is plain text.
        """
        self._network = network
        self._store = store
        self._clock = clock
        self._entropy = entropy
        self._log = log
        self._lease = lease
        self._me = me
        self._fence = fence
        self._departures = departures
        self._verdicts = ConnectionVerdicts(me)
        self._settings = ClientSettings(
            client_id=f"broker-{me.broker_id}",
            connect_timeout_ms=ANSWER_MS_MAX,
            request_timeout_ms=ANSWER_MS_MAX,
            security=security,
        )
        self._scratch = new_scratch()
        self._open: dict[Epoch, BrokerConnection] = {}
        self._lost: set[Epoch] = set()
        self._watched: frozenset[Epoch] = frozenset()
        self._changed = asyncio.Event()

    @property
    def lost(self) -> frozenset[Epoch]:
        """The incarnations whose connection broke and has not come back."""
        return frozenset(self._lost)

    async def run(self) -> NoReturn:
        """Keep the connections, for ever. Errors of the store and the network are logged."""
        unsubscribe = self._log.subscribe(self._follow, BrokerRegistered, BrokerFenced)
        kept: set[Epoch] = set()
        try:
            async with asyncio.TaskGroup() as tasks:
                while True:
                    self._changed.clear()
                    near = ring_after(self._me, self._log.state)[:WATCHED_BROKERS]
                    self._watched = frozenset([info.epoch for info in near])
                    for epoch in self._open.keys() - self._watched:
                        self._open[epoch].abort("it is watched no longer")
                    for info in near:
                        if info.epoch not in kept:
                            kept.add(info.epoch)
                            tasks.create_task(self._keep(info, kept))
                    await self._changed.wait()
        except BaseExceptionGroup as errors:
            # The first failure caused the others: the task group cancelled those tasks.
            raise errors.exceptions[0] from None
        finally:
            unsubscribe()

    def _follow(self, _: int, __: Sequence[Record]) -> None:
        self._changed.set()

    async def _keep(self, info: BrokerInfo, kept: set[Epoch]) -> None:
        """Connect to an incarnation again and again, as long as it is watched.

        The task ends by itself and is not cancelled: it may be about to append the fence that ends
        the watch.
        """
        pause_seconds = PAUSE_SECONDS_FIRST
        while info.epoch in self._watched:
            attempt = await self._connect(info)
            if attempt.connection is not None:
                self._departures.connected(info.epoch)
                await self._hold(info, attempt.connection)
                pause_seconds = PAUSE_SECONDS_FIRST
                continue
            if attempt.is_refused and info.epoch in self._lost:
                await self._investigate(info, again=pause_seconds > PAUSE_SECONDS_FIRST)
            await self._clock.sleep(pause_seconds * self._entropy.uniform(0.5, 1))
            pause_seconds = min(2 * pause_seconds, PAUSE_SECONDS_MAX)
        self._departures.connected(info.epoch)
        self._lost.discard(info.epoch)
        kept.discard(info.epoch)
        self._changed.set()

    async def _hold(self, info: BrokerInfo, connection: BrokerConnection) -> None:
        """Wait until the connection breaks, or the incarnation is watched no longer."""
        self._open[info.epoch] = connection
        self._lost.discard(info.epoch)
        try:
            if info.epoch in self._watched:
                await connection.lost()
        finally:
            del self._open[info.epoch]
            connection.abort("it is watched no longer")
        self._lost.add(info.epoch)
        self._departures.connection_broke(info.epoch)

    async def _connect(self, info: BrokerInfo) -> _Attempt:
        """Connect to an incarnation, which must name itself."""
        try:
            connection = await BrokerConnection.open(
                self._network, (info.host, info.port), self._settings, self._scratch
            )
        except TidelogError as error:
            cause = error.__cause__
            return _Attempt(isinstance(cause, OSError) and cause.errno == errno.ECONNREFUSED)
        if await self._named(connection) == info.epoch:
            return _Attempt(is_refused=False, connection=connection)
        connection.abort("the address belongs to another broker")
        return _Attempt(is_refused=False)

    async def _named(self, connection: BrokerConnection) -> int | None:
        """The incarnation that answers on a connection; None without an answer."""
        try:
            return (await connection.request(DescribeClusterRequest())).broker_epoch
        except TidelogError:
            return None

    # --- a broken connection ---

    async def _investigate(self, info: BrokerInfo, *, again: bool) -> None:
        """Fence the broker if it is dead; its address has just refused."""
        level = logging.DEBUG if again else logging.WARNING
        found = _Findings([self._clock.monotonic()])
        about = {"incarnation": str(info.incarnation), "address": f"{info.host}:{info.port}"}
        try:
            ended = await asyncio.gather(
                self._try_again(info, found),
                self._read(info, found),
                self._ask_others(info, found),
                self._lease.renew(),
                # An error cancels no renewal: its put could land after that of the next one.
                return_exceptions=True,
            )
            for each in ended:
                if each is not None:
                    raise each
        except (Refused, StoreError, UnsupportedFormat) as error:
            logger.log(
                level,
                "a broker's address refuses; its lease decides",
                extra={**about, "why": str(error)},
            )
            return
        lost = LostConnection(
            info,
            found.refused_at[0],
            tuple(found.refused_at),
            found.last_entry,
            found.durable_end,
            frozenset(found.answered),
        )
        now = self._clock.monotonic()
        verdict = self._verdicts.verdict(self._log.state, lost, self._lease.renewal, now)
        if verdict is None:
            logger.log(
                level,
                "a broker's address refuses; its lease decides",
                extra={**about, "refusals": len(lost.refused_at), "answered": len(lost.answered)},
            )
        elif await self._fence(verdict):
            self._verdicts.fenced(self._clock.monotonic())

    async def _try_again(self, info: BrokerInfo, found: _Findings) -> None:
        due = found.refused_at[0] + REFUSALS_SECONDS_APART
        while (seconds := due - self._clock.monotonic()) > 0:
            await self._clock.sleep(seconds)
        attempt = await self._connect(info)
        if attempt.is_refused:
            found.refused_at.append(self._clock.monotonic())
        elif attempt.connection is not None:
            attempt.connection.abort("it was only tried")

    async def _read(self, info: BrokerInfo, found: _Findings) -> None:
        present = (await self._log.refresh()).brokers.get(info.epoch)
        if present is not None:
            found.last_entry = present.last_entry
            found.durable_end = await read_durable_end(self._store, present)

    async def _ask_others(self, info: BrokerInfo, found: _Findings) -> None:
        async def ask(epoch: Epoch, connection: BrokerConnection) -> None:
            if await self._named(connection) == epoch:
                found.answered.add(epoch)

        others = [each for each in self._open.items() if each[0] != info.epoch]
        await all_results(ask(*each) for each in others)


@dataclass(frozen=True, slots=True)
class _Attempt:
    """The outcome of connecting. A machine refuses if no process listens at the address."""

    is_refused: bool
    connection: BrokerConnection | None = None


@dataclass(slots=True)
class _Findings:
    """See LostConnection."""

    refused_at: list[float]
    last_entry: int = -1
    durable_end: Slot = FIRST_SLOT
    answered: set[Epoch] = field(default_factory=set)
