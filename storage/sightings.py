"""How long a process has seen an object, by its own monotonic clock. Pure.

No other time tells how old an object is: the filesystem store's times come from the wall clock of
the process that wrote the object, which may jump. A process that starts again begins to count anew,
unless it is told what the one before has seen.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Generic, TypeVar

K = TypeVar("K")


class Sightings(Generic[K]):
    """Since when objects were seen in each look."""

    def __init__(self) -> None:
        self._since: dict[K, float] = {}

    def look(self, present: Iterable[K], now: float) -> None:
        """What a listing shows that was asked for before the monotonic time `now`."""
        self._since = {each: self._since.get(each, now) for each in present}

    def saw(self, one: K, now: float) -> None:
        """An object that this process has just put."""
        self._since.setdefault(one, now)

    def ages(self, now: float) -> Mapping[K, float]:
        """For how many seconds each object has been seen."""
        return {each: now - since for each, since in self._since.items()}

    def restore(self, ages: Mapping[K, float], now: float) -> None:
        """What another process had seen. It counts for what this one sees at its next look, too:
        time in which neither looked is not counted."""
        for each, age in ages.items():
            self._since[each] = min(now - age, self._since.get(each, now))

    def seen_for(self, seconds: float, now: float) -> list[K]:
        """What was there in each look since longer ago than so many seconds."""
        # Strictly longer: time that has just passed may be a little shorter by another clock.
        return [each for each, since in self._since.items() if now - since > seconds]
