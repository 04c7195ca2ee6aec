"""The cost of more brokers: throughput and CPU on the same cores, idle requests and memory."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.broker.throughput import MIB, WAL_ALONE, Measured, Shape, measure
from benchmarks.cluster.brokers import NODES, ClusterTarget, brokers, kafka_nodes
from benchmarks.harness.targets import scrape
from tidelog.doctor.prices import REQUEST_DOLLARS, dollars_a_month

SHAPE = Shape(1024, 48, MIB, 1_000_000_000)
WARM_UP_BYTES = 100_000_000
HOUR_SECONDS = 3600
REPEATS = 3


@dataclass(slots=True)
class Idle:
    """One idle broker of three."""

    requests_an_hour: dict[str, float] = field(default_factory=dict)
    dollars_a_month: float = 0.0
    memory_mb: float = 0.0
    cpu_share: float = 0.0


@dataclass(slots=True)
class Costs:
    """By the number of brokers; Kafka's is NODES."""

    ours: dict[int, list[dict[str, Measured]]] = field(default_factory=dict)
    peer: list[dict[str, Measured]] = field(default_factory=list)


def measure_costs(folder: Path, cache: Path, share: float, *, with_kafka: bool) -> Costs:
    """Load one, two and three brokers, and three nodes of Kafka."""
    found = Costs()
    for count in range(1, NODES + 1):
        with brokers(folder / str(count), count, **WAL_ALONE) as target:
            found.ours[count] = _loaded(target, share)
    if with_kafka:
        with kafka_nodes(folder / "kafka", cache) as target:
            found.peer = _loaded(target, share)
    return found


def measure_idle(folder: Path, seconds: float) -> Idle:
    """Watch three brokers without clients, from some seconds after their start on."""
    with brokers(folder, NODES) as target:
        return _idle(target, seconds)


def _loaded(target: ClusterTarget, share: float) -> list[dict[str, Measured]]:
    measure([target], SHAPE._replace(total_bytes=WARM_UP_BYTES).share(share), run=0)
    shape = SHAPE.share(share)
    return [measure([target], shape, run)[target.name] for run in range(1, REPEATS + 1)]


def _idle(target: ClusterTarget, seconds: float) -> Idle:
    """The means of the brokers."""
    time.sleep(seconds / 4)
    before = [_requests(each.metrics_url) for each in target.members]
    cpu_before = target.usage().cpu_seconds
    time.sleep(seconds)
    after = [_requests(each.metrics_url) for each in target.members]
    cpu_seconds = target.usage().cpu_seconds - cpu_before
    found = Idle(
        memory_mb=target.resident_memory_mb() / len(target.members),
        cpu_share=cpu_seconds / seconds / len(target.members),
    )
    for operation in REQUEST_DOLLARS:
        pairs = zip(before, after, strict=True)
        made = sum(late[operation] - early[operation] for early, late in pairs)
        a_second = made / seconds / len(target.members)
        found.requests_an_hour[operation] = a_second * HOUR_SECONDS
        found.dollars_a_month += dollars_a_month(a_second, operation)
    return found


def _requests(url: str | None) -> dict[str, float]:
    assert url is not None
    metrics = scrape(url)
    return {
        operation: metrics.get(f'tidelog_store_operations_total{{operation="{operation}"}}', 0.0)
        for operation in REQUEST_DOLLARS
    }
