"""Rates against their quotas, as Apache Kafka measures them. Pure.

`now` is of a monotonic clock, in seconds.
"""

from __future__ import annotations

import math
from typing import NamedTuple

_ELAPSED_SECONDS_MIN = 0.001


class Windows(NamedTuple):
    """The time over which a rate is measured."""

    samples: int
    sample_seconds: float

    @property
    def whole_seconds(self) -> float:
        """The time of all samples except the present one."""
        return (self.samples - 1) * self.sample_seconds


class SampledRate:
    """A sum over the last samples, and the time that they take.

    One sample more than `samples` is kept: the oldest may reach into the time that counts.
    """

    __slots__ = ("_begins", "_ends", "_present", "_sums", "_windows")

    def __init__(self, windows: Windows) -> None:
        self._windows = windows
        self._begins: list[float] = []
        self._ends: list[float] = []
        """When a value was last added to each sample."""
        self._sums: list[float] = []
        self._present = 0

    def record(self, value: float, now: float) -> None:
        """Add a value, which may be negative."""
        if not self._begins:
            self._append(now)
        elif now - self._begins[self._present] >= self._windows.sample_seconds:
            self._present = (self._present + 1) % (self._windows.samples + 1)
            if self._present == len(self._begins):
                self._append(now)
            else:
                self._reset(self._present, now)
        self._sums[self._present] += value
        self._ends[self._present] = now

    def seconds_over(self, quota: float, now: float) -> float:
        """The seconds until the rate is within the quota if nothing is added; 0 if it is now."""
        if not self._begins:
            return 0.0
        elapsed = self._elapsed(now)
        return max(0.0, sum(self._sums) / quota - elapsed)

    def _elapsed(self, now: float) -> float:
        """The measured time, but at least that of all whole samples.

        Divided by a shorter time, a first value would be a very high rate.
        """
        samples, sample_seconds = self._windows
        for number, end in enumerate(self._ends):
            if now - end >= samples * sample_seconds:
                self._reset(number, now)
        elapsed = now - min(self._begins)
        missing = samples - 1 - int(elapsed / sample_seconds)
        return max(elapsed + max(0, missing) * sample_seconds, _ELAPSED_SECONDS_MIN)

    def _append(self, now: float) -> None:
        self._begins.append(now)
        self._ends.append(now)
        self._sums.append(0.0)

    def _reset(self, number: int, now: float) -> None:
        self._begins[number] = self._ends[number] = now
        self._sums[number] = 0.0


class TokenBucket:
    """Tokens that come at the rate of the quota, up to those of all samples (KIP-599).

    The bucket begins full. One large request may take more tokens than it holds: its balance is
    negative then.
    """

    __slots__ = ("_at", "_tokens", "_windows")

    def __init__(self, windows: Windows) -> None:
        self._windows = windows
        self._tokens = math.inf
        self._at = 0.0

    def record(self, value: float, quota: float, now: float) -> None:
        """Take tokens."""
        self._refill(quota, now)
        self._tokens -= value

    def seconds_over(self, quota: float, now: float) -> float:
        """The seconds until the balance is no longer negative; 0 if it is not negative now."""
        self._refill(quota, now)
        return max(0.0, -self._tokens / quota)

    def _refill(self, quota: float, now: float) -> None:
        samples, sample_seconds = self._windows
        full = samples * sample_seconds * quota
        self._tokens = min(full, self._tokens + (now - self._at) * quota)
        self._at = now
