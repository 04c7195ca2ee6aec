"""Faults that keep partitions from being read: in the log at once and now and then while they last,
and for the health endpoint and the metrics as long as reads meet them."""

from __future__ import annotations

import logging
from typing import NamedTuple

from tidelog.broker.telemetry.sparse_log import REMEMBERED_MAX, SparseLog
from tidelog.clock import Clock
from tidelog.errors import CorruptObject, TidelogError, to_keep

_log = logging.getLogger(__name__)

STANDING_SECONDS = 600.0
"""For so long after a read has met a damaged object, the partition counts as one that cannot be
served in full."""


class _Damage(NamedTuple):
    """A damaged object, and when a read met it last."""

    error: CorruptObject
    met_at: float


class FaultLog:
    """Of one broker."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lines = SparseLog(_log, clock)
        self._damages: dict[tuple[str, str], _Damage] = {}

    def met(self, message: str, partition: str, error: TidelogError) -> None:
        """A read of the partition, like `flights-3`, has failed by this."""
        key = getattr(error, "key", None)
        extra = {"partition": partition, "key": key, "why": str(error)}
        self._lines.tell(logging.ERROR, message, (partition, key or str(error)), extra)
        if isinstance(error, CorruptObject):
            # The damage that was met last is the last one to be forgotten.
            self._damages.pop((partition, error.key), None)
            self._damages[partition, error.key] = _Damage(to_keep(error), self._clock.monotonic())
            if len(self._damages) > REMEMBERED_MAX:
                del self._damages[next(iter(self._damages))]

    def standing(self) -> list[tuple[str, CorruptObject]]:
        """Partitions of which something could not be read lately, and the damaged object that is to
        blame. May be called from any thread."""
        since = self._clock.monotonic() - STANDING_SECONDS
        return [
            (partition, damage.error)
            for (partition, _), damage in list(self._damages.items())
            if damage.met_at >= since
        ]
