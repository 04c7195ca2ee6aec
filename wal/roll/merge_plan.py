"""Which of the WAL's objects are to be merged, so that few hold what no table has yet. Pure.

Partitions that are too small to be rolled keep a little in every object. Where the old objects with
anything live are too many, those with the least of it are copied into one. So a byte is copied
about as often as the logarithm of what its partition carries over, not once a pass.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from tidelog.identifiers import TopicPartition
from tidelog.wal.log.extents import Extent, Extents

MERGED_EXTENT_BYTES: Final = 1024 * 1024
"""A merged extent grows up to here: what is read of a partition at a time."""


@dataclass(frozen=True, slots=True)
class WalMergeLimits:
    """When and how much is merged."""

    objects_max: int
    """With more old objects than this that hold anything live, some are merged; at least 2."""
    bytes_max: int
    """What is copied at a time."""
    sources_max: int
    """From how many objects."""

    @property
    def worth_bytes(self) -> int:
        """Objects with more live bytes are left alone: they are few for what they hold."""
        return self.bytes_max // 4


class PlannedRun(NamedTuple):
    """Extents of one partition that follow each other, which are to become one."""

    partition: TopicPartition
    extents: Sequence[Extent]


class MergePlan(NamedTuple):
    """What to copy into one object."""

    runs: Sequence[PlannedRun]
    objects: int
    """How many objects nothing will refer to then."""
    size_bytes: int
    old_objects: int
    """How many of all that may be planned next hold anything live."""


def plan_merge(
    logs: Mapping[TopicPartition, Extents],
    is_old: Callable[[str], bool],
    damaged: Container[str],
    limits: WalMergeLimits,
) -> MergePlan | None:
    """What to merge now; None if the objects are few enough, or would not become fewer.

    `logs`: where the partitions' durable batches lie. `is_old`: whether an object may go as soon as
    nothing refers to it. `damaged`: objects that cannot be read.
    """
    live: dict[str, int] = {}
    for extents in logs.values():
        for key, length in zip(extents.keys, extents.columns()[4], strict=True):
            live[key] = live.get(key, 0) + length
    old = sorted((size, key) for key, size in live.items() if is_old(key))
    if len(old) <= limits.objects_max:
        return None
    chosen: set[str] = set()
    size_bytes = 0
    for size, key in old:
        if size > limits.worth_bytes or size_bytes + size > limits.bytes_max:
            break
        if len(chosen) == limits.sources_max:
            break
        # One comes for those that go.
        if len(old) - len(chosen) + 1 <= limits.objects_max // 2:
            break
        if key not in damaged:
            chosen.add(key)
            size_bytes += size
    if len(chosen) < 2:
        return None
    runs = [run for partition, extents in logs.items() for run in _runs(partition, extents, chosen)]
    return MergePlan(runs, len(chosen), size_bytes, len(old))


def _runs(
    partition: TopicPartition, extents: Extents, chosen: Container[str]
) -> Sequence[PlannedRun]:
    """A partition's extents in the chosen objects: those that follow each other together, up to the
    size of a merged extent."""
    runs: list[PlannedRun] = []
    current: list[Extent] = []
    size_bytes = 0
    for number, key in enumerate(extents.keys):
        if key not in chosen or size_bytes >= MERGED_EXTENT_BYTES:
            if current:
                runs.append(PlannedRun(partition, current))
            current, size_bytes = [], 0
        if key in chosen:
            extent = extents[number]
            current.append(extent)
            size_bytes += extent.length
    if current:
        runs.append(PlannedRun(partition, current))
    return runs
