"""What filters leave to be read: topics, partitions, offsets, times. Pure.

Only whole ranges, segments and row groups are left out; Spark applies the filters to the rows.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, NamedTuple

from tidelog.records.rows import MICROSECONDS_PER_MILLISECOND
from tidelog.spark_source.ranges import OffsetRange
from tidelog.storage.segment import Segment

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_LOWEST, _HIGHEST = -(2**63), 2**63 - 1


class Comparison(NamedTuple):
    """A filter: a column, one of `=`, `<`, `<=`, `>`, `>=`, `in`, and a value or a list."""

    column: str
    operator: str
    value: Any


@dataclass(frozen=True, slots=True)
class Pruning:
    """What may be of use. Ranges are inclusive."""

    topics: frozenset[str] | None = None
    partitions: frozenset[int] | None = None
    offset_min: int = 0
    offset_max: int = _HIGHEST
    timestamp_min: int | None = None
    """Microseconds."""
    timestamp_max: int | None = None

    def cut(self, wanted: OffsetRange) -> OffsetRange | None:
        """What remains of a range; None for nothing."""
        limits = wanted.limits
        if self.topics is not None and limits.topic not in self.topics:
            return None
        if self.partitions is not None and limits.partition.partition not in self.partitions:
            return None
        start, end = max(wanted.start, self.offset_min), min(wanted.end, self.offset_max + 1)
        return OffsetRange(limits, start, end) if start < end else None

    def may_hold(self, segment: Segment) -> bool:
        """Whether a segment may have a row of the times."""
        if self.timestamp_min is None and self.timestamp_max is None:
            return True
        earliest, latest = segment.timestamp_min, segment.timestamp_max
        if earliest is None or latest is None:
            return False
        low, high = self.times
        microseconds = MICROSECONDS_PER_MILLISECOND
        return earliest * microseconds <= high and (latest + 1) * microseconds > low

    @property
    def times(self) -> tuple[int, int]:
        """The first and the last microsecond."""
        low, high = self.timestamp_min, self.timestamp_max
        return _LOWEST if low is None else low, _HIGHEST if high is None else high


NOTHING_PRUNED = Pruning()


def prune(comparisons: Iterable[Comparison]) -> Pruning:
    """What remains where all of these hold; those that do not help are passed over."""
    found = NOTHING_PRUNED
    for column, operator, value in comparisons:
        values = list(value) if operator == "in" else [value]
        match column:
            case "topic" if operator in {"=", "in"} and _all(values, str):
                found = replace(found, topics=_both(found.topics, values))
            case "partition" if operator in {"=", "in"} and _all(values, int):
                found = replace(found, partitions=_both(found.partitions, values))
            case "offset" if values and _all(values, int):
                low, high = _range(operator, values)
                found = replace(
                    found,
                    offset_min=max(found.offset_min, low),
                    offset_max=min(found.offset_max, high),
                )
            case "timestamp" if values and all(_is_instant(each) for each in values):
                low, high = _range(operator, [_microseconds(each) for each in values])
                before, after = found.times
                found = replace(
                    found, timestamp_min=max(low, before), timestamp_max=min(high, after)
                )
    return found


def _all(values: Collection[Any], kind: type) -> bool:
    return all(isinstance(value, kind) for value in values)


def _both(known: frozenset[Any] | None, values: Iterable[Any]) -> frozenset[Any]:
    return frozenset(values) if known is None else known & frozenset(values)


def _range(operator: str, values: list[int]) -> tuple[int, int]:
    """The least and the greatest value that an operator admits."""
    match operator:
        case "<":
            return _LOWEST, values[0] - 1
        case "<=":
            return _LOWEST, values[0]
        case ">":
            return values[0] + 1, _HIGHEST
        case ">=":
            return values[0], _HIGHEST
    return min(values), max(values)


def _is_instant(value: Any) -> bool:
    # One without a zone could be of any.
    return isinstance(value, datetime) and value.tzinfo is not None


def _microseconds(value: datetime) -> int:
    since = value - _EPOCH
    return (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds
