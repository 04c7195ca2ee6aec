"""A rule on fences: no broker is judged dead across an outage of the store (B2).

While all PUTs are refused, no lease can be renewed. A watcher's count restarts when its own lease
is renewed again. So for a session timeout after the outage no watcher fences a broker that renewed
its lease until the outage began, and whose process still runs.

A fence that was sent before the outage does not count, nor one of a process that the simulation
made others take for dead.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from tests.simulation.cluster import Environment
from tests.simulation.world.store import PutOutage
from tidelog.broker.running import RunningBroker
from tidelog.coordinator.cluster.log.leases import lease_key
from tidelog.coordinator.cluster.log.prefix import LOG_PREFIX, LOG_SUFFIX
from tidelog.coordinator.cluster.membership.lease_watch import GAP_HEARTBEATS_MAX
from tidelog.coordinator.cluster.records.records import BrokerFenced, BrokerRegistered, Record
from tidelog.coordinator.cluster.records.settings import ClusterSettings
from tidelog.coordinator.cluster.state.state import ClusterState
from tidelog.identifiers import BrokerId, Epoch
from tidelog.storage.sequence import NUMBER_DIGITS

FRESH_HEARTBEATS = 1.5
"""A lease that was renewed this recently before the outage was well."""
_LOOK_HEARTBEATS = 1.5
"""A watcher looks again within this many heartbeats, and a little more."""


class WronglyFenced(NamedTuple):
    """A fence against the rule."""

    epoch: Epoch
    broker_id: BrokerId
    pid: int


class OutageWatch:
    """Judges entries of the metadata log by the store's outages."""

    def __init__(self, settings: ClusterSettings) -> None:
        self._heartbeat_seconds = settings.heartbeat_interval_ms / 1000
        self._session_seconds = settings.session_timeout_ms / 1000

    def fenced(
        self,
        sequence: int,
        records: Sequence[Record],
        state: ClusterState,
        outages: Sequence[PutOutage],
        sent_at: float,
    ) -> list[WronglyFenced]:
        """The fences of an entry that no watcher may send then. `state` has the entry."""
        newcomers = {each.broker_id for each in records if isinstance(each, BrokerRegistered)}
        found = []
        for record in records:
            info = state.brokers.get(record.epoch) if isinstance(record, BrokerFenced) else None
            # A broker that ends fences itself, and a newcomer the one before it with its id.
            if info is None or info.last_entry == sequence or info.broker_id in newcomers:
                continue
            if any(self._was_renewed_until(each, info.broker_id, sent_at) for each in outages):
                found.append(WronglyFenced(info.epoch, info.broker_id, info.process.pid))
        return found

    def _was_renewed_until(self, outage: PutOutage, broker_id: BrokerId, sent_at: float) -> bool:
        """Whether the outage explains the silence of a broker, and ended too recently for a
        fence."""
        lasts_seconds = (GAP_HEARTBEATS_MAX + _LOOK_HEARTBEATS) * self._heartbeat_seconds
        if outage.ends_at - outage.began_at < lasts_seconds:
            return False
        renewed_at = outage.written_at.get(lease_key(broker_id))
        fresh_seconds = FRESH_HEARTBEATS * self._heartbeat_seconds
        return (
            renewed_at is not None
            and outage.began_at - renewed_at <= fresh_seconds
            and outage.began_at <= sent_at < outage.ends_at + self._session_seconds
        )


def watch_outages(broker: RunningBroker, environment: Environment) -> None:
    """Note a violation for each such fence that the broker reads, if the fenced process runs."""
    cluster = environment.cluster
    metadata = broker.membership.metadata
    watch = OutageWatch(metadata.settings)

    def follow(sequence: int, records: Sequence[Record]) -> None:
        key = f"{LOG_PREFIX}{sequence:0{NUMBER_DIGITS}}{LOG_SUFFIX}"
        outages, sent_at = cluster.store.put_outages, cluster.store.sent_at[key]
        for epoch, broker_id, pid in watch.fenced(
            sequence, records, metadata.state, outages, sent_at
        ):
            processes = [each for each in cluster.brokers(int(broker_id)) if each.pid == pid]
            if any(
                not each.paused and (each.host, pid) not in cluster.taken_for_dead
                for each in processes
            ):
                cluster.violations.append(
                    f"entry {sequence} fences incarnation {epoch}, which runs and was silent for"
                    " want of a store"
                )

    metadata.subscribe(follow)
