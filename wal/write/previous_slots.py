"""The previous slot of each tenure, which every slot records (rule C10).

Each slot lists the tenures that have an entry in it or in the slot before. For each of them it
names an earlier slot; no slot in between has an entry of the tenure. So if a slot is lost, the next
slot lists the tenures of the lost one. The next slot of a tenure tells the same for that tenure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias

from tidelog.identifiers import LeaderEpoch, Slot, TopicPartition

TenureKey: TypeAlias = tuple[TopicPartition, LeaderEpoch]


class PreviousSlots:
    """Computes the previous slots for one slot after the other. Pure."""

    def __init__(self) -> None:
        self._last: dict[TenureKey, int] = {}
        self._before: Sequence[TenureKey] = ()
        self._forgotten_below = 0

    def next(self, slot: Slot, tenures: Iterable[TenureKey]) -> Mapping[TenureKey, int]:
        """The previous slots that `slot` records; tenures with an entry in it come first."""
        last, unknown = self._last, self._forgotten_below - 1
        said = {tenure: last.get(tenure, unknown) for tenure in tenures}
        present = list(said)
        for tenure in self._before:
            said.setdefault(tenure, slot - 1)
        self._before = present
        last.update(dict.fromkeys(present, slot))
        return said

    def forget_below(self, floor: Slot) -> None:
        """Forget tenures whose last entry lies below `floor`, which are not replayed."""
        self._last = {tenure: slot for tenure, slot in self._last.items() if slot >= floor}
        self._forgotten_below = max(self._forgotten_below, floor)
