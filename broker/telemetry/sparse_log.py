"""Log lines that clients can cause at will, limited in number.

A line is logged at once, and then now and then while its cause lasts, with the number of
occurrences since the last line. The metrics count each occurrence.
"""

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
    """The time of the last line of a cause, and the occurrences since."""

    at: float = -inf
    times: int = 0


class SparseLog:
    """The limited lines of one logger."""

    def __init__(self, logger: logging.Logger, clock: Clock) -> None:
        self._logger = logger
        self._clock = clock
        self._told: dict[tuple[str, ...], _Told] = {}

    def tell(
        self, level: int, message: str, about: tuple[str, ...], extra: Mapping[str, object]
    ) -> None:
        """Log a message, unless the same cause was logged a moment ago."""
        what = (message, *about)
        told, now = self._told.get(what, _Told()), self._clock.monotonic()
        told.times += 1
        if now - told.at < TOLD_EVERY_SECONDS:
            return
        self._logger.log(level, message, extra={**extra, "times": told.times})
        # The dictionary is in the order of the last lines; the oldest is forgotten first.
        self._told.pop(what, None)
        self._told[what] = _Told(now)
        if len(self._told) > REMEMBERED_MAX:
            del self._told[next(iter(self._told))]
