"""Tidelog as the system under test: the production broker and the production client."""

from __future__ import annotations

import random
from collections.abc import Mapping

from tests.simulation.cluster import Environment, SimulatedCluster
from tests.simulation.independent import compare
from tests.simulation.kafka_client import SETTINGS, KafkaLogClient
from tests.simulation.log_client import LogClient
from tests.simulation.run import FINAL_READER, System
from tidelog.broker.broker import Broker
from tidelog.broker.metrics import BrokerMetrics
from tidelog.broker.setting_kinds import SettingValue
from tidelog.broker.settings import BrokerSettings
from tidelog.client.pool import Client
from tidelog.coordinator.cluster.process_identity import ProcessIdentity
from tidelog.identifiers import BrokerId
from tidelog.offload import InlineOffload
from tidelog.storage.retrying import RetryingStore

PORT = 9092
KIB = 1024
_ROLLS: Mapping[str, SettingValue] = {
    "roll.bytes": 4 * KIB,
    "roll.age.ms": 1500,
    "roll.min.bytes": 0,
}


def tidelog_system(seed: int, *, rolls: bool = False) -> System:
    """A cluster whose settings differ a little from seed to seed. With `rolls`, what is decided
    goes from the WAL into tables all the time."""
    settings = _settings(random.Random(f"settings {seed}"), _ROLLS if rolls else {})

    async def serve(environment: Environment) -> None:
        process, cluster = environment.process, environment.cluster
        broker = Broker(
            settings,
            broker_id=BrokerId(environment.broker_id),
            listen=("0.0.0.0", PORT),
            advertise=None,
            store=RetryingStore(environment.store, process.clock, process.entropy),
            clock=process.clock,
            entropy=process.entropy,
            offload=InlineOffload(),
            network=environment.network,
            metrics=BrokerMetrics(),
            process=_identity(environment),
            is_running=lambda other: _is_running(cluster, environment, other),
        )
        process.at_term(broker.stop)
        await broker.run()

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

    return System(serve, client, kafka, rolls=rolls)


def _settings(chance: random.Random, more: Mapping[str, SettingValue]) -> BrokerSettings:
    """Small objects, caches and intervals, so that a short run meets every border."""
    return BrokerSettings(
        {
            "wal.linger.ms": chance.choice((0, 5, 20)),
            # Small ones force the steps of a transaction into slots of their own.
            "wal.object.max.bytes": chance.choice((200, 64 * KIB, 64 * KIB)),
            "wal.uploads.in.flight.max": chance.choice((1, 2, 4)),
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
            **more,
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
    """What the machine knows of its own processes; nothing of those of others."""
    if other.host != environment.process.host:
        return None
    return cluster.is_running(other.host, other.pid)
