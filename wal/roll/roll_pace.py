"""The priority of rolls, and their rate from the WAL into tables. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum
from math import inf

from tidelog.wal.roll.roll_plan import Backlog, Roll, RollReason
from tidelog.wal.roll.throttle import rate_of

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
