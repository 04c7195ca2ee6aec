"""How many topics are created because somebody asked for them. Pure."""

from __future__ import annotations

from typing import Final

MINUTE_SECONDS: Final = 60.0


class AutoCreations:
    """Those of one broker, counted by the minute."""

    def __init__(self) -> None:
        self._began = float("-inf")
        self._taken = 0

    def take(self, wanted: int, minute_max: int, now: float) -> int:
        """How many of so many may be created now; they count from now on."""
        if now - self._began >= MINUTE_SECONDS:
            self._began, self._taken = now, 0
        granted = max(0, min(wanted, minute_max - self._taken))
        self._taken += granted
        return granted
