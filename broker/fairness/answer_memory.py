"""The memory of answers that clients have not taken. Pure.

Each connection has a limit of its own: none of its requests starts while too many bytes of its
answers wait. Large answers, those of fetches, are cut to the room that is left. So many clients
that do not read stay within the common limit, except the smallest answer: one batch.
"""

from __future__ import annotations

from typing import Final

_SHARE: Final = 4
"""One answer may take 1/4 of the room that is left."""


class AnswerMemory:
    """The unread answers of all connections."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self.bytes_held = 0

    @property
    def is_short(self) -> bool:
        """Whether the server must evict clients that do not take their answers."""
        return self.bytes_held > self._bytes_max // 2

    @property
    def answer_bytes_max(self) -> int:
        """The size limit of the next answer; at least 1, so that it makes progress."""
        return max(1, (self._bytes_max - self.bytes_held) // _SHARE)

    def change(self, size: int) -> None:
        """Add `size` held bytes, which may be negative."""
        self.bytes_held += size
        assert self.bytes_held >= 0
