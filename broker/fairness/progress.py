"""Measures a transfer's rate from call to call. Pure."""

from __future__ import annotations

from typing import Final

NEVER: Final = float("inf")


class TransferProgress:
    """Compares the total bytes of a transfer with those at the last call."""

    __slots__ = ("_bytes", "_looked_at")

    def __init__(self) -> None:
        self._looked_at = NEVER
        self._bytes = 0

    def forget(self) -> None:
        """Forget the last call: the next transfer is another one."""
        self._looked_at = NEVER

    def seconds_left(self, now: float, bytes_total: int, bytes_left: int) -> float:
        """The time that the remaining bytes need, at the rate since the last call.

        0 after the first call. `now` is of a monotonic clock.
        """
        since, before = self._looked_at, self._bytes
        self._looked_at, self._bytes = now, bytes_total
        if since >= now:
            return 0.0
        gone = bytes_total - before
        return bytes_left * (now - since) / gone if gone > 0 else NEVER
