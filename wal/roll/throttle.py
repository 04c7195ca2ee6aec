"""Throttles background work, so that it delays few acknowledgements. Pure.

Work at full speed keeps cores and disk busy, and producers wait behind it. So background work is
spread over the available time, in pieces with pauses between them. More work makes shorter pauses,
down to none.
"""

from __future__ import annotations

from math import inf


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
