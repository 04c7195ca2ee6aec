"""A thousand partitions: start-up, memory, throughput, and the costs of idle partitions."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

from benchmarks.broker.throughput import MIB, Shape, measure
from benchmarks.harness.targets import tidelog

TOPICS = 10
PARTITIONS = 100
SETTLING_SECONDS = 20.0
"""A broker that has started merges what its predecessor left in the WAL, for about ten seconds."""


@dataclass(frozen=True, slots=True)
class Scale:
    """A broker with many partitions."""

    idle_memory_mb: float
    memory_mb: float
    start_empty_seconds: float
    start_seconds: float
    idle_cpu_share: float
    alone_mb_a_second: float
    among_idle_mb_a_second: float


def measure_scale(folder: Path, idle_seconds: float = 10.0) -> Scale:
    """Compare a broker with one small topic and the same broker with many idle partitions."""
    bucket = folder / "bucket"
    bucket.mkdir(parents=True)
    store = f"file://{bucket}"
    shape = Shape(1024, 16, MIB, 300_000_000)
    started = time.perf_counter()
    with tidelog("scale", store, folder) as target:
        start_empty = time.perf_counter() - started
        idle_memory = target.resident_memory_mb()
        alone = measure([target], shape, run=0)["scale"]["produce"].megabytes_a_second
        for number in range(TOPICS):
            target.create_topic(f"scale.{number}", PARTITIONS)
            options = {"records": PARTITIONS * 10, "partitions": PARTITIONS, "record_bytes": 100}
            target.load("produce", f"scale.{number}", batch_bytes=1000, **options)
    started = time.perf_counter()
    with tidelog("scale", store, folder) as target:
        start = time.perf_counter() - started
        memory = target.resident_memory_mb()
        time.sleep(SETTLING_SECONDS)
        before = target.usage().cpu_seconds
        time.sleep(idle_seconds)
        idle_cpu_share = (target.usage().cpu_seconds - before) / idle_seconds
        among = measure([target], shape, run=1)["scale"]["produce"].megabytes_a_second
    return Scale(idle_memory, memory, start_empty, start, idle_cpu_share, alone, among)
