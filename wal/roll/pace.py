"""How fast work is done that nobody waits for: no faster than it has to. Pure.

Work that goes as fast as it can has cores and disk busy for as long as it lasts, and whoever
produces meanwhile waits behind it now and then. So it is spread over the time that there is, in
pieces with pauses between them, and few acknowledgements meet it. The more there is to do, the
shorter the pauses, down to none.
"""

from __future__ import annotations

from math import inf


def rate_of(work: float, seconds: float, rate_min: float) -> float:
    """How much a second, to have so much done in so long, which may be 0; but never slower than
    `rate_min`, where nobody would feel less of it."""
    return max(rate_min, work / seconds) if seconds > 0 else inf


class Pace:
    """When the next piece of some work may begin. Times are of a monotonic clock, in seconds; work
    is in whatever unit its cost is proportional to."""

    def __init__(self, rate: float) -> None:
        """`rate`: how much a second; infinite where there are to be no pauses."""
        self._rate = rate
        self._next_at = -inf

    def renew(self, rate: float, now: float) -> None:
        """Go on at another rate, also with the pause that is under way."""
        left = self.seconds_to_wait(now)
        if left:
            self._next_at = now + left * self._rate / rate
        self._rate = rate

    def seconds_to_wait(self, now: float) -> float:
        """Until the next piece may begin."""
        return max(0.0, self._next_at - now)

    def begin(self, now: float) -> None:
        """A piece begins now, or as soon as it may. What was late is not made up for by haste."""
        self._next_at = max(self._next_at, now)

    def note(self, work: float) -> None:
        """So much is what has begun."""
        self._next_at += work / self._rate
