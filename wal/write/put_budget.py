"""How many PUTs a second the WAL may spend, and so how long a small slot waits for its turn. Pure.

Each PUT has its price, whatever its size. Where that matters, what is saved up pays for PUTs at
once: a broker that was quiet can put as many as it may in a second, as soon as they come. One that
is busy puts at equal intervals. Full slots do not wait, so the limit bounds no throughput; but they
are paid for, and what follows them waits an interval. Nothing waits longer than one interval.
"""

from __future__ import annotations

from math import inf

SAVED_SECONDS_MAX = 1.0
"""The budget of so long can be saved up."""


class PutBudget:
    """One WAL's. Times are of a monotonic clock, in seconds."""

    def __init__(self, puts_a_second: int) -> None:
        """0 is no limit."""
        self._interval = 1 / puts_a_second if puts_a_second else 0.0
        self._saved_max = max(0.0, SAVED_SECONDS_MAX - self._interval)
        self._next_at = -inf
        """When the next PUT may begin. In the past: by how much, so much is saved up."""

    def seconds_to_wait(self, now: float) -> float:
        """Until the next PUT may begin."""
        return max(0.0, self._next_at - now)

    def spend(self, now: float) -> None:
        """A PUT begins now."""
        earned = max(self._next_at, now - self._saved_max)
        self._next_at = min(earned, now) + self._interval
