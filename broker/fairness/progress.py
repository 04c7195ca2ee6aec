"""How fast a client goes on with what it sends or takes, from look to look. Pure."""

from __future__ import annotations

from typing import Final

NEVER: Final = float("inf")


class TransferProgress:
    """Compares how many bytes have gone in all with what it was at the last look."""

    __slots__ = ("_bytes", "_looked_at")

    def __init__(self) -> None:
        self._looked_at = NEVER
        self._bytes = 0

    def forget(self) -> None:
        """What comes is not to be compared with what was."""
        self._looked_at = NEVER

    def seconds_left(self, now: float, bytes_total: int, bytes_left: int) -> float:
        """How long what is left would take, as fast as it went since the last look; 0 where there
        was none. `now` is of a monotonic clock."""
        since, before = self._looked_at, self._bytes
        self._looked_at, self._bytes = now, bytes_total
        if since >= now:
            return 0.0
        gone = bytes_total - before
        return bytes_left * (now - since) / gone if gone > 0 else NEVER
