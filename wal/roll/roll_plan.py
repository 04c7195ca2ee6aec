"""Decides which partitions are rolled from the WAL into their tables now. Pure.

A partition is rolled if a client asks for it, if it has enough bytes for a file, or if its oldest
record is too old. The WAL keeps smaller and younger backlogs. If these together are too large, the
largest are rolled, as far as they are worth a file.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from tidelog.identifiers import TopicPartition


class RollReason(Enum):
    """The reason of a roll; the values appear in metrics and logs."""

    REQUEST = "request"
    SIZE = "size"
    AGE = "age"
    PRESSURE = "pressure"


class Backlog(NamedTuple):
    """A partition's records in the WAL below the last stable offset, which a roll can move."""

    partition: TopicPartition
    wal_bytes: int
    """Their bytes as stored."""
    extents: int
    """The number of their extents."""
    age_ms: int
    """The age of the oldest record."""
    bytes_max: int
    """The partition is due from this size on."""
    age_ms_max: int
    """The partition is due from this age on, whatever its size."""
    is_requested: bool
    """Whether a client waits for the roll."""

    @property
    def fullness(self) -> float:
        """The size as a share of `bytes_max`; due from 1 on."""
        return self.wal_bytes / self.bytes_max

    @property
    def lateness(self) -> float:
        """The age as a share of `age_ms_max`; due from 1 on."""
        return self.age_ms / self.age_ms_max

    @property
    def urgency(self) -> float:
        """The larger of both shares; due from 1 on. It grows until the roll comes."""
        return max(self.fullness, self.lateness)


@dataclass(frozen=True, slots=True)
class RollLimits:
    """The limits of all partitions together."""

    wal_bytes_max: int
    """The bytes that all partitions together may keep in the WAL before they are due."""
    worth_bytes: int
    """A smaller backlog is not worth a file, unless it is requested or too old."""


class Roll(NamedTuple):
    """A planned roll and its reason."""

    backlog: Backlog
    reason: RollReason

    @property
    def partition(self) -> TopicPartition:
        """The partition to roll."""
        return self.backlog.partition


def plan_rolls(backlogs: Iterable[Backlog], limits: RollLimits) -> list[Roll]:
    """The rolls that are due: requested ones first, then by urgency.

    The order of `backlogs` does not change the plan.
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
        *(Roll(each, RollReason.PRESSURE) for each in _largest_under_pressure(rest, limits)),
    ]


def _largest_under_pressure(rest: list[Backlog], limits: RollLimits) -> list[Backlog]:
    """The largest backlogs that are not due, until the rest is within `wal_bytes_max`."""
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
    """The rolls in groups that are read together, within both limits. A larger roll is alone.

    Small partitions lie side by side in the same objects.
    """
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
