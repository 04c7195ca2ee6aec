"""The pace of background work: rolls and merges. Pure.

Work at full speed keeps cores and disk busy, and producers wait behind it. So background work is
spread over the available time, in pieces with pauses between them. More work makes shorter pauses,
down to none.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum
from math import inf

from tidelog.wal.roll.roll_plan import Backlog, Roll, RollReason

MIB = 1024 * 1024

SEGMENT_BYTES = MIB
"""The fixed cost of a segment, as the bytes that could be rolled in the same time."""
BYTES_A_SECOND_MIN = 8 * MIB
"""The lowest rate: a few hundredths of a core."""
OVERDUE_SHARE = 1 / 8
"""How far a roll may exceed the age at which its records are due, as a share of that age."""


class RollPriority(IntEnum):
    """The priority of a due roll, the most urgent first."""

    REQUESTED = 0
    """A client waits for it."""
    OVERDUE = 1
    """It exceeds its age by more than OVERDUE_SHARE."""
    BACKGROUND = 2


def priority_of(roll: Roll) -> RollPriority:
    if roll.reason is RollReason.REQUEST:
        return RollPriority.REQUESTED
    return RollPriority.BACKGROUND if seconds_left(roll.backlog) > 0 else RollPriority.OVERDUE


def rate_for(due: Iterable[Roll], seconds: float) -> float:
    """The rate in WAL bytes per second that spreads the due rolls over `seconds`.

    It is higher if a roll would become overdue earlier, and unlimited if a roll is requested or
    overdue.
    """
    rate, work = 0.0, 0
    for roll in sorted(due, key=lambda roll: seconds_left(roll.backlog)):
        if priority_of(roll) is not RollPriority.BACKGROUND:
            return inf
        work += roll.backlog.wal_bytes + SEGMENT_BYTES
        left = min(seconds, seconds_left(roll.backlog))
        rate = max(rate, rate_of(work, left, BYTES_A_SECOND_MIN))
    return max(rate, BYTES_A_SECOND_MIN)


def seconds_left(backlog: Backlog) -> float:
    """Seconds until the backlog is overdue."""
    return ((1 + OVERDUE_SHARE) * backlog.age_ms_max - backlog.age_ms) / 1000


def rate_of(work: float, seconds: float, rate_min: float) -> float:
    """The rate per second that finishes `work` in `seconds`, at least `rate_min`.

    It is infinite if `seconds` is 0. A rate below `rate_min` would not reduce the load noticeably.
    """
    return max(rate_min, work / seconds) if seconds > 0 else inf


class Throttle:
    """Decides when the next piece of work may begin.

    Times are seconds of a monotonic clock. Work has any unit that is proportional to its cost.
    """

    def __init__(self, rate: float) -> None:
        """`rate`: work per second; infinite for no pauses."""
        self._rate = rate
        self._next_at = -inf

    def renew(self, rate: float, now: float) -> None:
        """Change the rate, and scale the current pause."""
        left = self.seconds_to_wait(now)
        if left:
            self._next_at = now + left * self._rate / rate
        self._rate = rate

    def seconds_to_wait(self, now: float) -> float:
        """Seconds until the next piece may begin."""
        return max(0.0, self._next_at - now)

    def begin(self, now: float) -> None:
        """Begin a piece now, or as soon as it may. A late piece does not shorten later pauses."""
        self._next_at = max(self._next_at, now)

    def note(self, work: float) -> None:
        """Count the work of the piece that has begun."""
        self._next_at += work / self._rate
