"""Whether a small slot waits a moment for the producers who have just been answered. Pure.

Who may have a few requests in flight sends the next ones when it is answered. If the slot that
filled meanwhile went at once, these would miss it and fill the one after: two halves would take
turns for ever, each at the price of a whole put. So when nothing is in flight any more, a slot that
holds little goes when as many producers wait for it as were waiting in all, or soon anyway.

Who sends one request after the other never waits for this: it is all that was waiting. A slot that
holds something else, a coordinator's records say, waits for nobody, and neither does one that holds
much: there the price is that of its bytes, which had better be on their way.
"""

from __future__ import annotations

GATHERED_BYTES_MAX = 256 * 1024
"""Above it a slot goes at once."""
_SECONDS_MIN = 0.001
"""An event loop's timers tell no less apart."""


class Gathering:
    """What the slot that is being filled waits for, if anything."""

    __slots__ = ("_expected", "_seconds_max")

    def __init__(self, seconds_max: float) -> None:
        """`seconds_max`: that nobody shall wait longer than."""
        self._seconds_max = seconds_max
        self._expected = 0

    @property
    def is_active(self) -> bool:
        """Whether anybody is waited for."""
        return self._expected > 0

    def begin(self, answered: int, waiting: int, put_seconds: float) -> float:
        """The last slot in flight is durable. So many producers were answered by it, so many wait
        for the one that is being filled already. For how long to wait, at most: half as long as the
        last put took, as going at once might cost a whole one. 0: not at all."""
        self._expected = 0
        seconds = min(self._seconds_max, max(_SECONDS_MIN, put_seconds / 2))
        # A producer that is alone is served as it comes.
        if seconds < _SECONDS_MIN or answered == 0 or answered + waiting == 1:
            return 0.0
        self._expected = answered + waiting
        return seconds

    def end(self) -> None:
        """The time is over, or the slot has gone."""
        self._expected = 0

    def holds(self, batches: int, waiting: int, size_bytes: int) -> bool:
        """Whether a slot with so many batches, for which so many producers wait, stays open."""
        return waiting < self._expected and batches <= waiting and size_bytes <= GATHERED_BYTES_MAX
