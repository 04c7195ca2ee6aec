"""Lists the references of all bases of a bucket, WAL by WAL, and judges the WALs' objects. Pure.

A broker makes a survey from one consistent look at the metadata log, the newest checkpoints and the
hand-over images. The survey judges the slots, merged objects and checkpoints of each WAL, also much
later: a condition of F1 stays true once it is true (F2).

An old survey judges no object that is younger than it. A WAL that may be replayed keeps all slots
from its floor on, and newer slots lie above the floor of the survey. A WAL that is passed by the
survey had its seal before. The survey does not know incarnations that registered later: they keep
all objects.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from tidelog.bucket.object_keys import (
    WAL_FOLDER,
    BucketObject,
    CheckpointObject,
    MergedObjectKey,
    WalObject,
    parse_key,
)
from tidelog.coordinator.cluster.state.state import ClusterState
from tidelog.identifiers import FIRST_SLOT, Incarnation, MetadataStamp, Slot
from tidelog.storage.sequence import NUMBER_DIGITS
from tidelog.wal.format.object_format import MERGED_FOLDER, WAL_SUFFIX, wal_position
from tidelog.wal.recover.slot_runs import SlotRun, below, runs_of, without


@dataclass(frozen=True, slots=True)
class WalReferences:
    """One incarnation's WAL in a survey.

    `is_needed`: whether it may be replayed. `floor`: the slot of its newest checkpoint, below which
    no slot is replayed. `slots`, `merged`: those of its objects that bases refer to.
    """

    is_needed: bool
    floor: Slot = FIRST_SLOT
    slots: tuple[SlotRun, ...] = ()
    merged: frozenset[str] = frozenset()


_NOTHING = WalReferences(is_needed=False)


@dataclass(frozen=True, slots=True)
class Survey:
    """The WALs that are needed or referred to, by the state of one entry of the metadata log.

    `stamp` names that entry (C11). So a survey of a copied or restored bucket judges no object of
    another history.
    """

    stamp: MetadataStamp
    wals: Mapping[Incarnation, WalReferences]

    @classmethod
    def of(
        cls,
        stamp: MetadataStamp,
        needed: frozenset[Incarnation],
        floors: Mapping[Incarnation, Slot],
        referenced: Iterable[str],
    ) -> Survey:
        """`floors`: of needed incarnations. `referenced`: the keys that bases refer to."""
        keys = list(referenced)
        slots, merged = _slots_by_wal(keys), _merged_by_wal(keys)
        return cls(
            stamp,
            {
                owner: WalReferences(
                    owner in needed,
                    floors.get(owner, FIRST_SLOT),
                    tuple(slots.get(owner, ())),
                    frozenset(merged.get(owner, ())),
                )
                for owner in {*needed, *slots, *merged}
            },
        )

    def wal(self, owner: Incarnation) -> WalReferences:
        """A WAL's references. A WAL whose incarnation registered later keeps all objects."""
        if owner.epoch > self.stamp.sequence:
            return WalReferences(is_needed=True)
        return self.wals.get(owner, _NOTHING)


@dataclass(frozen=True, slots=True)
class WalReachability:
    """Judges the objects of WALs by a survey, which may be older than `state`.

    `is_settled`: whether no entry of a WAL at or above a floor names this merged object, or ever
    will. Only the process that writes the WAL knows that.
    """

    survey: Survey
    state: ClusterState
    is_settled: Callable[[MergedObjectKey, Slot], bool]

    def may_go(self, key: str, found: BucketObject) -> bool:
        """Whether no process can need this object any more. False for objects of no WAL."""
        match found:
            case WalObject(owner, slot):
                return bool(self.slots_may_go(owner, [SlotRun(slot, slot + 1)]))
            case MergedObjectKey(owner):
                wal = self.survey.wal(owner)
                if key in wal.merged:
                    return False
                return self._is_passed(owner) or self.is_settled(found, wal.floor)
            case CheckpointObject(owner, slot):
                return self._is_passed(owner) or slot < self.survey.wal(owner).floor
        return False

    def slots_may_go(self, owner: Incarnation, runs: Sequence[SlotRun]) -> list[SlotRun]:
        """Those of a WAL's slots, seals included, that no process can need any more."""
        wal = self.survey.wal(owner)
        if self._is_passed(owner):
            # The lowest seal stays for ever: a late put must meet it.
            end = self.state.retired[owner.epoch].end_slot
            free = without(runs, [SlotRun(end, end + 1)])
        else:
            free = below(runs, wal.floor)
        return without(free, wal.slots)

    def _is_passed(self, owner: Incarnation) -> bool:
        """Whether it is retired and no tenure names it: its WAL is not replayed again."""
        return owner.epoch in self.state.retired and not self.survey.wal(owner).is_needed


def _slots_by_wal(keys: Iterable[str]) -> dict[Incarnation, list[SlotRun]]:
    """The slots among these keys. There may be tens of thousands."""
    slots: dict[str, list[int]] = {}
    for key in keys:
        if key.startswith(WAL_FOLDER):
            folder, _, name = key.rpartition("/")
            digits = name.removesuffix(WAL_SUFFIX)
            if digits.isdecimal():
                slots.setdefault(folder, []).append(int(digits))
    found = {}
    for folder, numbers in slots.items():
        position = wal_position(f"{folder}/{numbers[0]:0{NUMBER_DIGITS}d}{WAL_SUFFIX}")
        if position is not None:
            found[position.incarnation] = runs_of(sorted(numbers))
    return found


def _merged_by_wal(keys: Iterable[str]) -> dict[Incarnation, list[str]]:
    merged: dict[Incarnation, list[str]] = {}
    for key in keys:
        if key.startswith(MERGED_FOLDER):
            found = parse_key(key)
            if isinstance(found, MergedObjectKey):
                merged.setdefault(found.incarnation, []).append(key)
    return merged
