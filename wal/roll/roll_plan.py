"""Which partitions' records are to go from the WAL into the table now. Pure.

A partition is rolled when somebody asks for it, when it has enough for a file, or when the oldest
of what it has waits for too long. What is smaller and younger is carried over. Where all that is
carried over is too much for the WAL, the largest go, as far as they are worth a file.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from tidelog.identifiers import TopicPartition


class RollReason(Enum):
    """Why a partition is rolled; the values are for metrics and logs."""

    REQUEST = "request"
    SIZE = "size"
    AGE = "age"
    PRESSURE = "pressure"


class Backlog(NamedTuple):
    """What a partition has in the WAL that could be in the table: below the last stable offset."""

    partition: TopicPartition
    wal_bytes: int
    """As stored."""
    extents: int
    """Places where they lie."""
    age_ms: int
    """Of the oldest."""
    bytes_max: int
    """With so much it is rolled."""
    age_ms_max: int
    """Older than this it is rolled, however small."""
    is_requested: bool
    """Whether somebody waits for it."""

    @property
    def fullness(self) -> float:
        """1 where it is due for its size."""
        return self.wal_bytes / self.bytes_max

    @property
    def lateness(self) -> float:
        """1 where it is due for its age."""
        return self.age_ms / self.age_ms_max

    @property
    def urgency(self) -> float:
        """1 where it is due. It grows until it is rolled, so nobody waits for ever."""
        return max(self.fullness, self.lateness)


@dataclass(frozen=True, slots=True)
class RollLimits:
    """What holds for all partitions together."""

    wal_bytes_max: int
    """What partitions may have in the WAL before they are due, all of them together."""
    worth_bytes: int
    """Less than this is not worth a file, unless it is asked for or too old."""


class Roll(NamedTuple):
    """What of a partition is to be rolled, and why."""

    backlog: Backlog
    reason: RollReason

    @property
    def partition(self) -> TopicPartition:
        """Whose it is."""
        return self.backlog.partition


def plan_rolls(backlogs: Iterable[Backlog], limits: RollLimits) -> list[Roll]:
    """The partitions to be rolled, the most urgent first, those first for which somebody waits.

    The plan is the same in whatever order the backlogs come.
    """
    ordered = sorted(backlogs, key=lambda backlog: (-backlog.urgency, backlog.partition))
    asked = [backlog for backlog in ordered if backlog.is_requested]
    due = [each for each in ordered if not each.is_requested and each.urgency >= 1]
    rest = [each for each in ordered if not each.is_requested and each.urgency < 1]
    return [
        *(Roll(each, RollReason.REQUEST) for each in asked),
        *(
            Roll(each, RollReason.SIZE if each.fullness >= each.lateness else RollReason.AGE)
            for each in due
        ),
        *(Roll(each, RollReason.PRESSURE) for each in _pressed(rest, limits)),
    ]


def _pressed(rest: list[Backlog], limits: RollLimits) -> list[Backlog]:
    """The largest of what would be carried over, until the others are few enough."""
    left = sum(each.wal_bytes for each in rest)
    if left <= limits.wal_bytes_max:
        return []
    chosen = []
    for each in sorted(rest, key=lambda backlog: (-backlog.wal_bytes, backlog.partition)):
        if left <= limits.wal_bytes_max or each.wal_bytes < limits.worth_bytes:
            break
        chosen.append(each)
        left -= each.wal_bytes
    return chosen


def read_together(
    rolls: Sequence[Roll], bytes_max: int, extents_max: int
) -> Iterator[Sequence[Roll]]:
    """The rolls in groups that have so little that it is read at a time, since small partitions
    lie side by side in the same objects. A larger one is by itself."""
    group: list[Roll] = []
    size = extents = 0
    for roll in rolls:
        size, extents = size + roll.backlog.wal_bytes, extents + roll.backlog.extents
        if group and (size > bytes_max or extents > extents_max):
            yield group
            group = []
            size, extents = roll.backlog.wal_bytes, roll.backlog.extents
        group.append(roll)
    if group:
        yield group
