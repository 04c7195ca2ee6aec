"""Kills a real process at a crash point, as kill -9 would."""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Mapping

from tidelog.crash_points import CrashPoint
from tidelog.errors import InvalidConfiguration

CRASH_POINTS_VARIABLE = "TIDELOG_CRASH_POINTS"
"""The environment variable that tells `mortal_cli` where to die."""


class KillAtHit:
    """Kills its own process with SIGKILL at the n-th hit of a point, counted from 1."""

    def __init__(self, hits: Mapping[CrashPoint, int]) -> None:
        self._fatal = dict(hits)
        self._seen: Counter[CrashPoint] = Counter()

    @classmethod
    def parse(cls, text: str) -> KillAtHit:
        """Parse `name:n`, several separated by commas. Raises InvalidConfiguration."""
        hits = {}
        for part in text.split(","):
            name, _, number = part.rpartition(":")
            try:
                point = CrashPoint(name.strip())
                hits[point] = int(number)
            except ValueError:
                names = ", ".join(each.value for each in CrashPoint)
                raise InvalidConfiguration(
                    f"{CRASH_POINTS_VARIABLE}: {part!r} is not NAME:N with a number and one of the"
                    f" names {names}"
                ) from None
            if hits[point] < 1:
                raise InvalidConfiguration(
                    f"{CRASH_POINTS_VARIABLE}: hits are counted from 1, not {number}"
                )
        return cls(hits)

    def hit(self, point: CrashPoint) -> None:
        """Count a hit; the fatal one does not return."""
        self._seen[point] += 1
        if self._seen[point] == self._fatal.get(point):
            os.kill(os.getpid(), signal.SIGKILL)
