"""How fast what is due goes from the WAL into tables: no faster than it has to. Pure.

A roll that goes as fast as it can has cores and disk busy for as long as it lasts, and whoever
produces meanwhile waits behind it now and then. What is due is not in a hurry, though: the work is
spread over some time, in pieces with pauses between them, so that few acknowledgements meet it. The
more there is to do, the shorter the pauses, down to none: rolls never fall behind for their pace.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import inf

from tidelog.wal.roll_plan import Backlog, Roll

MIB = 1024 * 1024

SEGMENT_BYTES = MIB
"""What it takes to begin and to end a partition's roll, as the bytes that go into the table in the
same time."""
BYTES_A_SECOND_MIN = 8 * MIB
"""A few hundredths of what a core can do: slower than this nobody feels less of it."""
AGE_SHARE_MAX = 1 / 8
"""Of the age at which records are due: what waits for so long anyway may wait that much longer."""


def seconds_for(backlogs: Iterable[Backlog], seconds_max: float) -> float:
    """Over how long rolls may be spread: at most `seconds_max`, and not as long as would be felt by
    whoever wants records in the table when they have reached their age. `backlogs`: of all who may
    have to wait until these rolls are done."""
    age_ms_max = min((backlog.age_ms_max for backlog in backlogs), default=inf)
    return min(seconds_max, AGE_SHARE_MAX * age_ms_max / 1000)


class RollPace:
    """The pace of rolls that are done one after the other: when the next piece may begin. Times are
    of a monotonic clock, in seconds."""

    def __init__(self, rolls: Iterable[Roll], seconds: float) -> None:
        """Spread these over so long, which may be 0."""
        work = sum(roll.backlog.wal_bytes + SEGMENT_BYTES for roll in rolls)
        self._bytes_a_second = max(BYTES_A_SECOND_MIN, work / seconds) if seconds > 0 else inf
        self._next_at = -inf

    def seconds_to_wait(self, now: float) -> float:
        """Until the next piece may begin."""
        return max(0.0, self._next_at - now)

    def begin(self, now: float) -> None:
        """A piece begins. What was late is not made up for by haste."""
        self._next_at = max(self._next_at, now)

    def note(self, work_bytes: int) -> None:
        """So much was done since `begin`."""
        self._next_at += work_bytes / self._bytes_a_second
