"""The unreachable objects and the time of their marks: single keys, and slots as runs. Pure.

A mark is never older than its observation. It begins with the first pass that finds the object
unreachable, and ends with the first pass that does not. An object marked for longer than the grace
is due. `mark_file` keeps marks as ages beyond the process: time between two processes does not
count.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final, Generic, NamedTuple, TypeVar

from tidelog.identifiers import Incarnation
from tidelog.wal.recover.slot_runs import SlotRun

K = TypeVar("K")

MARKED_MAX: Final = 200_000
"""The limit on marked keys; slots are marked as runs, without a limit."""


class MarkedRun(NamedTuple):
    """Slots that the same pass found unreachable."""

    first: int
    end: int
    since: float


class Marks(Generic[K]):
    def __init__(self, grace_seconds: float) -> None:
        self._grace_seconds = grace_seconds
        self._marked: dict[K, float] = {}

    def __len__(self) -> int:
        return len(self._marked)

    def __iter__(self) -> Iterator[K]:
        return iter(self._marked)

    def __contains__(self, key: object) -> bool:
        return key in self._marked

    def update(
        self,
        superfluous: Iterable[K],
        now: float,
        is_undecided: Callable[[K], bool] = lambda _: False,
    ) -> list[K]:
        """Mark the keys; return those that every pass found unreachable for the grace.

        `is_undecided`: keys that the pass cannot judge. They stay marked and are not due.
        """
        found = dict.fromkeys(superfluous)
        self._marked = {
            key: since for key, since in self._marked.items() if key in found or is_undecided(key)
        }
        for key in found:
            if len(self._marked) >= MARKED_MAX:
                break
            self._marked.setdefault(key, now)
        # Strictly longer: by another clock the grace may have lasted a little less.
        return [
            key
            for key, since in self._marked.items()
            if now - since > self._grace_seconds and key in found
        ]

    def ages(self, now: float) -> Mapping[K, float]:
        """The seconds for which each key has been marked."""
        return {key: now - since for key, since in self._marked.items()}

    def restore(self, ages: Mapping[K, float], now: float) -> None:
        """Continue with marks of another process."""
        for key, age in ages.items():
            self._marked.setdefault(key, now - age)


class SlotMarks:
    """Marked slots of all WALs."""

    def __init__(self, grace_seconds: float) -> None:
        self._grace_seconds = grace_seconds
        self._marked: dict[Incarnation, list[MarkedRun]] = {}

    def __len__(self) -> int:
        return sum(mark.end - mark.first for marks in self._marked.values() for mark in marks)

    def update(
        self, superfluous: Mapping[Incarnation, Sequence[SlotRun]], now: float
    ) -> dict[Incarnation, list[SlotRun]]:
        """Mark the runs; return those that every pass found unreachable for the grace."""
        self._marked = {
            owner: _remarked(self._marked.get(owner, []), runs, now)
            for owner, runs in superfluous.items()
            if runs
        }
        due = {
            owner: [SlotRun(m.first, m.end) for m in marks if now - m.since > self._grace_seconds]
            for owner, marks in self._marked.items()
        }
        return {owner: runs for owner, runs in due.items() if runs}

    def ages(self, now: float) -> dict[Incarnation, list[tuple[SlotRun, float]]]:
        """The seconds for which each run has been marked."""
        return {
            owner: [(SlotRun(mark.first, mark.end), now - mark.since) for mark in marks]
            for owner, marks in self._marked.items()
        }

    def restore(
        self, ages: Mapping[Incarnation, Sequence[tuple[SlotRun, float]]], now: float
    ) -> None:
        """Continue with marks of another process.

        Called before the first `update`. Each WAL's runs ascend.
        """
        for owner, runs in ages.items():
            self._marked[owner] = [MarkedRun(*run, now - age) for run, age in runs]


def _remarked(marks: Sequence[MarkedRun], runs: Sequence[SlotRun], now: float) -> list[MarkedRun]:
    """The runs, with the times of overlapping marks. Both arguments ascend."""
    made: list[MarkedRun] = []

    def add(first: int, end: int, since: float) -> None:
        if made and made[-1].end == first and made[-1].since == since:
            made[-1] = MarkedRun(made[-1].first, end, since)
        else:
            made.append(MarkedRun(first, end, since))

    number = 0
    for first, end in runs:
        while number < len(marks) and marks[number].end <= first:
            number += 1
        at = number
        while at < len(marks) and marks[at].first < end:
            mark = marks[at]
            if mark.first > first:
                add(first, mark.first, now)
            add(max(first, mark.first), min(end, mark.end), mark.since)
            first = min(end, mark.end)
            at += 1
        if first < end:
            add(first, end, now)
    return made
