"""Registration: a process becomes the only live incarnation of its id (B1)."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import count

from tidelog.clock import Clock
from tidelog.concurrency import all_results
from tidelog.coordinator.cluster.log.leases import (
    LeaseObservation,
    lease_key,
    read_durable_end,
    read_lease,
)
from tidelog.coordinator.cluster.log.metadata_log import MetadataLog
from tidelog.coordinator.cluster.records.process_identity import ProcessIdentity
from tidelog.coordinator.cluster.records.records import (
    BROKER_VERSION,
    LISTENERS_VERSION,
    SHARING_VERSION,
    BrokerFenced,
    BrokerRegistered,
    Endpoint,
    ListenersRegistered,
    Record,
)
from tidelog.coordinator.cluster.state.features import FeatureRefused, lacking, named
from tidelog.coordinator.cluster.state.incarnations import BrokerInfo
from tidelog.coordinator.cluster.state.state import ClusterState
from tidelog.errors import Refused
from tidelog.identifiers import BrokerId, Epoch, Incarnation, Slot
from tidelog.storage.object_store import ObjectStore

SIGNS_OF_LIFE_MIN = 2
"""One sign may be the last request of a process that has died since."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Registered:
    """A registration's result.

    `superseded`: the id's earlier incarnations that wait for a takeover. `started_at`: the
    monotonic time before the registration, from which the lease counts.
    """

    incarnation: Incarnation
    superseded: tuple[Incarnation, ...]
    started_at: float


class BrokerIdInUse(Refused):
    """Another process with this broker id lives. Nothing was changed."""

    def __init__(self, info: BrokerInfo) -> None:
        super().__init__(f"broker id {info.broker_id} is in use by {_holder(info)}")
        self.info = info


class BucketInUse(Refused):
    """A broker of an earlier release lives, which cannot share the bucket. Nothing was changed."""

    def __init__(self, info: BrokerInfo) -> None:
        super().__init__(
            "the bucket has a broker of an earlier release, which cannot share it: broker id"
            f" {info.broker_id}, by {_holder(info)}"
        )
        self.info = info


class _Overtaken(Refused):
    """A judged incarnation has changed since the judgement."""


async def register(
    log: MetadataLog,
    store: ObjectStore,
    clock: Clock,
    wanted_id: BrokerId | None,
    address: tuple[str, int],
    process: ProcessIdentity,
    is_running: Callable[[ProcessIdentity], bool | None],
    rack: str | None = None,
    endpoints: tuple[Endpoint, ...] = (),
) -> Registered:
    """Register `process` as `wanted_id`, reached at `address`, in the zone `rack`.

    `endpoints`: all its listeners, unless it has only PLAINTEXT. Brokers use that at `address`.

    Without an id it takes the lowest id without a living incarnation.

    An unfenced incarnation of the id must first prove dead. That is at once if its process can be
    looked up and is gone, else by a lease that does not change for its session timeout. The entry
    that registers the newcomer fences it. So of two newcomers one wins; the other then finds the
    winner alive.

    The same holds for brokers of earlier releases, which serve a bucket alone, whatever their ids.
    They are fenced right after the registration, as are brokers of other ids whose processes have
    certainly ended. If the newcomer dies in between, the next one judges them again.

    Raises BrokerIdInUse, BucketInUse, StoreError, and the errors of MetadataLog.append.
    """

    def has_ended(info: BrokerInfo) -> bool:
        return is_running(info.process) is False

    while True:
        live = (await log.refresh()).live_brokers()
        broker_id = wanted_id
        if broker_id is None:
            broker_id = _lowest_free(each for each in live if not has_ended(each))
        known = [each for each in live if _must_end(each, broker_id) or has_ended(each)]
        dead = await _proven_dead(log, store, clock, broker_id, known, is_running)
        started_at = clock.monotonic()
        change = _Registration(broker_id, address, process, rack, endpoints, log, dead)
        try:
            epoch = Epoch(await log.append(None, change))
            await _fence(log, epoch, broker_id, dead)
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
class _Dead:
    """An incarnation in the state in which it was judged dead."""

    info: BrokerInfo
    durable_end: Slot
    """The WAL's durable end by its lease, which the newcomer's lease may overwrite."""


@dataclass(frozen=True, slots=True)
class _Registration:
    """The change: valid while each rival is a judged one and has written no entry since."""

    broker_id: BrokerId
    address: tuple[str, int]
    process: ProcessIdentity
    rack: str | None
    endpoints: tuple[Endpoint, ...]
    log: MetadataLog
    dead: Mapping[Epoch, _Dead]

    def __call__(self, state: ClusterState) -> tuple[Record, ...]:
        if state.level > BROKER_VERSION:
            raise FeatureRefused(
                f"the cluster was raised to level {state.level}, and this Tidelog has"
                f" {BROKER_VERSION}. Nothing was changed: use a newer Tidelog"
            )
        fences = []
        for present in state.live_brokers():
            if not _must_end(present, self.broker_id):
                continue
            judged = self.dead.get(present.epoch)
            if judged is None:
                raise _Overtaken(f"incarnation {present.incarnation} has registered meanwhile")
            if present.last_entry != judged.info.last_entry:
                raise _Overtaken(
                    f"incarnation {present.incarnation} has written to the metadata log"
                )
            if present.broker_id == self.broker_id:
                fences.append(BrokerFenced(present.epoch, judged.durable_end))
        host, port = self.address
        registered = BrokerRegistered(
            broker_id=self.broker_id,
            host=host,
            port=port,
            process=self.process,
            session_timeout_ms=self.log.settings.session_timeout_ms,
            rack=self.rack,
            version=BROKER_VERSION,
        )
        if not self.endpoints:
            return (*fences, registered)
        self._check_listeners_known(state)
        return (*fences, registered, ListenersRegistered(self.endpoints))

    def _check_listeners_known(self, state: ClusterState) -> None:
        """Raise Refused if a live broker's release does not know listeners."""
        old = [info for info in lacking(state, LISTENERS_VERSION) if info.epoch not in self.dead]
        if old:
            raise Refused(
                f"these brokers are of an earlier release, which knows no listeners but PLAINTEXT:"
                f" {named(old)}. Nothing was changed. Upgrade all brokers first"
            )


def _lowest_free(live: Iterable[BrokerInfo]) -> BrokerId:
    taken = {info.broker_id for info in live}
    return next(BrokerId(number) for number in count() if number not in taken)


def _must_end(info: BrokerInfo, broker_id: BrokerId) -> bool:
    """Whether this live incarnation must be dead before a newcomer with this id registers."""
    return info.broker_id == broker_id or info.version < SHARING_VERSION


async def _proven_dead(
    log: MetadataLog,
    store: ObjectStore,
    clock: Clock,
    broker_id: BrokerId,
    rivals: Iterable[BrokerInfo],
    is_running: Callable[[ProcessIdentity], bool | None],
) -> dict[Epoch, _Dead]:
    """The rivals that are dead and not yet fenced.

    Raises BrokerIdInUse or BucketInUse if one proves alive.
    """

    async def judge(info: BrokerInfo) -> _Dead | None:
        found: BrokerInfo | None = info
        if is_running(info.process) is not False:
            found = await _wait_for_death(log, store, clock, broker_id, info)
        return None if found is None else _Dead(found, await read_durable_end(store, found))

    judged = await all_results(judge(info) for info in rivals)
    return {each.info.epoch: each for each in judged if each is not None}


async def _fence(
    log: MetadataLog, me: Epoch, broker_id: BrokerId, dead: Mapping[Epoch, _Dead]
) -> None:
    """Fence the dead incarnations of other ids.

    One that has written an entry since its judgement lives, and may answer reads. If it cannot
    share the bucket, the newcomer fences itself and this raises _Overtaken.
    """

    def build(state: ClusterState) -> list[BrokerFenced]:
        others = [each for epoch, each in dead.items() if state.is_live(epoch)]
        unchanged = [
            each
            for each in others
            if state.brokers[each.info.epoch].last_entry == each.info.last_entry
        ]
        if any(_must_end(each.info, broker_id) for each in others if each not in unchanged):
            return [BrokerFenced(me)]
        return [BrokerFenced(each.info.epoch, each.durable_end) for each in unchanged]

    if build(log.state):
        await log.append(me, build)
    if not log.state.is_live(me):
        raise _Overtaken("a broker that was taken for dead has written to the metadata log")


async def _wait_for_death(
    log: MetadataLog, store: ObjectStore, clock: Clock, broker_id: BrokerId, info: BrokerInfo
) -> BrokerInfo | None:
    """The incarnation once its lease has not changed for its session timeout; None if it gets
    fenced.

    Raises BrokerIdInUse or BucketInUse if it proves alive.
    """
    timeout_seconds = info.session_timeout_ms / 1000
    logger.warning(
        "another process is registered as a broker; waiting until its lease has not changed for its"
        " session timeout",
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
        observation = observation.observed(lease, present.last_entry, asked_at, clock.monotonic())
        if observation.signs_of_life >= SIGNS_OF_LIFE_MIN:
            if present.broker_id == broker_id:
                raise BrokerIdInUse(present)
            raise BucketInUse(present)
        if observation.unchanged_seconds >= timeout_seconds:
            return present
        await clock.sleep(log.settings.heartbeat_interval_ms / 2000)


def _holder(info: BrokerInfo) -> str:
    return (
        f"{info.process}, which serves {info.host}:{info.port} as incarnation {info.incarnation}"
        " and renews its lease. Nothing was changed. Stop that process first"
    )
