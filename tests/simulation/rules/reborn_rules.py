"""Rules on a topic that is deleted and created again under one name, beside transactions.

A broker may not know yet that a topic was deleted, and take records and offsets for it. So no rule
says that a value of an earlier transaction must be there.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TypeVar

from tests.simulation.rules.history import Operation, Outcome

P = TypeVar("P")
_OFFSETS_A_BIRTH = 1000


def offset_of(birth: int, number: int) -> int:
    """An offset to commit: each creation of the topic has offsets of its own. (Coordinators take
    offsets that no record has.)"""
    return birth * _OFFSETS_A_BIRTH + number


def old_offsets(committed: Mapping[P, int], births: int) -> dict[P, int]:
    """The committed offsets of a topic that was deleted before the newest one was created."""
    return {place: offset for place, offset in committed.items() if offset < offset_of(births, 0)}


def wrong_values(operations: Iterable[Operation], shown: Mapping[str, int]) -> Iterator[str]:
    """Values of aborted transactions, and values that lie twice, among those that the newest topic
    shows to read_committed readers."""
    for operation in operations:
        for send in operation.sends:
            count = shown.get(send.value, 0)
            if count > 1:
                yield f"{send.value!r} of {operation} lies {count} times in {send.key}"
            if count and operation.outcome is Outcome.FAIL:
                yield f"{send.value!r} of {operation} is seen in {send.key}"
