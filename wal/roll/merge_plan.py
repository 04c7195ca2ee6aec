"""Plans merges of WAL objects, so that few objects hold live batches. Pure.

A batch is live until its partition's table has it. Partitions that are too small to be rolled keep
some live bytes in every object. If too many old objects have live bytes, the merger copies those
with the fewest into one. So the copies of a byte grow with the logarithm of its partition's
backlog, and not with the number of passes.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from tidelog.identifiers import TopicPartition
from tidelog.wal.log.extents import Extent, Extents

MERGED_EXTENT_BYTES: Final = 1024 * 1024
"""The size of a merged extent. Readers read a whole extent at a time."""


@dataclass(frozen=True, slots=True)
class WalMergeLimits:
    """The limits of merges."""

    objects_max: int
    """If more old objects than this have live bytes, some are merged; at least 2."""
    bytes_max: int
    """The bytes that one merge copies."""
    sources_max: int
    """The objects that one merge copies from."""

    @property
    def worth_bytes(self) -> int:
        """Objects with more live bytes stay: copying them costs much and removes few objects."""
        return self.bytes_max // 4


class PlannedRun(NamedTuple):
    """Consecutive extents of one partition, which the merge joins to one."""

    partition: TopicPartition
    extents: Sequence[Extent]


class MergePlan(NamedTuple):
    """The extents that one merge copies into one object."""

    runs: Sequence[PlannedRun]
    objects: int
    """The number of objects that have no live bytes after the merge."""
    size_bytes: int
    old_objects: int
    """The number of old objects with live bytes, before the merge."""


def plan_merge(
    logs: Mapping[TopicPartition, Extents],
    is_old: Callable[[str], bool],
    damaged: Container[str],
    limits: WalMergeLimits,
) -> MergePlan | None:
    """The next merge; None if the objects are few enough, or if a merge would not reduce them.

    `logs`: the extents of the partitions' durable batches. `is_old`: whether the collector may
    delete an object as soon as it has no live bytes. `damaged`: objects that cannot be read.
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
        # The merged object counts too.
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
    """A partition's extents in the chosen objects, in consecutive runs.

    A run ends with the extent by which it reaches the size of a merged extent.
    """
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
