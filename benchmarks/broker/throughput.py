"""Producing and consuming: bytes per second, the server's CPU and memory, requests to the store."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from benchmarks.harness.targets import GB, ONLY_ON_REQUEST, WITHOUT_MERGES, Target

KIB = 1024
MIB = KIB * KIB


class Shape(NamedTuple):
    """A load of clients."""

    record_bytes: int
    partitions: int
    batch_bytes: int
    total_bytes: int
    idempotent: bool = True
    """Idempotent clients have at most five requests in flight."""

    @property
    def records(self) -> int:
        return max(1, self.total_bytes // self.record_bytes)

    def share(self, share: float) -> Shape:
        """The same load with a part of the bytes."""
        return self._replace(total_bytes=int(self.total_bytes * share))

    @property
    def label(self) -> str:
        """The label in the report's rows."""
        size = f"{self.record_bytes} B"
        if self.record_bytes >= KIB:
            size = f"{self.record_bytes // KIB} KiB"
        batch = f"{self.batch_bytes // KIB} KiB"
        many = "" if self.idempotent else ", many in flight"
        return f"{size}, {self.partitions} partitions, batches of {batch}{many}"


SHAPES = (
    *(Shape(100, partitions, MIB, 100_000_000) for partitions in (1, 16, 256)),
    *(Shape(KIB, partitions, MIB, 1_000_000_000) for partitions in (1, 16, 256)),
    *(Shape(100 * KIB, partitions, MIB, 2_000_000_000) for partitions in (1, 16, 256)),
    Shape(KIB, 1, MIB, 1_000_000_000, idempotent=False),
    Shape(KIB, 16, 16 * KIB, 200_000_000),
    Shape(KIB, 16, 16 * KIB, 500_000_000, idempotent=False),
)
BROKER_ALONE = (
    Shape(KIB, 16, MIB, 500_000_000),
    Shape(KIB, 16, 16 * KIB, 200_000_000),
    Shape(KIB, 16, 16 * KIB, 300_000_000, idempotent=False),
)
"""Shapes measured again on a store in memory, to separate the broker's cost from the disk's."""
ROLLING = (
    Shape(100, 16, MIB, 100_000_000),
    Shape(KIB, 16, MIB, 1_000_000_000),
    Shape(100 * KIB, 256, MIB, 2_000_000_000),
)
"""Shapes measured again with a broker that rolls the records meanwhile."""
WAL_ALONE = {**ONLY_ON_REQUEST, **WITHOUT_MERGES}
"""Settings of a broker that does only what Kafka does: it neither rolls nor merges objects."""
ROLL_BYTES = 4 * MIB
ROLLING_SOON = {"roll.bytes": ROLL_BYTES, "roll.min.bytes": ROLL_BYTES, "roll.spread.ms": 0}
"""Settings with which these loads suffice for rolls, and last long enough.

The defaults wait for more records, and spread rolls over half a minute.
"""


@dataclass(frozen=True, slots=True)
class Measured:
    """One direction of one shape against one target. Rates are of the records' own bytes."""

    megabytes_a_second: float
    cpu_seconds_a_gb: float
    kernel_seconds_a_gb: float
    peak_memory_mb: float
    puts_a_gb: float
    gets_a_gb: float
    bytes_put_a_byte: float


def measure(targets: Sequence[Target], shape: Shape, run: int) -> dict[str, dict[str, Measured]]:
    """Produce, then consume, against each target in turn: by target's name and direction."""
    found: dict[str, dict[str, Measured]] = {}
    for target in targets:
        topic = f"bench.{shape.record_bytes}.{shape.partitions}.{shape.batch_bytes}.{run}"
        target.create_topic(topic, shape.partitions)
        options = {"partitions": shape.partitions, "records": shape.records}
        found[target.name] = {
            "produce": _direction(
                target,
                "produce",
                topic,
                record_bytes=shape.record_bytes,
                batch_bytes=shape.batch_bytes,
                idempotent=shape.idempotent,
                **options,
            ),
            "consume": _direction(
                target, "consume", topic, record_bytes=shape.record_bytes, **options
            ),
        }
    return found


def _direction(target: Target, kind: str, topic: str, **options: int | bool) -> Measured:
    target.reset_peak_memory()
    before = target.usage()
    result = target.load(kind, topic, **options)
    used = target.usage().since(before)
    gigabytes = result["bytes"] / GB
    return Measured(
        result["bytes"] / 1e6 / result["seconds"],
        used.cpu_seconds / gigabytes,
        used.kernel_seconds / gigabytes,
        target.peak_memory_mb(),
        used.puts / gigabytes,
        used.gets / gigabytes,
        used.bytes_put / result["bytes"],
    )
