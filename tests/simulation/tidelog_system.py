"""Tidelog as the system under test: the production broker and the production client."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

from tests.simulation.actors.drains import drain_now_and_then
from tests.simulation.actors.kafka_client import SETTINGS, KafkaLogClient
from tests.simulation.actors.log_client import LogClient
from tests.simulation.actors.moves import PAUSES_SECONDS_MEAN, give_now_and_then
from tests.simulation.actors.reopenings import reopen_now_and_then
from tests.simulation.cluster import (
    BrokerProgram,
    ClientProgram,
    Environment,
    SimulatedCluster,
)
from tests.simulation.coverage import CountedCrashPoints
from tests.simulation.rules.drain_watch import watch_drains
from tests.simulation.rules.fence_watch import watch_fence
from tests.simulation.rules.independent import compare
from tests.simulation.rules.outage_watch import watch_outages
from tests.simulation.rules.version_watch import watch_versions
from tests.simulation.run import FINAL_READER, System
from tests.simulation.world.offload import SimulatedOffload
from tests.simulation.world.patches import Patch
from tests.simulation.world.releases import earlier_release, lost_hints
from tidelog.broker.broker import Broker
from tidelog.broker.clean import table_path
from tidelog.broker.environment import BrokerEnvironment
from tidelog.broker.options import BrokerOptions
from tidelog.broker.roll import segment_builder
from tidelog.broker.settings import layers as layer_settings
from tidelog.broker.settings.kinds import SettingValue
from tidelog.broker.settings.settings import BrokerSettings
from tidelog.broker.telemetry.metrics import BrokerMetrics
from tidelog.bucket.views.bucket import Bucket
from tidelog.client.pool import Client
from tidelog.coordinator.cluster.records.process_identity import ProcessIdentity
from tidelog.coordinator.cluster.records.settings import ClusterSettings
from tidelog.identifiers import BrokerId
from tidelog.storage.stores.retrying import RetryingStore
from tidelog.storage.table import table_log
from tidelog.wal.roll import pace
from tidelog.wal.settings import WalSettings
from tidelog.workers.offload import InlineOffload

Watch: TypeAlias = Callable[[Broker, Environment], Coroutine[Any, Any, None]]
"""A task beside a broker, in its process."""
PORT = 9092
KIB = 1024
GRACE_MS = 24_000
"""`log.delete.grace.ms` in runs that delete objects. Times that must be shorter than the grace are
shorter."""
_REOPENS_PROBABILITY = 1 / 3
"""The probability that partitions leave and come back in a run."""
_DRAINS_AT = 3
"""Of four seeds, the one in which brokers are drained."""
_EARLIER_PROBABILITY = 0.5
"""The probability that one broker is of an earlier release at first, in runs with drains."""
_HINTS_LOST_PROBABILITY = 0.2
"""The probability that no broker hears another broker's hints."""
_UNDECIDED_MS = GRACE_MS // 2 - 2000
"""Below half of the grace, as rule A2 demands for the bound of an append."""


def tidelog_system(seed: int, *, segments: bool = False, brokers: int = 1) -> System:
    """A cluster whose settings differ a little from seed to seed.

    With `segments`, decided records go from the WAL into tables all the time. Tables are merged and
    compacted, topics lose old records, and needless objects are deleted soon."""
    settings = _settings(random.Random(f"settings {seed}"), segments)
    reopens = None
    if random.Random(f"reopens {seed}").random() < _REOPENS_PROBABILITY:
        reopens = f"{seed}"
    moves = None
    if brokers > 1:
        moves = random.Random(f"moves {seed}").choice(PAUSES_SECONDS_MEAN)

    drains = brokers > 1 and seed % 4 == _DRAINS_AT
    releases = random.Random(f"releases {seed}")
    has_earlier = drains and releases.random() < _EARLIER_PROBABILITY
    hints = random.Random(f"hints {seed}").random()
    loses_hints = brokers > 1 and hints < _HINTS_LOST_PROBABILITY

    def patches() -> list[Patch]:
        found = _patches(random.Random(f"patches {seed}")) if segments else []
        found += lost_hints() if loses_hints else []
        return found + (earlier_release(releases, brokers) if has_earlier else [])

    client, kafka, bucket = clients(settings)
    return System(
        serving(settings, reopens, moves, drains=drains),
        client,
        kafka,
        bucket,
        segments=segments,
        brokers=brokers,
        patches=patches,
    )


def clients(
    settings: BrokerSettings,
) -> tuple[ClientProgram, Callable[[Environment], Client], Callable[[Environment], Bucket]]:
    """A client's library of single requests, Tidelog's own library, and the bucket without a
    broker."""

    def client(environment: Environment) -> LogClient:
        hosts = environment.cluster.hosts
        reads_everything = environment.process.name.startswith(FINAL_READER)
        return KafkaLogClient(
            environment,
            lambda: [(host, PORT) for host in hosts()],
            inspect=compare if reads_everything else None,
        )

    def kafka(environment: Environment) -> Client:
        hosts = environment.cluster.hosts()
        addresses = [(host, PORT) for host in hosts]
        return Client(environment.network, environment.process.clock, addresses, SETTINGS)

    def bucket(environment: Environment) -> Bucket:
        process = environment.process
        store = RetryingStore(environment.store, process.clock, process.entropy)
        cluster = layer_settings.cluster_settings(settings)
        return Bucket.unread(store, process.clock, process.entropy, InlineOffload(), cluster)

    return client, kafka, bucket


def serving(
    settings: BrokerSettings,
    reopens: str | None = None,
    moves: float | None = None,
    *,
    drains: bool = False,
    watches: Sequence[Watch] = (),
) -> BrokerProgram:
    """A broker's process. `reopens`: the seed by which partitions leave and come back, if they
    do. `moves`: the seconds between moves to other brokers, if there are any. `drains`: whether
    brokers are drained now and then. `watches`: further tasks of the process."""

    async def serve(environment: Environment) -> None:
        process, cluster = environment.process, environment.cluster
        options = BrokerOptions(
            settings=settings,
            broker_id=BrokerId(environment.broker_id),
            listen=("0.0.0.0", PORT),
            process=_identity(environment),
            is_running=lambda other: _is_running(cluster, environment, other),
        )
        world = BrokerEnvironment.of(
            RetryingStore(environment.store, process.clock, process.entropy),
            process.clock,
            process.entropy,
            environment.network,
            SimulatedOffload(random.Random(process.entropy.uuid().int)),
            crash_points=CountedCrashPoints(cluster.counts),
        )
        incarnation = Broker(options, world, BrokerMetrics())
        process.at_term(incarnation.stop)
        beside = [
            asyncio.create_task(watch(incarnation, environment)) for watch in (_watch, *watches)
        ]
        if reopens is not None:
            chance = random.Random(f"reopenings {environment.process.name} {reopens}")
            beside.append(
                asyncio.create_task(reopen_now_and_then(incarnation, environment, chance))
            )
        if moves is not None:
            chance = random.Random(f"moves {environment.process.name}")
            giving = give_now_and_then(incarnation, environment, chance, moves)
            beside.append(asyncio.create_task(giving))
        if drains:
            chance = random.Random(f"drains {environment.process.name}")
            beside.append(asyncio.create_task(watch_drains(incarnation, environment)))
            beside.append(asyncio.create_task(drain_now_and_then(incarnation, environment, chance)))
        try:
            await incarnation.run()
        finally:
            for task in beside:
                task.cancel()

    return serve


async def _watch(broker: Broker, environment: Environment) -> None:
    """Look for entries of the metadata log that a right broker does not write, and for its end."""
    await broker.ready.wait()
    if broker.running is not None:
        watch_outages(broker.running, environment)
        watch_versions(broker.running, environment)
    await watch_fence(broker, environment)


def _patches(chance: random.Random) -> list[Patch]:
    """Constants that no setting changes: the time that an append may stay undecided, and the size
    and pace of a roll's pieces."""
    right_wal = layer_settings.wal_settings

    def cluster(settings: BrokerSettings) -> ClusterSettings:
        return ClusterSettings(
            session_timeout_ms=settings.integer("broker.session.timeout.ms"),
            heartbeat_interval_ms=settings.integer("broker.heartbeat.interval.ms"),
            delete_grace_ms=settings.integer("log.delete.grace.ms"),
            append_timeout_ms=_UNDECIDED_MS,
        )

    def wal(settings: BrokerSettings, store_url: str) -> WalSettings:
        return replace(right_wal(settings, store_url), upload_deadline_ms=_UNDECIDED_MS)

    bounds = segment_builder.SegmentBounds(
        raw_bytes_max=chance.choice((2 * KIB, 1024 * KIB)),
        piece_bytes_max=chance.choice((250, 1 * KIB, 1024 * KIB)),
    )
    segment_bytes = chance.choice((100, 1024 * KIB))
    return [
        (layer_settings, "cluster_settings", cluster),
        (layer_settings, "wal_settings", wal),
        (table_log, "APPEND_DEADLINE_SECONDS", _UNDECIDED_MS / 1000),
        (table_path, "SegmentBounds", lambda: bounds),
        (pace, "BYTES_A_SECOND_MIN", chance.choice((100, 1 * KIB, 1024 * KIB))),
        (pace, "SEGMENT_BYTES", segment_bytes),
        (segment_builder, "SEGMENT_BYTES", segment_bytes),
    ]


def _segment_settings(chance: random.Random) -> Mapping[str, SettingValue]:
    return {
        "roll.bytes": chance.choice((1 * KIB, 4 * KIB, 16 * KIB)),
        "roll.age.ms": chance.choice((500, 1500, 4000)),
        "roll.min.bytes": chance.choice((0, 2 * KIB)),
        "roll.wal.max.bytes": chance.choice((8 * KIB, 1024 * KIB)),
        "merge.segment.bytes": chance.choice((16 * KIB, 64 * KIB, 1024 * KIB)),
        "log.retention.check.interval.ms": 2000,
        "log.cleaner.backoff.ms": chance.choice((300, 1500)),
        "log.cleaner.dedupe.buffer.size": chance.choice((1 * KIB, 1024 * KIB)),
        "segment.index.cache.bytes": chance.choice((0, 1024 * KIB)),
        "staged.retention.ms": chance.choice((15_000, 3_600_000)),
        "wal.objects.max": chance.choice((2, 8, 32)),
        "log.delete.grace.ms": GRACE_MS,
        "log.collect.interval.ms": chance.choice((1000, 3000)),
        "log.collect.tables.interval.ms": chance.choice((2000, 5000)),
    }


def _settings(chance: random.Random, segments: bool) -> BrokerSettings:
    """Small objects, caches and intervals, so that a short run meets every border."""
    return BrokerSettings(
        {
            "wal.linger.ms": chance.choice((0, 5, 20)),
            # Small objects force the steps of a transaction into slots of their own.
            "wal.object.max.bytes": chance.choice((200, 64 * KIB, 64 * KIB)),
            "wal.uploads.in.flight.max": chance.choice((1, 2, 64)),
            "wal.puts.per.second.max": chance.choice((0, 5, 50)),
            "wal.buffer.max.bytes": chance.choice((64 * KIB, 1024 * KIB)),
            "wal.checkpoint.interval.bytes": chance.choice((8 * KIB, 64 * KIB, 1024 * KIB)),
            "group.initial.rebalance.delay.ms": chance.choice((0, 300, 1500)),
            "group.min.session.timeout.ms": 1000,
            "group.consumer.session.timeout.ms": 4000,
            "group.consumer.heartbeat.interval.ms": 900,
            "group.consumer.assignors": chance.choice((("uniform",), ("range",))),
            "offsets.topic.num.partitions": 2,
            "transaction.state.log.num.partitions": 2,
            "transaction.abort.timed.out.transaction.cleanup.interval.ms": 1500,
            "tail.cache.bytes": chance.choice((0, 16 * KIB, 1024 * KIB)),
            "read.cache.bytes": chance.choice((0, 64 * KIB, 1024 * KIB)),
            "coordinator.snapshot.interval.records": chance.choice((5, 50, 10_000)),
            **(_segment_settings(chance) if segments else {}),
        }
    )


def _identity(environment: Environment) -> ProcessIdentity:
    process = environment.process
    return ProcessIdentity(
        process.host, f"boot-of-{process.host}", "pid:[1]", process.pid, int(process.started_at)
    )


def _is_running(
    cluster: SimulatedCluster, environment: Environment, other: ProcessIdentity
) -> bool | None:
    """The machine's knowledge of its own processes. None for processes of other machines."""
    if (other.host, other.pid) in cluster.taken_for_dead:
        return False
    if other.host != environment.process.host:
        return None
    return cluster.is_running(other.host, other.pid)
