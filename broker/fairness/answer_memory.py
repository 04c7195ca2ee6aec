"""How much of the broker's memory answers take up that clients have not taken. Pure.

Each connection is bounded by itself: no request of it is begun while too much of its answers waits.
Large answers, those to fetches, are made no larger than there is room for, so that many clients
that do not read cannot hold more than the limit together, but for an answer's least: one batch.
"""

from __future__ import annotations

from typing import Final

_SHARE: Final = 4
"""One answer may take up this part of the room that is left."""


class AnswerMemory:
    """Of all connections."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self.bytes_held = 0

    @property
    def is_short(self) -> bool:
        """Whether clients that do not take their answers have to go."""
        return self.bytes_held > self._bytes_max // 2

    @property
    def answer_bytes_max(self) -> int:
        """How large the next answer may be; at least 1, so that it is worth waiting for."""
        return max(1, (self._bytes_max - self.bytes_held) // _SHARE)

    def change(self, size: int) -> None:
        """So many bytes more are held, or less."""
        self.bytes_held += size
        assert self.bytes_held >= 0
