"""Faults that keep partitions from being read: in the log at once and now and then while they last,
and for the health endpoint and the metrics as long as reads meet them.

A client that does not wait between its requests meets a fault a thousand times a second; the metric
counts each time, the log need not.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from math import inf

from tidelog.clock import Clock
from tidelog.errors import CorruptObject, TidelogError, to_keep

_log = logging.getLogger(__name__)
TOLD_EVERY_SECONDS = 10.0
REMEMBERED_MAX = 1000


STANDING_SECONDS = 600.0
"""For so long after a read has met a damaged object, the partition counts as one that cannot be
served in full."""


@dataclass(slots=True)
class _Told:
    """When a fault was told last, how often it was met since, and when it was met last."""

    at: float = -inf
    times: int = 0
    met_at: float = -inf
    error: CorruptObject | None = None


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
        told.met_at = now
        told.error = to_keep(error) if isinstance(error, CorruptObject) else None
        if now - told.at < TOLD_EVERY_SECONDS:
            return
        extra = {"partition": partition, "key": key, "why": str(error)}
        _log.error(message, extra=extra | {"times": told.times})
        # The one that was told last is the last one to be forgotten.
        self._told.pop(fault, None)
        self._told[fault] = _Told(now, 0, now, told.error)
        if len(self._told) > REMEMBERED_MAX:
            del self._told[next(iter(self._told))]

    def standing(self) -> list[tuple[str, CorruptObject]]:
        """Partitions of which something could not be read lately, and the damaged object that is to
        blame. May be called from any thread."""
        since = self._clock.monotonic() - STANDING_SECONDS
        found = {
            (partition, told.error.key): told.error
            for (_, partition, _), told in list(self._told.items())
            if told.error is not None and told.met_at >= since
        }
        return [(partition, error) for (partition, _), error in found.items()]
