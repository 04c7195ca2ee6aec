"""Sets of slots as runs of consecutive slots: a WAL of millions of slots has few runs. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple


class SlotRun(NamedTuple):
    """The slots from `first` up to, but without, `end`."""

    first: int
    end: int


def count(runs: Iterable[SlotRun]) -> int:
    """The number of slots in the runs."""
    return sum(run.end - run.first for run in runs)


def runs_of(slots: Iterable[int]) -> list[SlotRun]:
    """The runs of ascending slots."""
    runs: list[SlotRun] = []
    for slot in slots:
        if runs and runs[-1].end == slot:
            runs[-1] = SlotRun(runs[-1].first, slot + 1)
        else:
            runs.append(SlotRun(slot, slot + 1))
    return runs


def extended(runs: Sequence[SlotRun], end: int, since: int) -> list[SlotRun]:
    """The runs, with all slots from `since` up to `end`. No run may reach beyond `since`."""
    if end <= since:
        return list(runs)
    if runs and runs[-1].end == since:
        return [*runs[:-1], SlotRun(runs[-1].first, end)]
    return [*runs, SlotRun(since, end)]


def below(runs: Iterable[SlotRun], end: int) -> list[SlotRun]:
    """The parts of the runs below a slot."""
    return [SlotRun(run.first, min(run.end, end)) for run in runs if run.first < end]


def without(runs: Iterable[SlotRun], others: Sequence[SlotRun]) -> list[SlotRun]:
    """The slots of the runs that are not in `others`. Both ascend."""
    left: list[SlotRun] = []
    number = 0
    for first, end in runs:
        while number < len(others) and others[number].end <= first:
            number += 1
        at = number
        while at < len(others) and others[at].first < end:
            if others[at].first > first:
                left.append(SlotRun(first, others[at].first))
            first = others[at].end
            at += 1
        if first < end:
            left.append(SlotRun(first, end))
    return left
