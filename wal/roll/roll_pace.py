"""How fast what is due goes from the WAL into tables, which is in no hurry. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum
from math import inf

from tidelog.wal.roll.pace import rate_of
from tidelog.wal.roll.roll_plan import Backlog, Roll, RollReason

MIB = 1024 * 1024

SEGMENT_BYTES = MIB
"""What it takes to begin and to end a segment, as the bytes that go into the table in the same
time."""
BYTES_A_SECOND_MIN = 8 * MIB
"""A few hundredths of what a core can do."""
OVERDUE_SHARE = 1 / 8
"""Of the age at which records are due: what has waited for so long may wait that much longer."""


class Haste(IntEnum):
    """How urgent a roll is that is due; the most urgent first."""

    ASKED = 0
    """Somebody waits for it."""
    OVERDUE = 1
    """It is so old that whoever has set its age would feel it."""
    NONE = 2


def haste_of(roll: Roll) -> Haste:
    """How urgent it is."""
    if roll.reason is RollReason.REQUEST:
        return Haste.ASKED
    return Haste.NONE if seconds_left(roll.backlog) > 0 else Haste.OVERDUE


def rate_for(due: Iterable[Roll], seconds: float) -> float:
    """How many bytes of the WAL are to be rolled a second, if these are due and may be spread over
    so long; less where something would be overdue before. As fast as can be where somebody waits,
    or where something is overdue."""
    rate, work = 0.0, 0
    for roll in sorted(due, key=lambda roll: seconds_left(roll.backlog)):
        if haste_of(roll) is not Haste.NONE:
            return inf
        work += roll.backlog.wal_bytes + SEGMENT_BYTES
        left = min(seconds, seconds_left(roll.backlog))
        rate = max(rate, rate_of(work, left, BYTES_A_SECOND_MIN))
    return max(rate, BYTES_A_SECOND_MIN)


def seconds_left(backlog: Backlog) -> float:
    """Until it is overdue."""
    return ((1 + OVERDUE_SHARE) * backlog.age_ms_max - backlog.age_ms) / 1000
