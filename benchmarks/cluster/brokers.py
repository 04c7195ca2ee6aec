"""Clusters under measurement: Tidelog's brokers on one bucket, or nodes of Apache Kafka."""

from __future__ import annotations

import contextlib
import functools
import operator
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, fields
from pathlib import Path

from benchmarks.harness.targets import Target, Usage, scrape
from tidelog.localstack.broker_process import BrokerProcess
from tidelog.localstack.kafka import ApacheKafka

NODES = 3
"""The size of the clusters that are compared."""


@dataclass(slots=True)
class ClusterTarget(Target):
    """Servers that clients use as one; resources are those of all."""

    members: Sequence[Target] = ()
    servers: Sequence[BrokerProcess] | Sequence[ApacheKafka] = ()

    def usage(self) -> Usage:
        return functools.reduce(_sum, [each.usage() for each in self.members])

    def resident_memory_mb(self) -> float:
        return sum(each.resident_memory_mb() for each in self.members)

    def peak_memory_mb(self) -> float:
        return sum(each.peak_memory_mb() for each in self.members)

    def reset_peak_memory(self) -> None:
        for each in self.members:
            each.reset_peak_memory()


@contextlib.contextmanager
def brokers(
    folder: Path, count: int, *, put_ms: int = 0, get_ms: int = 0, **settings: object
) -> Iterator[ClusterTarget]:
    """Brokers on one folder, whose requests take so much longer than the disk's."""
    with contextlib.ExitStack() as stack:

        def start(number: int) -> BrokerProcess:
            return stack.enter_context(start_broker(folder, number, put_ms, get_ms, **settings))

        with ThreadPoolExecutor(count) as pool:
            servers = list(pool.map(start, range(count)))
        yield of_brokers(servers)


def start_broker(
    folder: Path, broker_id: int, put_ms: int = 0, get_ms: int = 0, **settings: object
) -> BrokerProcess:
    """One more broker on the folder."""
    bucket = folder / "bucket"
    bucket.mkdir(parents=True, exist_ok=True)
    return BrokerProcess.start(
        f"file://{bucket}",
        folder / f"broker-{broker_id}.log",
        http="127.0.0.1:0",
        broker_id=broker_id,
        settings=settings,
        module="benchmarks.harness.slow_store" if put_ms else "tidelog.cli",
        environment={"BENCHMARK_PUT_MS": str(put_ms), "BENCHMARK_GET_MS": str(get_ms)},
    )


def of_brokers(servers: Sequence[BrokerProcess]) -> ClusterTarget:
    """Running brokers as one target."""
    members = [
        Target(f"broker {each.broker_id}", each.kafka, each.process.pid, metrics_url(each))
        for each in servers
    ]
    return _cluster("tidelog", members, servers)


@contextlib.contextmanager
def kafka_nodes(folder: Path, cache: Path, count: int = NODES) -> Iterator[ClusterTarget]:
    """Nodes of Apache Kafka; each record has up to three replicas."""
    with contextlib.ExitStack() as stack:
        servers = ApacheKafka.start_nodes(folder, cache, count)
        for each in servers:
            stack.enter_context(each)
        members = [Target("kafka", each.bootstrap, each.process.pid, None) for each in servers]
        yield _cluster("kafka", members, servers)


def metrics_url(broker: BrokerProcess) -> str:
    """Where a broker reports its metrics."""
    return f"http://{broker.http}/metrics"


def partitions_served(servers: Sequence[BrokerProcess]) -> list[int]:
    """How many partitions each broker leads and serves now."""
    found = []
    for each in servers:
        metrics = scrape(metrics_url(each))
        found.append(int(metrics["tidelog_partitions"] - metrics["tidelog_partitions_opening"]))
    return found


def _cluster(
    name: str, members: Sequence[Target], servers: Sequence[BrokerProcess] | Sequence[ApacheKafka]
) -> ClusterTarget:
    bootstrap = ",".join(each.bootstrap for each in members)
    pid = members[0].pid
    return ClusterTarget(name, bootstrap, pid, None, members=members, servers=servers)


def _sum(left: Usage, right: Usage) -> Usage:
    names = [each.name for each in fields(Usage)]
    pairs = [(getattr(left, name), getattr(right, name)) for name in names]
    return Usage(*[operator.add(*pair) for pair in pairs])
