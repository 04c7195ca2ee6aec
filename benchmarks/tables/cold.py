"""Consuming from segments alone, with a broker that has none of them in memory."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from benchmarks.harness.targets import GB, Target, tidelog

KIB = 1024
MIB = KIB * KIB
FLUSH_SECONDS_MAX = 300


class ColdShape(NamedTuple):
    """The produced records and their readers."""

    record_bytes: int
    partitions: int
    total_bytes: int
    compression: str = "producer"
    """`compression.type` of the topic; with producer, batches from segments are uncompressed."""
    readers: int = 1
    """The number of readers, each of which reads all records."""

    @property
    def records(self) -> int:
        return max(1, self.total_bytes // self.record_bytes)

    @property
    def topic(self) -> str:
        """One topic for all shapes with the same records."""
        return f"cold.{self.record_bytes}.{self.partitions}.{self.compression}"

    @property
    def label(self) -> str:
        """The label in the report's rows."""
        size = (
            f"{self.record_bytes} B"
            if self.record_bytes < KIB
            else f"{self.record_bytes // KIB} KiB"
        )
        codec = "" if self.compression == "producer" else f", {self.compression}"
        readers = "" if self.readers == 1 else f", {self.readers} readers of the same"
        return f"{size}, {self.partitions} partitions{codec}{readers}"


SHAPES = (
    ColdShape(100, 1, 500_000_000),
    ColdShape(KIB, 1, 500_000_000),
    ColdShape(KIB, 16, 500_000_000),
    ColdShape(100 * KIB, 1, 500_000_000),
    ColdShape(KIB, 1, 500_000_000, "lz4"),
    ColdShape(KIB, 1, 500_000_000, "zstd"),
    ColdShape(KIB, 1, 500_000_000, readers=4),
)


@dataclass(frozen=True, slots=True)
class Cold:
    """The result of one shape. Rates are of the records' own bytes, of all readers together."""

    megabytes_a_second: float
    cpu_seconds_a_gb: float
    kernel_seconds_a_gb: float
    peak_memory_mb: float
    gets_a_gb: float
    bytes_got_a_byte: float

    @property
    def megabytes_a_core_second(self) -> float:
        """The rate of one core of the server that does nothing else."""
        return 1000 / self.cpu_seconds_a_gb


def measure_cold(folder: Path, share: float) -> list[tuple[ColdShape, Cold]]:
    """Produce and roll; then read each shape with a new broker."""
    bucket = folder / "bucket"
    bucket.mkdir(parents=True)
    store = f"file://{bucket}"
    found: list[tuple[ColdShape, Cold]] = []
    rolled: set[str] = set()
    for shape in (shape._replace(total_bytes=int(shape.total_bytes * share)) for shape in SHAPES):
        print(f"measuring {shape.label}, from segments", file=sys.stderr, flush=True)
        if shape.topic not in rolled:
            with tidelog("roll", store, folder / "roll") as target:
                _produce(target, shape)
            rolled.add(shape.topic)
        with tidelog("cold", store, folder / "cold") as target:
            found.append((shape, _consume(target, shape)))
    return found


def _produce(target: Target, shape: ColdShape) -> None:
    target.create_topic(
        shape.topic, shape.partitions, {"compression.type": shape.compression, "retention.ms": "-1"}
    )
    target.load(
        "produce",
        shape.topic,
        partitions=shape.partitions,
        records=shape.records,
        record_bytes=shape.record_bytes,
        batch_bytes=MIB,
    )
    command = [sys.executable, "-m", "tidelog.cli", "topics", "flush", shape.topic]
    command += ["--bootstrap", target.bootstrap]
    subprocess.run(command, check=True, timeout=FLUSH_SECONDS_MAX, stdout=subprocess.DEVNULL)


def _consume(target: Target, shape: ColdShape) -> Cold:
    target.reset_peak_memory()
    before = target.usage()

    def read(_: int) -> float:
        options = {"partitions": shape.partitions, "records": shape.records}
        found = target.load("consume", shape.topic, record_bytes=shape.record_bytes, **options)
        return float(found["seconds"])

    with ThreadPoolExecutor(shape.readers) as readers:
        seconds = max(readers.map(read, range(shape.readers)))
    used = target.usage().since(before)
    size = shape.records * shape.record_bytes * shape.readers
    return Cold(
        size / 1e6 / seconds,
        used.cpu_seconds * GB / size,
        used.kernel_seconds * GB / size,
        target.peak_memory_mb(),
        used.gets * GB / size,
        used.bytes_got / size,
    )
