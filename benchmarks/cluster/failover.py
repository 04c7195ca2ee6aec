"""From the death of a broker to the first acknowledged record in each of its partitions.

The partitions have traffic before. At the death a producer sends a record to each partition of the
victim. The time counts until the record is acknowledged, so it includes the client's part.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from benchmarks.cluster.brokers import NODES, ClusterTarget, brokers, kafka_nodes
from benchmarks.cluster.traffic import Traffic, percentiles
from tidelog.localstack.broker_process import BrokerProcess

VICTIM = 1
ROUNDS = 10
ROUND_SECONDS = 0.5
"""Before the death each partition gets so many records, one in so many seconds."""
IDLE_TOPICS = 9
PEER_PARTITIONS = 100
"""The partitions of the comparison with Apache Kafka."""
IMPATIENT = {
    "socket.timeout.ms": 1000,
    "request.timeout.ms": 1000,
    "topic.metadata.refresh.interval.ms": 500,
}
"""For a broker that is stopped: its connections stay open, and a client has to give it up."""


class Failover(NamedTuple):
    """The seconds from the death to the acknowledgements."""

    cluster: str
    death: str
    busy: int
    """Partitions with traffic, of all brokers."""
    partitions: int
    p50: float
    p99: float
    largest: float
    measured: int
    """The victim's partitions with traffic."""


def measure_failovers(folder: Path, cache: Path, busy: int, *, with_kafka: bool) -> list[Failover]:
    """A killed and a stopped broker among many partitions; a killed one beside Apache Kafka's."""
    found = []
    with brokers(folder / "killed", NODES) as target:
        _fill(target, busy)
        found.append(_failover(target, "kill -9", busy, busy * (IDLE_TOPICS + 1), kill))
    with brokers(folder / "stopped", NODES) as target:
        _fill(target, busy)
        total = busy * (IDLE_TOPICS + 1)
        found.append(_failover(target, "SIGSTOP", busy, total, pause, **IMPATIENT))
    peers = min(busy, PEER_PARTITIONS)
    with brokers(folder / "small", NODES) as target:
        target.create_topic("busy", peers)
        found.append(_failover(target, "kill -9", peers, peers, kill))
    if with_kafka:
        with kafka_nodes(folder / "kafka", cache) as target:
            target.create_topic("busy", peers)
            found.append(_failover(target, "kill -9", peers, peers, kill))
    return found


def kill(target: ClusterTarget) -> None:
    """The victim dies."""
    target.servers[VICTIM].process.kill()


def pause(target: ClusterTarget) -> None:
    """The victim stalls, and keeps its connections."""
    server = target.servers[VICTIM]
    assert isinstance(server, BrokerProcess)
    server.pause()


def _fill(target: ClusterTarget, busy: int) -> None:
    """Partitions with a record in each."""
    for number in range(IDLE_TOPICS):
        topic = f"idle.{number}"
        target.create_topic(topic, busy)
        with Traffic(target.bootstrap, topic) as traffic:
            traffic.round(range(busy))
    target.create_topic("busy", busy)


def _failover(
    target: ClusterTarget,
    death: str,
    busy: int,
    partitions: int,
    die: Callable[[ClusterTarget], None],
    **settings: object,
) -> Failover:
    with Traffic(target.bootstrap, "busy", **settings) as traffic:
        for _ in range(ROUNDS):
            begun = time.perf_counter()
            traffic.round(range(busy))
            time.sleep(max(0.0, begun + ROUND_SECONDS - time.perf_counter()))
        victims = [place for place, leader in traffic.leaders().items() if leader == VICTIM]
        died = time.perf_counter()
        die(target)
        found = percentiles(moment - died for moment in traffic.round(victims))
    numbers = (found["p50"], found["p99"], found["largest"], found["count"])
    return Failover(target.name, death, busy, partitions, *numbers)
