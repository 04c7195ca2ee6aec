"""The rows that a reader of one topic selects: by partition, offset and time. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final, TypeAlias

from tidelog.bucket.views.rows import Times
from tidelog.errors import InvalidConfiguration
from tidelog.records.row_columns import MICROSECONDS_PER_MILLISECOND
from tidelog.records.validate.rules import TIMESTAMP_MS_MAX

OFFSETS_END: Final = 2**63 - 1
OffsetRange: TypeAlias = tuple[int | None, int | None]
"""The offsets from the first to below the second; None is the log's end on that side."""
Offsets: TypeAlias = OffsetRange | Mapping[int, OffsetRange]
"""One range for all partitions, or ranges by partition."""


@dataclass(frozen=True, slots=True)
class RowSelection:
    """A selection of rows. Use `selected` to make one."""

    partitions: frozenset[int] | None
    by_partition: Mapping[int, OffsetRange] | None
    for_all: OffsetRange
    times: Times

    def takes(self, number: int) -> bool:
        """Whether the partition is selected."""
        if self.partitions is not None:
            return number in self.partitions
        return self.by_partition is None or number in self.by_partition

    def range_of(self, number: int) -> tuple[int, int]:
        """A partition's offsets, the end exclusive."""
        start, end = (self.by_partition or {}).get(number, self.for_all)
        return start or 0, OFFSETS_END if end is None else end

    def check_partitions(self, topic: str, count: int) -> None:
        """Raise InvalidConfiguration if the selection names a partition that does not exist."""
        for number in sorted({*(self.partitions or ()), *(self.by_partition or ())}):
            if not 0 <= number < count:
                raise InvalidConfiguration(
                    f"{topic} has no partition {number}, only {count} from 0 on"
                )


def selected(
    partitions: Iterable[int] | None = None,
    offsets: Offsets = (None, None),
    since: datetime | int | None = None,
    until: datetime | int | None = None,
) -> RowSelection:
    """A checked selection. Times are datetimes or milliseconds since 1970.

    Raises InvalidConfiguration.
    """
    by_partition, for_all = (
        (offsets, (None, None)) if isinstance(offsets, Mapping) else (None, offsets)
    )
    for start, end in (for_all, *(by_partition or {}).values()):
        if start is not None and end is not None and start > end:
            raise InvalidConfiguration(f"offsets: {start} is above {end}; give (first, end)")
    return RowSelection(
        None if partitions is None else frozenset(partitions),
        by_partition,
        for_all,
        Times(_milliseconds("since", since), _milliseconds("until", until)),
    )


def _milliseconds(name: str, time: datetime | int | None) -> int | None:
    if isinstance(time, int) and abs(time) > TIMESTAMP_MS_MAX:
        raise InvalidConfiguration(
            f"{name}: {time} is no time in milliseconds since 1970, of which none is beyond"
            f" {TIMESTAMP_MS_MAX}; leave it out for all times"
        )
    if time is None or isinstance(time, int):
        return time
    if time.tzinfo is None:
        raise InvalidConfiguration(
            f"{name}: {time} has no time zone; give it one, such as datetime.UTC"
        )
    since_epoch = time.astimezone(UTC) - datetime(1970, 1, 1, tzinfo=UTC)
    microseconds = (since_epoch.days * 86_400 + since_epoch.seconds) * 1_000_000
    # Timestamps are whole milliseconds: round up to the first one at or after the time.
    return -(-(microseconds + since_epoch.microseconds) // MICROSECONDS_PER_MILLISECOND)
