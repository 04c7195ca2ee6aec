"""What keeps partitions from being read, in the log: at once, and now and then while it lasts.

A client that does not wait between its requests meets a fault a thousand times a second; the metric
counts each time, the log need not.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from math import inf

from tidelog.clock import Clock
from tidelog.errors import TidelogError

_log = logging.getLogger(__name__)
TOLD_EVERY_SECONDS = 10.0
REMEMBERED_MAX = 1000


@dataclass(slots=True)
class _Told:
    """When a fault was told last, and how often it was met since."""

    at: float = -inf
    times: int = 0


class FaultLog:
    """One broker's."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._told: dict[tuple[str, str, str], _Told] = {}

    def met(self, message: str, partition: str, error: TidelogError) -> None:
        """A read of the partition, like `flights-3`, has failed by this."""
        key = getattr(error, "key", None)
        fault = (message, partition, key or str(error))
        told, now = self._told.get(fault, _Told()), self._clock.monotonic()
        told.times += 1
        if now - told.at < TOLD_EVERY_SECONDS:
            return
        extra = {"partition": partition, "key": key, "why": str(error)}
        _log.error(message, extra=extra | {"times": told.times})
        # The one that was told last is the last one to be forgotten.
        self._told.pop(fault, None)
        self._told[fault] = _Told(now)
        if len(self._told) > REMEMBERED_MAX:
            del self._told[next(iter(self._told))]
