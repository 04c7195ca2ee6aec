"""How fast a client sends a request that it has begun. Pure.

A client has a while to go on, and each byte that comes gains it a little time, up to that while
again; and it has an absolute time for the whole. While the broker does not read, no time passes.
"""

from __future__ import annotations

from typing import NamedTuple

from tidelog.broker.fairness.progress import NEVER, TransferProgress


class ReceiveLimits(NamedTuple):
    """How long a request may take to come."""

    seconds_max: float
    """From its first byte to its last."""
    grace_seconds: float
    """With nothing of it coming."""
    bytes_per_second_min: float
    """On average; what comes faster is worth no more than the grace."""


class FramePace:
    """One connection's. `now` is of a monotonic clock."""

    __slots__ = (
        "_bytes",
        "_deadline",
        "_latest",
        "_limits",
        "_progress",
        "_stopped_at",
        "begun",
    )

    def __init__(self, limits: ReceiveLimits) -> None:
        self._limits = limits
        self.begun = False
        """Whether a request has begun that is not complete."""
        self._bytes = 0
        self._deadline = self._latest = NEVER
        self._stopped_at = NEVER
        self._progress = TransferProgress()

    def begin(self, now: float, size: int) -> None:
        """A request has begun with so many bytes."""
        self.begun = True
        self._bytes = size
        self._deadline = now + self._limits.grace_seconds
        self._latest = now + self._limits.seconds_max
        self._stopped_at = NEVER
        self._progress.forget()

    def go_on(self, now: float, size: int) -> None:
        """More bytes of it came."""
        self._bytes += size
        gained = self._deadline + size / self._limits.bytes_per_second_min
        self._deadline = min(gained, now + self._limits.grace_seconds)

    def end(self) -> None:
        """It has come as a whole."""
        self.begun = False

    def stop(self, now: float) -> None:
        """The broker does not read from now on."""
        if self._stopped_at == NEVER:
            self._stopped_at = now

    def resume(self, now: float) -> None:
        """The broker reads again."""
        if self._stopped_at != NEVER:
            self._deadline += now - self._stopped_at
            self._latest += now - self._stopped_at
            self._stopped_at = NEVER
            self._progress.forget()

    def is_late(self, now: float) -> bool:
        """Whether the client has taken too long."""
        return (
            self.begun
            and self._stopped_at == NEVER
            and (now >= self._deadline or now >= self._latest)
        )

    def seconds_left(self, now: float, bytes_left: int) -> float:
        """How long the rest would take as fast as the client has been since the last call; 0 where
        that is not known, since the broker has not read all that time."""
        if not self.begun or self._stopped_at != NEVER:
            self._progress.forget()
            return 0.0
        return self._progress.seconds_left(now, self._bytes, bytes_left)
