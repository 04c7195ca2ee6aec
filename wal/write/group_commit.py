"""Group commit: decides whether a small slot waits for producers that were just answered. Pure.

A producer with few requests in flight sends its next request when it gets an answer. If the open
slot were uploaded at once, that request would miss it and fill the next slot. Then two halves of
the producers would alternate forever, and each half would cost a whole PUT. So when no upload is in
flight, a small slot waits until all these producers wait for it, or until a short delay is over.

A single producer never waits. A slot that holds other entries, such as a coordinator's records,
does not wait. A large slot does not wait either, since its upload time depends on its size.
"""

from __future__ import annotations

DELAYED_BYTES_MAX = 256 * 1024
"""A larger slot is uploaded at once."""
_SECONDS_MIN = 0.001
"""The resolution of an event loop's timers."""


class CommitDelay:
    """The producers that the open slot waits for."""

    __slots__ = ("_expected", "_seconds_max")

    def __init__(self, seconds_max: float) -> None:
        """`seconds_max`: the longest delay."""
        self._seconds_max = seconds_max
        self._expected = 0

    @property
    def is_active(self) -> bool:
        """True if the open slot waits for producers."""
        return self._expected > 0

    def begin(self, answered: int, waiting: int, put_seconds: float) -> float:
        """Begin a delay after the last slot in flight; the longest delay in seconds, 0 for none.

        `answered`: producers that this slot answered. `waiting`: producers that wait for the open
        slot. The delay is at most half of the last PUT's duration, since an immediate upload may
        cost a whole PUT.
        """
        self._expected = 0
        seconds = min(self._seconds_max, max(_SECONDS_MIN, put_seconds / 2))
        # A single producer does not wait.
        if seconds < _SECONDS_MIN or answered == 0 or answered + waiting == 1:
            return 0.0
        self._expected = answered + waiting
        return seconds

    def end(self) -> None:
        """End the delay: its time is over, or the slot was closed."""
        self._expected = 0

    def holds(self, batches: int, waiting: int, size_bytes: int) -> bool:
        """True if a slot with `batches` that `waiting` producers wait for must stay open."""
        return waiting < self._expected and batches <= waiting and size_bytes <= DELAYED_BYTES_MAX
