"""Decides how long a small slot waits for its upload, so that producers share PUTs. Pure.

`CommitDelay` waits for producers that were just answered, `PutBudget` for the rate limit of PUTs.
"""

from __future__ import annotations

from math import inf

DELAYED_BYTES_MAX = 256 * 1024
"""A larger slot is uploaded at once."""
SAVED_SECONDS_MAX = 1.0
"""The budget that an idle WAL can save, in seconds."""
_SECONDS_MIN = 0.001
"""The resolution of an event loop's timers."""


class CommitDelay:
    """The producers that the open slot waits for.

    A producer with few requests in flight sends its next request when it gets an answer. If the
    open slot were uploaded at once, that request would miss it and fill the next slot. Then two
    halves of the producers would alternate forever, and each half would cost a whole PUT. So when
    no upload is in flight, a small slot waits until all these producers wait for it, or until a
    short delay is over.

    A single producer never waits. A slot that holds other entries, such as a coordinator's records,
    does not wait. A large slot does not wait either, since its upload time depends on its size.
    """

    __slots__ = ("_expected", "_seconds_max", "is_active")

    def __init__(self, seconds_max: float) -> None:
        """`seconds_max`: the longest delay."""
        self._seconds_max = seconds_max
        self._expected = 0
        self.is_active = False
        """True if the open slot waits for producers."""

    def begin(self, answered: int, waiting: int, put_seconds: float) -> float:
        """Begin a delay after the last slot in flight; the longest delay in seconds, 0 for none.

        `answered`: producers that this slot answered. `waiting`: producers that wait for the open
        slot. The delay is at most half of the last PUT's duration, since an immediate upload may
        cost a whole PUT.
        """
        self.end()
        seconds = min(self._seconds_max, max(_SECONDS_MIN, put_seconds / 2))
        # A single producer does not wait.
        if seconds < _SECONDS_MIN or answered == 0 or answered + waiting == 1:
            return 0.0
        self._expected = answered + waiting
        self.is_active = True
        return seconds

    def end(self) -> None:
        """End the delay: its time is over, or the slot was closed."""
        self._expected = 0
        self.is_active = False

    def holds(self, batches: int, waiting: int, size_bytes: int) -> bool:
        """True if a slot with `batches` that `waiting` producers wait for must stay open."""
        return waiting < self._expected and batches <= waiting and size_bytes <= DELAYED_BYTES_MAX


class PutBudget:
    """The PUT budget of one WAL: a token bucket that delays small slots.

    Every PUT costs the same, whatever its size. An idle WAL saves the PUTs of up to one second and
    may spend them at once. A busy WAL puts at equal intervals. Full slots never wait, so the limit
    does not reduce throughput; but they spend budget, and the slot after them waits an interval. No
    slot waits longer than one interval. Times are seconds of a monotonic clock.
    """

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
