"""How long a process has observed each object, by its own monotonic clock. Pure.

Stored times cannot tell an object's age: on a filesystem they come from the writer's wall clock,
which may jump. A restarted process counts from zero unless it restores earlier ages.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Generic, TypeVar

K = TypeVar("K")


class Sightings(Generic[K]):
    """The time since which every listing has shown each object."""

    def __init__(self) -> None:
        self._since: dict[K, float] = {}

    def look(self, present: Iterable[K], now: float) -> None:
        """Record the objects of a listing that was requested at the monotonic time `now`."""
        self._since = {each: self._since.get(each, now) for each in present}

    def record(self, one: K, now: float) -> None:
        """Record an object that this process has just put."""
        self._since.setdefault(one, now)

    def forget(self, some: Iterable[K]) -> None:
        """Forget objects: a later listing that shows them counts from zero."""
        for one in some:
            self._since.pop(one, None)

    def ages(self, now: float) -> Mapping[K, float]:
        """For each object, the seconds since it was first observed."""
        return {each: now - since for each, since in self._since.items()}

    def restore(self, ages: Mapping[K, float], now: float) -> None:
        """Add the ages that another process observed.

        They count only for objects that the next listing shows. Time between the processes does not
        count.
        """
        for each, age in ages.items():
            self._since[each] = min(now - age, self._since.get(each, now))

    def seen_for(self, seconds: float, now: float) -> list[K]:
        """The objects that have been observed for longer than `seconds`."""
        # Strictly longer: another clock may measure an elapsed interval as slightly shorter.
        return [each for each, since in self._since.items() if now - since > seconds]
