"""How fast what is due goes from the WAL into tables, which is in no hurry. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

from tidelog.wal.pace import rate_of
from tidelog.wal.roll_plan import Backlog, Roll, RollReason

MIB = 1024 * 1024

SEGMENT_BYTES = MIB
"""What it takes to begin and to end a segment, as the bytes that go into the table in the same
time."""
BYTES_A_SECOND_MIN = 8 * MIB
"""A few hundredths of what a core can do."""
OVERDUE_SHARE = 1 / 8
"""Of the age at which records are due: what has waited for so long may wait that much longer."""


def is_overdue(backlog: Backlog) -> bool:
    """Whether it is so old that whoever has set that age would feel it."""
    return backlog.lateness >= 1 + OVERDUE_SHARE


def rate_for(due: Sequence[Roll], seconds: float) -> float:
    """How many bytes of the WAL are to be rolled a second, if these are due and may be spread over
    so long. As fast as can be where somebody waits, or where something is overdue."""
    if any(roll.reason is RollReason.REQUEST or is_overdue(roll.backlog) for roll in due):
        return inf
    work = sum(roll.backlog.wal_bytes + SEGMENT_BYTES for roll in due)
    return rate_of(work, seconds, BYTES_A_SECOND_MIN)
