"""Keeps an incarnation's lease, which proves that the broker lives and may answer reads (B3), and
notices when another broker has fenced the incarnation (C9)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NoReturn

from tidelog.clock import Clock
from tidelog.coordinator.cluster.log.leases import Lease, WalProgress, encode_lease, lease_key
from tidelog.coordinator.cluster.log.metadata_log import MetadataLog
from tidelog.coordinator.cluster.membership.lease_watch import Renewal
from tidelog.coordinator.cluster.records.process_identity import ProcessIdentity
from tidelog.coordinator.cluster.records.records import BrokerFenced, LeaseResumed, Record
from tidelog.entropy import Entropy
from tidelog.errors import Fenced, Refused
from tidelog.identifiers import Incarnation
from tidelog.storage.object_store import (
    ObjectStore,
    StoreError,
    StoreOutcomeUnknown,
    failure_behind,
)

logger = logging.getLogger(__name__)


class LeaseKeeper:
    """Renews an incarnation's lease, and tells whether it may still answer reads (rule B3).

    A renewal counts from its start. If it ends too late after the previous one, an observer may
    already have judged the incarnation dead. The incarnation then first writes LeaseResumed into
    the metadata log. An observer fences an incarnation only if it has seen no new entry of it since
    the last read of the lease. So either the observer's entry or LeaseResumed comes first, and the
    log refuses the other one.
    """

    def __init__(
        self,
        store: ObjectStore,
        clock: Clock,
        entropy: Entropy,
        log: MetadataLog,
        incarnation: Incarnation,
        process: ProcessIdentity,
        registered_at: float,
        progress: Callable[[], WalProgress],
    ) -> None:
        """`registered_at`: the monotonic time before the registration was appended.

        No observer can have begun to watch the lease before it. `progress`: of the incarnation's
        WAL.
        """
        self._store = store
        self._clock = clock
        self._log = log
        self._incarnation = incarnation
        self._interval_seconds = log.settings.heartbeat_interval_ms / 1000
        self._trust_seconds = (
            log.settings.session_timeout_ms - log.settings.lease_margin_ms
        ) / 1000
        self._renewed_at = registered_at
        self._progress = progress
        self._renewal: Renewal | None = None
        self.renewed_ms: int | None = None
        """The wall clock's time of the last successful PUT."""
        self._renewing = asyncio.Lock()
        self._lease = Lease(
            broker_id=incarnation.broker_id,
            epoch=incarnation.epoch,
            counter=0,
            writer=entropy.uuid().hex,
            process=process,
        )

    def fresh(self, now: float) -> bool:
        """Whether no observer can have fenced this incarnation for a missing renewal, at monotonic
        `now`.

        While it is not fresh, the broker must give no answer that depends on its ownership.
        """
        return now - self._renewed_at < self._trust_seconds

    @property
    def renewal(self) -> Renewal | None:
        """The last successful PUT of the lease; None before the first."""
        return self._renewal

    async def renew(self) -> None:
        """Renew the lease once. StoreError: perhaps not renewed. Fenced: the incarnation must
        end.

        One renewal at a time: of two PUTs in flight the older one could land last.
        """
        async with self._renewing:
            await self._renew()

    async def _renew(self) -> None:
        started = self._clock.monotonic()
        self._lease = replace(
            self._lease,
            counter=self._lease.counter + 1,
            wal=self._progress(),
            metadata=self._log.state.stamp,
        )
        key = lease_key(self._lease.broker_id)
        try:
            # A new renewal is better than a long series of retries.
            async with asyncio.timeout(self._trust_seconds / 2):
                await self._store.put(key, encode_lease(self._lease))
        except TimeoutError as error:
            last = failure_behind(error)
            why = "the lease's renewal took too long" + ("" if last is None else f": {last.why}")
            raise StoreOutcomeUnknown(key, why) from error
        self._renewal = Renewal(started, self._clock.monotonic())
        self.renewed_ms = self._clock.time_ms()
        if not self.fresh(self._clock.monotonic()):
            epoch = self._incarnation.epoch
            await self._log.append(epoch, lambda _: (LeaseResumed(epoch),))
            logger.warning(
                "the lease was renewed late and is resumed",
                extra={"incarnation": str(self._incarnation)},
            )
        self._renewed_at = started

    async def run(self) -> NoReturn:
        """Renew the lease for ever.

        Errors of the store and a refusing metadata log are logged, and the lease may lose its
        freshness. Other errors are raised.
        """
        while True:
            started = self._clock.monotonic()
            try:
                await self.renew()
            except (Refused, StoreError) as error:
                logger.warning(
                    "the lease could not be renewed",
                    extra={"incarnation": str(self._incarnation), "why": str(error)},
                )
            elapsed = self._clock.monotonic() - started
            # After a slow renewal the next one follows soon, but never without a pause.
            await self._clock.sleep(
                max(self._interval_seconds - elapsed, 0.1 * self._interval_seconds)
            )


class OwnFence:
    """Looks for the fence in the entries that this process reads or appends.

    From that entry on the partitions are about to get another owner. The seal refuses further
    appends, but an idle broker meets no seal. So the broker ends itself. All acknowledged records
    lie below the seal, and are safe.
    """

    def __init__(self, log: MetadataLog, incarnation: Incarnation) -> None:
        """`incarnation` is registered in the log's present state."""
        self._log = log
        self._incarnation = incarnation
        self._found_at: int | None = None
        self._found = asyncio.Event()
        self._unsubscribe = log.subscribe(self.follow, BrokerFenced)
        self.follow(log.state.sequence, ())

    @property
    def is_found(self) -> bool:
        """Whether the incarnation is fenced: the broker may give no more answers as an owner."""
        return self._found_at is not None

    async def run(self) -> NoReturn:
        """Raise Fenced as soon as the incarnation is fenced."""
        await self._found.wait()
        raise Fenced(
            f"incarnation {self._incarnation} was fenced by another broker, as entry"
            f" {self._found_at} of the metadata log says: its lease was not renewed in time, or its"
            " process was taken for dead. It ends; all acknowledged records are safe"
        )

    def disregard(self) -> None:
        """Stop looking: this incarnation is about to fence itself."""
        self._unsubscribe()

    def follow(self, sequence: int, _: Sequence[Record]) -> None:
        """Look for the fence in the state after an entry with a fence was applied."""
        info = self._log.state.brokers.get(self._incarnation.epoch)
        if self._found_at is None and (info is None or info.fenced):
            self._found_at = sequence
            self._found.set()
