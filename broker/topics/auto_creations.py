"""Limits the automatic creation of topics. Pure."""

from __future__ import annotations

from typing import Final

MINUTE_SECONDS: Final = 60.0


class AutoCreations:
    """Counts one broker's automatic creations by the minute."""

    def __init__(self) -> None:
        self._began = float("-inf")
        self._taken = 0

    def take(self, wanted: int, minute_max: int, now: float) -> int:
        """Grant up to `wanted` creations now, and count them."""
        if now - self._began >= MINUTE_SECONDS:
            self._began, self._taken = now, 0
        granted = max(0, min(wanted, minute_max - self._taken))
        self._taken += granted
        return granted
