"""Lines of the log that clients can cause as often as they like: at once, and now and then while it
lasts, with how often it was met since. The metrics count each time."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from math import inf
from typing import Final

from tidelog.clock import Clock

TOLD_EVERY_SECONDS: Final = 10.0
REMEMBERED_MAX: Final = 1000


@dataclass(slots=True)
class _Told:
    """When a thing was told last, and how often it was met since."""

    at: float = -inf
    times: int = 0


class SparseLog:
    """Lines of one logger."""

    def __init__(self, logger: logging.Logger, clock: Clock) -> None:
        self._logger = logger
        self._clock = clock
        self._told: dict[tuple[str, ...], _Told] = {}

    def tell(
        self, level: int, message: str, about: tuple[str, ...], extra: Mapping[str, object]
    ) -> None:
        """Log a message, unless the same was told of the same a moment ago."""
        what = (message, *about)
        told, now = self._told.get(what, _Told()), self._clock.monotonic()
        told.times += 1
        if now - told.at < TOLD_EVERY_SECONDS:
            return
        self._logger.log(level, message, extra={**extra, "times": told.times})
        # The one that was told last is the last one to be forgotten.
        self._told.pop(what, None)
        self._told[what] = _Told(now)
        if len(self._told) > REMEMBERED_MAX:
            del self._told[next(iter(self._told))]
