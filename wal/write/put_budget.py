"""The rate limit of the WAL's PUTs: a token bucket that delays small slots. Pure.

Every PUT costs the same, whatever its size. An idle WAL saves the PUTs of up to one second and may
spend them at once. A busy WAL puts at equal intervals. Full slots never wait, so the limit does not
reduce throughput; but they spend budget, and the slot after them waits an interval. No slot waits
longer than one interval.
"""

from __future__ import annotations

from math import inf

SAVED_SECONDS_MAX = 1.0
"""The budget that an idle WAL can save, in seconds."""


class PutBudget:
    """The PUT budget of one WAL. Times are seconds of a monotonic clock."""

    def __init__(self, puts_a_second: int) -> None:
        """`puts_a_second`: 0 means no limit."""
        self._interval = 1 / puts_a_second if puts_a_second else 0.0
        self._saved_max = max(0.0, SAVED_SECONDS_MAX - self._interval)
        self._next_at = -inf
        """When the next PUT may begin. A time in the past is saved budget."""

    def seconds_to_wait(self, now: float) -> float:
        """Seconds until the next PUT may begin."""
        return max(0.0, self._next_at - now)

    def spend(self, now: float) -> None:
        """Take the cost of a PUT that begins now from the budget."""
        earned = max(self._next_at, now - self._saved_max)
        self._next_at = min(earned, now) + self._interval
