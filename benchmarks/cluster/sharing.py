"""How long a start with thousands of partitions takes, and how long until a newcomer has its share.

All partitions have records, so each has a base and a WAL to read.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from benchmarks.cluster.brokers import (
    NODES,
    brokers,
    partitions_served,
    start_broker,
)
from benchmarks.cluster.traffic import Traffic

TOPICS = 10
SHARE = 0.9
"""A newcomer has its share when it leads this part of it: the balance tolerates a difference."""
LOOK_SECONDS = 0.02
SECONDS_MAX = 300.0


class Sharing(NamedTuple):
    """Seconds from the start of a process."""

    partitions: int
    start_empty: float
    """On an empty folder, until it is ready."""
    start: float
    """On the folder of three killed brokers, until it serves all partitions."""
    join_partitions: int
    join: float
    """As the third broker, until it serves its share."""


def measure_sharing(folder: Path, partitions: int) -> Sharing:
    """Kill three brokers and start one; then start a third broker beside two."""
    begun = time.perf_counter()
    with start_broker(folder / "empty", 0):
        start_empty = time.perf_counter() - begun
    place = folder / "opening"
    with brokers(place, NODES) as target:
        _fill(target.bootstrap, target.create_topic, partitions)
        for each in target.servers:
            each.process.kill()
    begun = time.perf_counter()
    with start_broker(place, NODES) as broker:
        _until(lambda: sum(partitions_served([broker])) >= partitions)
        start = time.perf_counter() - begun
    joining = partitions // TOPICS
    place = folder / "joining"
    with brokers(place, NODES - 1) as target:
        _fill(target.bootstrap, target.create_topic, joining)
        begun = time.perf_counter()
        with start_broker(place, NODES - 1) as newcomer:
            _until(lambda: partitions_served([newcomer])[0] >= SHARE * joining / NODES)
            join = time.perf_counter() - begun
    return Sharing(partitions, start_empty, start, joining, join)


def _fill(bootstrap: str, create_topic: Callable[[str, int], None], partitions: int) -> None:
    for number in range(TOPICS):
        create_topic(f"shared.{number}", partitions // TOPICS)
        with Traffic(bootstrap, f"shared.{number}") as traffic:
            traffic.round(range(partitions // TOPICS))


def _until(is_so: Callable[[], bool]) -> None:
    deadline = time.perf_counter() + SECONDS_MAX
    while not is_so():
        if time.perf_counter() > deadline:
            raise RuntimeError(f"the brokers do not serve their share after {SECONDS_MAX:.0f} s")
        time.sleep(LOOK_SECONDS)
