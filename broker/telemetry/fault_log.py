"""Faults that prevent reads of partitions.

They are logged at once and then now and then while they last. The health endpoint and the metrics
show them as long as reads meet them.
"""

from __future__ import annotations

import logging
from typing import NamedTuple

from tidelog.broker.telemetry.sparse_log import REMEMBERED_MAX, SparseLog
from tidelog.clock import Clock
from tidelog.errors import CorruptObject, TidelogError, to_keep

_log = logging.getLogger(__name__)

STANDING_SECONDS = 600.0
"""How long after a failed read its partition counts as one that cannot be served in full."""


class _Damage(NamedTuple):
    """A damaged object, and the time when a read met it last."""

    error: CorruptObject
    met_at: float


class FaultLog:
    """The faults of one broker."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lines = SparseLog(_log, clock)
        self._damages: dict[tuple[str, str], _Damage] = {}

    def met(self, message: str, partition: str, error: TidelogError) -> None:
        """Note that a read of the partition, like `flights-3`, failed with this error."""
        key = getattr(error, "key", None)
        extra = {"partition": partition, "key": key, "why": str(error)}
        self._lines.tell(logging.ERROR, message, (partition, key or str(error)), extra)
        if isinstance(error, CorruptObject):
            # The dictionary is in the order of the last failures; the oldest is forgotten first.
            self._damages.pop((partition, error.key), None)
            self._damages[partition, error.key] = _Damage(to_keep(error), self._clock.monotonic())
            if len(self._damages) > REMEMBERED_MAX:
                del self._damages[next(iter(self._damages))]

    def standing(self) -> list[tuple[str, CorruptObject]]:
        """Partitions with recent failed reads, each with the damaged object.

        Callable from any thread.
        """
        since = self._clock.monotonic() - STANDING_SECONDS
        return [
            (partition, damage.error)
            for (partition, _), damage in list(self._damages.items())
            if damage.met_at >= since
        ]
