"""Limits the time that a client may take to send a request. Pure.

A client has a grace to continue. Each received byte extends it a little, up to the full grace. The
whole request has an absolute limit. Time in which the broker does not read does not count.
"""

from __future__ import annotations

from typing import NamedTuple

from tidelog.broker.fairness.progress import NEVER, TransferProgress


class ReceiveLimits(NamedTuple):
    """The limits on the arrival of a request."""

    seconds_max: float
    """From its first byte to its last."""
    grace_seconds: float
    """Without any byte of it."""
    bytes_per_second_min: float
    """The average rate; faster bytes earn no more than the grace."""


class FramePace:
    """The arrival of one connection's request. `now` is of a monotonic clock."""

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
        """Whether an incomplete request has begun."""
        self._bytes = 0
        self._deadline = self._latest = NEVER
        self._stopped_at = NEVER
        self._progress = TransferProgress()

    def begin(self, now: float, size: int) -> None:
        """A request has begun, with `size` bytes."""
        self.begun = True
        self._bytes = size
        self._deadline = now + self._limits.grace_seconds
        self._latest = now + self._limits.seconds_max
        self._stopped_at = NEVER
        self._progress.forget()

    def go_on(self, now: float, size: int) -> None:
        """`size` more bytes of the request arrived."""
        self._bytes += size
        gained = self._deadline + size / self._limits.bytes_per_second_min
        self._deadline = min(gained, now + self._limits.grace_seconds)

    def end(self) -> None:
        """The request is complete."""
        self.begun = False

    def stop(self, now: float) -> None:
        """The broker stops reading."""
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
        """The time that the rest needs, at the client's pace since the last call.

        0 if unknown, since the broker has not read all that time.
        """
        if not self.begun or self._stopped_at != NEVER:
            self._progress.forget()
            return 0.0
        return self._progress.seconds_left(now, self._bytes, bytes_left)
