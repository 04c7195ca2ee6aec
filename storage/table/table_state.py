"""The state of a topic's table: its segments, and its end for each partition. Pure.

A commit that removes no segment costs the same however many segments there are.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tidelog.errors import CorruptObject
from tidelog.identifiers import TopicId
from tidelog.storage.segment.segment import Segment, SegmentName
from tidelog.storage.table.table_change import Commit, PartitionChange

NO_VERSION = -1
"""The version of a table without a commit."""
_NEVER = -(2**63)
_UNDATED = -1
"""Kafka's timestamp for a record without one."""


@dataclass(frozen=True, slots=True)
class CommitRefusal:
    """Why a change is invalid in a state (rules E1 to E3). Nothing was changed."""

    partition: int
    reason: str


@dataclass(frozen=True, slots=True)
class TableSegment:
    segment: Segment
    added_ms: int
    """The time of the commit that added it, by its writer's clock."""


@dataclass(slots=True)
class PartitionTable:
    """One partition's part of the table: its segments by offset."""

    next_offset: int = 0
    """The first offset that is not in the table. Lower offsets are in it or have no record."""
    _segments: list[TableSegment] = field(default_factory=list)
    _bases: list[int] = field(default_factory=list)
    _times: array[int] = field(default_factory=lambda: array("q"))
    """The latest timestamp of each segment, -1 for none as in Kafka."""
    _latest: list[int] = field(default_factory=list)
    """The latest timestamp of each segment and all before it."""

    @property
    def segments(self) -> Sequence[TableSegment]:
        """All segments, ascending. Callers must not change them."""
        return self._segments

    def at(self, offset: int) -> Segment | None:
        """The segment that covers an offset, or the first one above it; None if there is neither.

        A covering segment's rows may end below the offset.
        """
        index = bisect_right(self._bases, offset) - 1
        if index < 0 or self._segments[index].segment.name.last_offset < offset:
            index += 1
        return self._segments[index].segment if index < len(self._segments) else None

    def after(self, name: SegmentName) -> Segment | None:
        """The next segment after one that is, or was, in the table."""
        index = bisect_right(self._bases, name.last_offset)
        return self._segments[index].segment if index < len(self._segments) else None

    def since(self, timestamp_ms: int) -> Segment | None:
        """The first segment with a row of this time or later."""
        index = bisect_left(self._latest, timestamp_ms)
        return self._segments[index].segment if index < len(self._segments) else None

    def latest_first(self, offset: int) -> Iterator[Segment]:
        """The segments with a row at or above an offset, latest timestamp first, ties in offset
        order.

        Callers take few, mostly one: each costs a pass, where a sort would order all.
        """
        segments = self._segments
        first = max(0, bisect_right(self._bases, offset) - 1)
        times = np.array(self._times[first:], np.int64)
        for _ in range(len(times)):
            index = int(times.argmax())
            times[index] = _NEVER
            segment = segments[first + index].segment
            if segment.last_row >= offset:
                yield segment

    def holds(self, name: SegmentName) -> bool:
        """True if exactly this segment is in the table."""
        index = bisect_left(self._bases, name.base_offset)
        return index < len(self._bases) and self._segments[index].segment.name == name

    def covers(self, first: int, last: int) -> Iterator[SegmentName]:
        """The segments that cover any offset from `first` to `last`."""
        index = max(0, bisect_right(self._bases, first) - 1)
        while index < len(self._bases) and self._bases[index] <= last:
            name = self._segments[index].segment.name
            if name.last_offset >= first:
                yield name
            index += 1

    def copy(self) -> PartitionTable:
        return PartitionTable(
            next_offset=self.next_offset,
            _segments=self._segments[:],
            _bases=self._bases[:],
            _times=self._times[:],
            _latest=self._latest[:],
        )

    def append(self, stored: TableSegment) -> None:
        """Add a segment above all others."""
        latest = stored.segment.timestamp_max
        before = self._latest[-1] if self._latest else _NEVER
        self._segments.append(stored)
        self._bases.append(stored.segment.name.base_offset)
        self._times.append(_UNDATED if latest is None else latest)
        self._latest.append(max(before, _NEVER if latest is None else latest))

    def replace(self, removed: set[SegmentName], added: Sequence[TableSegment]) -> None:
        """Replace some segments by others."""
        kept = [stored for stored in self._segments if stored.segment.name not in removed]
        kept += added
        kept.sort(key=lambda stored: stored.segment.name.base_offset)
        self._segments, self._bases, self._latest = [], [], []
        self._times = array("q")
        for stored in kept:
            self.append(stored)


class TableState:
    """A table at one version. Its single owner changes it, through `apply`."""

    def __init__(self, topic_id: TopicId) -> None:
        self.topic_id = topic_id
        self.version = NO_VERSION
        self.metadata: dict[str, Any] = {}
        """The table's metadata from its first commit (Delta Lake's `metaData`)."""
        self.removed: dict[SegmentName, int] = {}
        """Removed segments and their removal times, kept while readers may still use an older
        version.
        """
        self._partitions: dict[int, PartitionTable] = {}
        self._segments = 0

    @property
    def segment_count(self) -> int:
        return self._segments

    @property
    def partitions(self) -> Sequence[int]:
        """The table's partitions, ascending."""
        return sorted(self._partitions)

    def partition(self, partition: int) -> PartitionTable:
        """One partition's part. Callers must not change it."""
        return self._partitions.get(partition, PartitionTable())

    def refusal(self, changes: Sequence[PartitionChange]) -> CommitRefusal | None:
        """Why a commit of these changes would be invalid now; None if it is valid."""
        if len({change.partition for change in changes}) != len(changes):
            raise ValueError("a commit changes each partition once")
        for change in changes:
            reason = refusal_of(self.partition(change.partition), change)
            if reason is not None:
                return CommitRefusal(change.partition, reason)
        return None

    def copy(self) -> TableState:
        """A copy that later commits do not change."""
        found = TableState(self.topic_id)
        found.version = self.version
        found.metadata = self.metadata
        found.removed = dict(self.removed)
        found._partitions = {number: each.copy() for number, each in self._partitions.items()}
        found._segments = self._segments
        return found

    def apply(self, key: str, version: int, commit: Commit) -> None:
        """Advance to the next version.

        Each commit was checked before its put, so an invalid one raises CorruptObject, which names
        `key`.
        """
        if version != self.version + 1 or (commit.metadata is None) != (version > 0):
            raise CorruptObject(key, f"it does not continue version {self.version} of its table")
        refusal = self.refusal(commit.changes)
        if refusal is not None:
            raise CorruptObject(key, f"partition {refusal.partition}: {refusal.reason}")
        for change in commit.changes:
            self._apply(change, commit.timestamp_ms)
        if commit.metadata is not None:
            self.metadata = commit.metadata
        self.version = version

    def restore(self, partition: int, next_offset: int, segments: Sequence[TableSegment]) -> None:
        """Set one partition's part from a checkpoint.

        ValueError if segments overlap or reach beyond the end.
        """
        table = PartitionTable(next_offset)
        covered = 0
        for stored in sorted(segments, key=lambda stored: stored.segment.name.base_offset):
            name = stored.segment.name
            if name.base_offset < covered or name.last_offset >= next_offset:
                raise ValueError(f"segment {name.path} overlaps, or ends beyond {next_offset}")
            covered = name.last_offset + 1
            table.append(stored)
        self._segments += len(segments) - len(self.partition(partition).segments)
        self._partitions[partition] = table

    def forget_removed(self, before_ms: int) -> None:
        """Forget segments removed before a time, which no reader uses any more."""
        self.removed = {name: time for name, time in self.removed.items() if time >= before_ms}

    def _apply(self, change: PartitionChange, now_ms: int) -> None:
        table = self._partitions.setdefault(change.partition, PartitionTable())
        if change.removed:
            gone = set(change.removed)
            sources = [stored for stored in table.segments if stored.segment.name in gone]
            rewritten = [
                TableSegment(segment, _added_ms(segment.name, sources, now_ms))
                for segment in change.rewritten
            ]
            table.replace(gone, rewritten)
            self.removed |= dict.fromkeys(change.removed, now_ms)
            self._segments += len(rewritten) - len(change.removed)
        for segment in change.appended:
            table.append(TableSegment(segment, now_ms))
        self._segments += len(change.appended)
        if change.advance is not None:
            table.next_offset = change.advance.next_offset


def _added_ms(name: SegmentName, sources: Sequence[TableSegment], now_ms: int) -> int:
    """When the newest source of a rewritten segment was added: a rewrite makes no record younger.

    Records without timestamps are as old as their segment. `now_ms`: for one without a source.
    """
    times = (
        stored.added_ms
        for stored in sources
        if stored.segment.name.base_offset <= name.last_offset
        and stored.segment.name.last_offset >= name.base_offset
    )
    return max(times, default=now_ms)


def refusal_of(table: PartitionTable, change: PartitionChange) -> str | None:
    """Why the change is not valid for this state of the partition (E1, E3); None if it is."""
    if change.advance is None and change.appended:
        return "segments are appended, but the table does not advance"
    if change.advance is not None:
        base, following = change.advance
        if base != table.next_offset:
            return f"the table ends at offset {table.next_offset}, not at {base}"
        if following <= base:
            return f"from offset {base} to {following} is no advance"
        reason = _disorder(change, change.appended, base, following)
        if reason is not None:
            return reason
    return _wrong_replacement(table, change)


def _wrong_replacement(table: PartitionTable, change: PartitionChange) -> str | None:
    removed = set(change.removed)
    if len(removed) != len(change.removed):
        return "a segment is removed twice"
    for name in change.removed:
        if not table.holds(name):
            return f"segment {name.path} is not in the table"
    if not change.rewritten:
        return None
    if not removed:
        return "segments take the place of none"
    first = min(name.base_offset for name in removed)
    last = max(name.last_offset for name in removed)
    for segment in change.rewritten:
        for name in table.covers(segment.name.base_offset, segment.name.last_offset):
            if name not in removed:
                return f"segment {segment.path} overlaps {name.path}, which stays"
    return _disorder(change, change.rewritten, first, last + 1)


def _disorder(
    change: PartitionChange, segments: Sequence[Segment], first: int, following: int
) -> str | None:
    """Why segments are not the partition's, in order and within [first, following); or None."""
    covered = first
    for segment in segments:
        name = segment.name
        if name.partition != change.partition:
            return f"segment {name.path} is another partition's"
        if name.base_offset < covered or name.last_offset >= following:
            return f"segment {name.path} does not lie in offsets {covered} to {following - 1}"
        covered = name.last_offset + 1
    return None
