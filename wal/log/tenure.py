"""The ownership of a partition by an incarnation."""

from __future__ import annotations

from dataclasses import dataclass

from tidelog.identifiers import Incarnation, LeaderEpoch, Slot


@dataclass(frozen=True, slots=True)
class TenureEnd:
    """Where a tenure ended whose owner gave the partition away (rule C3).

    All its entries lie below `slot` of the owner's WAL, and all slots below are durable. The next
    record of the partition gets `next_offset`.
    """

    slot: Slot
    next_offset: int


@dataclass(frozen=True, slots=True)
class Tenure:
    """A partition's ownership by one incarnation, from the metadata log (rule C1).

    `previous_end`: where the tenure before ended, if its owner gave the partition away. `handover`:
    the key of an image that takes the place of all earlier tenures. Both are None if there was no
    previous owner, or if it was fenced (C4).
    """

    leader_epoch: LeaderEpoch
    incarnation: Incarnation
    handover: str | None
    previous_end: TenureEnd | None = None
