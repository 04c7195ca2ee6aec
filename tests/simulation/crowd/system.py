"""A hundred production brokers on one bucket, whose clients do little."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from dataclasses import dataclass
from pathlib import PurePosixPath

from tests.simulation.actors.actor import WorkloadSettings
from tests.simulation.cluster import SimulatedCluster
from tests.simulation.crowd.members import Members
from tests.simulation.crowd.nemesis import CrowdNemesis
from tests.simulation.crowd.operators import Operator
from tests.simulation.run import System
from tests.simulation.tidelog_system import clients, serving
from tests.simulation.workloads import KEYS
from tests.simulation.world.owners import OWNER
from tests.simulation.world.patches import Patch
from tests.simulation.world.process import SimulatedProcess
from tidelog.broker.settings import layers as layer_settings
from tidelog.broker.settings.settings import BrokerSettings
from tidelog.coordinator.cluster.membership import registration
from tidelog.coordinator.cluster.records.records import BROKER_VERSION, BrokerRegistered
from tidelog.coordinator.cluster.records.settings import ClusterSettings
from tidelog.coordinator.cluster.state import broker_transitions, features

BROKERS = 100
CROWD = "crowd"
"""The name of this workload."""
GRACE_MS = 40_000
"""`log.delete.grace.ms`; no outage lasts for half of it, or all brokers end themselves (A2)."""
EARLIER_VERSION = BROKER_VERSION - 1
SNAPSHOT_ENTRIES = 60
"""The interval of metadata snapshots, so that a run deletes old entries."""
QUIET_SECONDS = 20.0
"""The seconds over which requests are counted when all work is done."""
SETTLE_SECONDS_MAX = 300.0
"""All work must be done within this time: several graces, since old incarnations are forgotten."""
REQUESTS_MAX = {"put": 2.0, "get": 8.0, "list": 2.0}
"""The requests of one broker in a heartbeat, for any number of brokers: a put of its lease, reads
of three leases and of the metadata log with the collector's reads, and the collector's listings."""
_LOOK_SECONDS = 0.25
_COLLECTING_SECONDS_MAX = 180.0
"""The time within which a broker deletes the objects that a snapshot makes obsolete, one by one."""
WORKLOAD = WorkloadSettings(
    keys=KEYS,
    producers=1,
    plain_producers=0,
    consumers=1,
    observers=1,
    topic_churns=1,
    wide_topics=5,
)


def crowd_system(seed: int, brokers: int = BROKERS) -> System:
    """A cluster of this many brokers, with an operator and the rules of the crowd."""
    settings = _settings(random.Random(f"settings {seed}"))
    members = Members()
    client, kafka, bucket = clients(settings)
    watch = CrowdWatch(members, seed)
    return System(
        serving(settings, watches=(members.follow,)),
        client,
        kafka,
        bucket,
        patches=lambda: _patches(brokers),
        brokers=brokers,
        workload=WORKLOAD,
        nemesis=lambda cluster, seed: CrowdNemesis(cluster, seed, members),
        beside=watch.beside,
        at_rest=watch.at_rest,
    )


@dataclass(slots=True)
class CrowdWatch:
    """Looks at all brokers while there are faults, and when all is healed."""

    members: Members
    seed: int

    async def beside(self, cluster: SimulatedCluster) -> None:
        """Look several times a second; an operator is at work."""
        self.members.watch(cluster.is_running)
        operator = Operator(cluster, self.members, self.seed)
        operating = asyncio.create_task(operator.run())
        while not cluster.healed:
            await asyncio.sleep(_LOOK_SECONDS)
            self._look(cluster)
        await operating
        await operator.settle()

    async def at_rest(self, cluster: SimulatedCluster) -> None:
        """Check that all pending work ends, and that the cluster then makes few requests."""
        rules = self.members.rules
        give_up_at = cluster.loop.time() + SETTLE_SECONDS_MAX
        while (left := self.members.unsettled()) is not None:
            self._look(cluster)
            if cluster.loop.time() > give_up_at:
                cluster.violations.append(f"{SETTLE_SECONDS_MAX:g} s after the healing: {left}")
                break
            await asyncio.sleep(1.0)
        cluster.counts["seconds to rest"] += int(
            cluster.loop.time() - give_up_at + SETTLE_SECONDS_MAX
        )
        await self._count_requests(cluster)
        await self._judge_the_log(cluster)
        cluster.violations += rules.violations
        cluster.counts["states compared"] += rules.compared
        cluster.counts["fences"] += rules.fences
        cluster.counts["levels raised"] += rules.levels_raised

    def _look(self, cluster: SimulatedCluster) -> None:
        twice = self.members.served_twice()
        if twice is not None and twice not in cluster.violations:
            cluster.violations.append(twice)

    async def _count_requests(self, cluster: SimulatedCluster) -> None:
        before = Counter(cluster.store.counts)
        await asyncio.sleep(QUIET_SECONDS)
        brokers = len(cluster.brokers())
        heartbeats = QUIET_SECONDS / 2
        for kind, most in REQUESTS_MAX.items():
            each = (cluster.store.counts[kind] - before[kind]) / brokers / heartbeats
            cluster.counts[f"quiet {kind} percent"] += round(100 * each)
            if each > most:
                cluster.violations.append(
                    f"at rest each of {brokers} brokers sends {each:.1f} {kind} a heartbeat;"
                    f" {most:g} are enough"
                )

    async def _judge_the_log(self, cluster: SimulatedCluster) -> None:
        """Check that old entries and snapshots are deleted. A broker that writes a snapshot deletes
        all objects below the newest snapshot that it has known for longer than the grace (A2). So
        its next snapshot deletes everything below this one."""
        member, broker = next(self.members.running())
        operator = Operator(cluster, self.members, self.seed)
        known = await operator.fill(member, broker, SNAPSHOT_ENTRIES)
        await asyncio.sleep(2 * GRACE_MS / 1000)
        await operator.fill(member, broker, SNAPSHOT_ENTRIES)
        give_up_at = cluster.loop.time() + _COLLECTING_SECONDS_MAX
        while (lowest := _lowest_numbers(cluster)) != (known, known):
            if cluster.loop.time() > give_up_at:
                cluster.violations.append(
                    f"the metadata log begins with entry {lowest[0]}, its snapshots with"
                    f" {lowest[1]}: all below snapshot {known} must be deleted, and no more"
                )
                break
            await asyncio.sleep(1.0)


def _lowest_numbers(cluster: SimulatedCluster) -> tuple[int, ...]:
    """The lowest numbers of the entries, without entry 0, the bucket's identity, and of the
    snapshots."""
    entries, snapshots = (
        [int(PurePosixPath(key).stem) for key in cluster.store.keys(f"cluster/{kind}/")]
        for kind in ("log", "snapshot")
    )
    return min(filter(None, entries)), min(snapshots)


def _settings(chance: random.Random) -> BrokerSettings:
    return BrokerSettings(
        {
            "leader.imbalance.check.interval.seconds": 5,
            "rebalance.moves.per.minute.max": chance.choice((600, 6000)),
            "offsets.topic.num.partitions": 4,
            "transaction.state.log.num.partitions": 4,
            # Otherwise records in a WAL would keep its incarnation in the metadata log.
            "roll.age.ms": 3000,
            "roll.min.bytes": 0,
            "log.delete.grace.ms": GRACE_MS,
            "log.collect.interval.ms": chance.choice((5000, 10_000)),
            "log.collect.tables.interval.ms": 10_000,
        }
    )


def _patches(brokers: int) -> list[Patch]:
    """Constants that no setting changes: snapshots come often. A third of the first processes is of
    a release that lacks the newest level."""

    def cluster(settings: BrokerSettings) -> ClusterSettings:
        return ClusterSettings(
            session_timeout_ms=settings.integer("broker.session.timeout.ms"),
            heartbeat_interval_ms=settings.integer("broker.heartbeat.interval.ms"),
            delete_grace_ms=settings.integer("log.delete.grace.ms"),
            append_timeout_ms=GRACE_MS // 2 - 2000,
            snapshot_interval_entries=SNAPSHOT_ENTRIES,
        )

    first: dict[int, SimulatedProcess] = {}

    def registered(*, version: int, **named: object) -> BrokerRegistered:
        process = OWNER.get()
        assert isinstance(process, SimulatedProcess)
        broker_id = named["broker_id"]
        assert isinstance(broker_id, int)
        is_first = first.setdefault(broker_id, process) is process
        if is_first and broker_id < brokers and broker_id % 3 == 0:
            version = EARLIER_VERSION
        return BrokerRegistered(version=version, **named)  # type: ignore[arg-type]

    return [
        (layer_settings, "cluster_settings", cluster),
        (registration, "BrokerRegistered", registered),
        (features, "FIRST_LEVEL", EARLIER_VERSION),
        (broker_transitions, "FIRST_LEVEL", EARLIER_VERSION),
    ]
