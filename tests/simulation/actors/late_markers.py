"""Markers that arrive again much later, as a network between coordinators and leaders repeats them.

Here coordinator and leader are in one broker, and no marker is lost or repeated between them. To
try the protection nevertheless, this actor writes some markers a second time, later.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from tests.simulation.world.patches import patched
from tidelog.broker.coordinate.marker_writer import MarkerWriter
from tidelog.broker.partitions.log_writer import EndedTransaction
from tidelog.broker.partitions.partitions import Partition, PartitionError
from tidelog.errors import TidelogError
from tidelog.identifiers import Slot

_PROBABILITY = 0.2
_LATE_SECONDS_MAX = 3.0


@contextmanager
def repeated_markers(seed: int, counts: Counter[str]) -> Iterator[None]:
    """Let some markers arrive twice while the context lasts."""
    chance = random.Random(f"late markers {seed}")
    right = MarkerWriter.write

    def write(self: MarkerWriter, partition: Partition, ended: EndedTransaction) -> Slot:
        if chance.random() < _PROBABILITY:
            delay = chance.uniform(0.0, _LATE_SECONDS_MAX)
            asyncio.get_running_loop().call_later(delay, again, self, partition, ended)
        return right(self, partition, ended)

    def again(self: MarkerWriter, partition: Partition, ended: EndedTransaction) -> None:
        counts["markers repeated"] += 1
        try:
            right(self, partition, ended)
        except (PartitionError, TidelogError):
            counts["repeated markers refused"] += 1

    with patched([(MarkerWriter, "write", write)]):
        yield
