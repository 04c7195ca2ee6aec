"""Registration: how a process becomes the one live incarnation of its broker id (rule B1)."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

from tidelog.clock import Clock
from tidelog.coordinator.cluster.incarnations import BrokerInfo
from tidelog.coordinator.cluster.leases import (
    LeaseObservation,
    lease_key,
    read_lease,
    told_durable,
)
from tidelog.coordinator.cluster.metadata_log import MetadataLog
from tidelog.coordinator.cluster.process_identity import ProcessIdentity
from tidelog.coordinator.cluster.records import BrokerFenced, BrokerRegistered, Record
from tidelog.coordinator.cluster.state import ClusterState
from tidelog.errors import Refused
from tidelog.identifiers import FIRST_SLOT, BrokerId, Epoch, Incarnation, Slot
from tidelog.storage.object_store import ObjectStore

SIGNS_OF_LIFE_MIN = 2
"""One may be the last request of a process that has died since."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Registered:
    """`superseded` are the earlier incarnations of the id that wait to be taken over. `started_at`
    is the monotonic time before the registration, from which the lease counts."""

    incarnation: Incarnation
    superseded: tuple[Incarnation, ...]
    started_at: float


class BrokerIdInUse(Refused):
    """Another process with this broker id lives. Nothing was changed."""

    def __init__(self, info: BrokerInfo) -> None:
        super().__init__(
            f"broker id {info.broker_id} is in use by {info.process}, which serves"
            f" {info.host}:{info.port} as incarnation {info.incarnation} and renews its lease."
            " Nothing was changed. Stop that process, or start this one with another broker id"
        )
        self.info = info


class _Overtaken(Refused):
    """The incarnation that was judged is no longer as it was judged."""


async def register(
    log: MetadataLog,
    store: ObjectStore,
    clock: Clock,
    broker_id: BrokerId,
    address: tuple[str, int],
    process: ProcessIdentity,
    is_running: Callable[[ProcessIdentity], bool | None],
) -> Registered:
    """Register `process` as `broker_id`, reached by clients at `address`.

    An incarnation of the id that is not fenced is first shown to be dead, at once where its process
    can be looked up and is gone, else by a lease that does not change for its session timeout. It
    is fenced in the entry that registers the newcomer, so of two newcomers one wins; the other then
    finds the winner alive. BrokerIdInUse, StoreError, and what MetadataLog.append raises.
    """
    while True:
        predecessor = (await log.refresh()).broker(broker_id)
        if predecessor is not None and is_running(predecessor.process) is not False:
            predecessor = await _wait_for_death(log, store, clock, predecessor)
        told = FIRST_SLOT
        if predecessor is not None:
            # The newcomer's lease will take the place of its predecessor's.
            told = await told_durable(store, predecessor)
        started_at = clock.monotonic()
        records = _Registration(broker_id, address, process, log, predecessor, told)
        try:
            epoch = Epoch(await log.append(None, records))
        except _Overtaken as overtaken:
            logger.info("the broker's registration starts again", extra={"why": str(overtaken)})
            continue
        superseded = [
            info.incarnation
            for info in log.state.fenced_not_retired()
            if info.broker_id == broker_id
        ]
        return Registered(Incarnation(broker_id, epoch), tuple(superseded), started_at)


@dataclass(frozen=True, slots=True)
class _Registration:
    """The change: valid as long as the predecessor is the one that was judged, and was silent."""

    broker_id: BrokerId
    address: tuple[str, int]
    process: ProcessIdentity
    log: MetadataLog
    predecessor: BrokerInfo | None
    durable_end: Slot
    """Of the predecessor's WAL, as its lease tells."""

    def __call__(self, state: ClusterState) -> tuple[Record, ...]:
        host, port = self.address
        registered = BrokerRegistered(
            broker_id=self.broker_id,
            host=host,
            port=port,
            process=self.process,
            session_timeout_ms=self.log.settings.session_timeout_ms,
        )
        present = state.broker(self.broker_id)
        if present is None:
            return (registered,)
        if self.predecessor is None or present.epoch != self.predecessor.epoch:
            raise _Overtaken(f"incarnation {present.incarnation} has registered meanwhile")
        if present.last_entry != self.predecessor.last_entry:
            raise _Overtaken(f"incarnation {present.incarnation} has written to the metadata log")
        return (BrokerFenced(present.epoch, self.durable_end), registered)


async def _wait_for_death(
    log: MetadataLog, store: ObjectStore, clock: Clock, info: BrokerInfo
) -> BrokerInfo | None:
    """The incarnation as it was when its lease had not changed for its session timeout; None if
    somebody has fenced it meanwhile. BrokerIdInUse if it shows that it lives."""
    timeout_seconds = info.session_timeout_ms / 1000
    logger.warning(
        "the broker id is registered by another process; waiting until its lease has not changed"
        " for its session timeout",
        extra={
            "incarnation": str(info.incarnation),
            "held_by": str(info.process),
            "address": f"{info.host}:{info.port}",
            "lease": lease_key(info.broker_id),
            "session_timeout_ms": info.session_timeout_ms,
        },
    )
    observation = LeaseObservation(info.epoch)
    while True:
        asked_at = clock.monotonic()
        present = (await log.refresh()).brokers.get(info.epoch)
        if present is None or present.fenced:
            return None
        lease = await read_lease(store, info.broker_id)
        observation = observation.saw(lease, present.last_entry, asked_at, clock.monotonic())
        if observation.signs_of_life >= SIGNS_OF_LIFE_MIN:
            raise BrokerIdInUse(present)
        if observation.unchanged_seconds >= timeout_seconds:
            return present
        await clock.sleep(log.settings.heartbeat_interval_ms / 2000)
