"""Logs faults and lines that clients can cause at will, limited in number.

A line is logged at once, and then now and then while its cause lasts, with the number of
occurrences since the last line. The metrics count each occurrence. The health endpoint and the
metrics show faults that prevent reads of partitions, as long as reads meet them.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from math import inf
from typing import Final, NamedTuple

from tidelog.clock import Clock
from tidelog.errors import CorruptObject, TidelogError, without_frames

LOGGED_EVERY_SECONDS: Final = 10.0
REMEMBERED_MAX: Final = 1000


@dataclass(slots=True)
class _LastLine:
    """The time of the last line of a cause, and the occurrences since."""

    at: float = -inf
    times: int = 0


class SparseLog:
    """The limited lines of one logger."""

    def __init__(self, logger: logging.Logger, clock: Clock) -> None:
        self._logger = logger
        self._clock = clock
        self._logged: dict[tuple[str, ...], _LastLine] = {}

    def tell(
        self, level: int, message: str, about: tuple[str, ...], extra: Mapping[str, object]
    ) -> None:
        """Log a message, unless the same cause was logged a moment ago."""
        what = (message, *about)
        last, now = self._logged.get(what, _LastLine()), self._clock.monotonic()
        last.times += 1
        if now - last.at < LOGGED_EVERY_SECONDS:
            return
        self._logger.log(level, message, extra={**extra, "times": last.times})
        # The dictionary is in the order of the last lines; the oldest is forgotten first.
        self._logged.pop(what, None)
        self._logged[what] = _LastLine(now)
        if len(self._logged) > REMEMBERED_MAX:
            del self._logged[next(iter(self._logged))]


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
            self._damages[partition, error.key] = _Damage(
                without_frames(error), self._clock.monotonic()
            )
            if len(self._damages) > REMEMBERED_MAX:
                del self._damages[next(iter(self._damages))]

    def recent_damage(self) -> list[tuple[str, CorruptObject]]:
        """Partitions with recent failed reads, each with the damaged object.

        Callable from any thread.
        """
        since = self._clock.monotonic() - STANDING_SECONDS
        return [
            (partition, damage.error)
            for (partition, _), damage in list(self._damages.items())
            if damage.met_at >= since
        ]
