"""Which slots hold no entry of a tenure: what each slot says of the slots before it (rule C10).

Each slot lists the tenures that have an entry in it or in the slot before, and for each of them an
earlier slot such that none in between has an entry of it. So when a slot is lost, the slot behind
it tells whose entries were in it, and the next slot of a tenure tells the same for that tenure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias

from tidelog.identifiers import LeaderEpoch, Slot, TopicPartition

TenureKey: TypeAlias = tuple[TopicPartition, LeaderEpoch]


class PreviousSlots:
    """What a writer says of the slots before, slot after slot. Pure."""

    def __init__(self) -> None:
        self._last: dict[TenureKey, int] = {}
        self._before: Sequence[TenureKey] = ()
        self._forgotten_below = 0

    def next(self, slot: Slot, tenures: Iterable[TenureKey]) -> Mapping[TenureKey, int]:
        """What this slot says; those with an entry in it come first, in their order."""
        last, unknown = self._last, self._forgotten_below - 1
        said = {tenure: last.get(tenure, unknown) for tenure in tenures}
        present = list(said)
        for tenure in self._before:
            said.setdefault(tenure, slot - 1)
        self._before = present
        last.update(dict.fromkeys(present, slot))
        return said

    def forget_below(self, floor: Slot) -> None:
        """Slots below are not replayed any more: a tenure whose last entry lies there takes no
        memory."""
        self._last = {tenure: slot for tenure, slot in self._last.items() if slot >= floor}
        self._forgotten_below = max(self._forgotten_below, floor)
