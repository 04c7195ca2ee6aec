"""The damages of stored objects, and the objects that each is done to."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType
from typing import NamedTuple

from tidelog.bucket.object_keys import (
    CheckpointObject,
    HandoverObject,
    MergedObjectKey,
    SegmentObject,
    StagedObject,
    StateObject,
    WalObject,
    parse_key,
)
from tidelog.coordinator.cluster.log.prefix import (
    COLLECTION_PREFIX,
    LEASE_PREFIX,
    LOG_PREFIX,
    SNAPSHOT_PREFIX,
)


class Kind(Enum):
    """The kinds of objects in a bucket."""

    ENTRY = "metadata entry"
    SNAPSHOT = "metadata snapshot"
    LEASE = "lease"
    MARKS = "marks of collections"
    WAL = "WAL slot"
    SEAL = "seal"
    CHECKPOINT = "checkpoint"
    MERGED = "merged object"
    STAGED = "staged object"
    HANDOVER = "hand-over image"
    STATE = "state snapshot"
    COMMIT = "table log entry"
    TABLE_CHECKPOINT = "table checkpoint"
    HINT = "pointer to a table checkpoint"
    SEGMENT = "segment"


SEAL_BYTES = 64
NOTHING: Mapping[str, bytes] = MappingProxyType({})
FEW_FLIPS = 1
"""With at most this many flips an object, an object is cut off in one place only."""
_FOLDERS = {
    WalObject: Kind.WAL,
    CheckpointObject: Kind.CHECKPOINT,
    MergedObjectKey: Kind.MERGED,
    StagedObject: Kind.STAGED,
    HandoverObject: Kind.HANDOVER,
    StateObject: Kind.STATE,
    SegmentObject: Kind.SEGMENT,
}


def kind_of(key: str, data: bytes) -> Kind:
    """The kind of an object."""
    for prefix, kind in (
        (LOG_PREFIX, Kind.ENTRY),
        (SNAPSHOT_PREFIX, Kind.SNAPSHOT),
        (LEASE_PREFIX, Kind.LEASE),
        (COLLECTION_PREFIX, Kind.MARKS),
    ):
        if key.startswith(prefix):
            return kind
    if key.endswith("_last_checkpoint"):
        return Kind.HINT
    if key.endswith(".checkpoint.parquet"):
        return Kind.TABLE_CHECKPOINT
    if "/_delta_log/" in key:
        return Kind.COMMIT
    kind = _FOLDERS[type(parse_key(key))]
    return Kind.SEAL if kind is Kind.WAL and len(data) == SEAL_BYTES else kind


class Place(Enum):
    """A place among the objects of a kind, in the order of their keys."""

    OLDEST = "oldest"
    MIDDLE = "middle"
    NEWEST = "newest"


def chosen(objects: Mapping[str, bytes]) -> dict[tuple[Kind, Place], str]:
    """One object of each kind for each place. A kind with fewer objects has one object for several
    places."""
    keys: dict[Kind, list[str]] = {}
    for key in sorted(objects, key=_age):
        keys.setdefault(kind_of(key, objects[key]), []).append(key)
    return {
        (kind, place): found[index]
        for kind, found in keys.items()
        for place, index in (
            (Place.OLDEST, 0),
            (Place.MIDDLE, len(found) // 2),
            (Place.NEWEST, -1),
        )
    }


def _age(key: str) -> tuple[int, str]:
    """Sorts incarnations by their epochs, and all other objects by key."""
    found = parse_key(key)
    if isinstance(found, WalObject | CheckpointObject | MergedObjectKey):
        owner = found.incarnation
        return owner.epoch, key
    return 0, key


class Damage(NamedTuple):
    """The data at a key after the damage, or None if the object is missing."""

    name: str
    data: bytes | None


def damages(
    key: str,
    objects: Mapping[str, bytes],
    deleted: Mapping[str, bytes],
    flips: int,
    chance: random.Random,
) -> Iterator[Damage]:
    """Flips of single bits at many places, cuts, the loss, and a swap for another object of the
    kind. If there is no other, the swap takes a deleted one."""
    data = objects[key]
    for position in positions(len(data), flips, chance):
        changed = bytearray(data)
        changed[position] ^= 1 << chance.randrange(8)
        yield Damage("flip", bytes(changed))
    sizes = {0, len(data) // 2, len(data) - 1} if flips > FEW_FLIPS else {len(data) // 2}
    for size in sorted(sizes):
        yield Damage("truncate", data[:size])
    yield Damage("delete", None)
    kind = kind_of(key, data)
    others = [
        [each for k, each in sorted(found.items()) if each != data and kind_of(k, each) is kind]
        for found in (objects, deleted)
    ]
    swaps = others[0] or others[1]
    for other in {swaps[0], swaps[-1]} if swaps else ():
        yield Damage("swap", other)


def positions(size: int, count: int, chance: random.Random) -> Iterable[int]:
    """Positions of flipped bits: at both ends, which hold magic, version and checksums, and in
    between."""
    ends = [*range(min(12, size)), *range(max(0, size - 16), size)]
    if count >= size:
        return range(size)
    near = chance.sample(ends, min(len(ends), count // 2))
    return sorted({*near, *(chance.randrange(size) for _ in range(count - len(near)))})


@dataclass(frozen=True, slots=True)
class Case:
    """One object, damaged in one way."""

    kind: Kind
    place: Place
    key: str
    damage: Damage

    def applied_to(self, objects: Mapping[str, bytes]) -> dict[str, bytes]:
        """The bucket with the damage."""
        left = {key: data for key, data in objects.items() if key != self.key}
        if self.damage.data is not None:
            left[self.key] = self.damage.data
        return left


def cases(
    objects: Mapping[str, bytes],
    flips: int,
    seed: int,
    deleted: Mapping[str, bytes] = NOTHING,
) -> list[Case]:
    """All cases. An object at several places is tried for the newest. `deleted`: deleted objects,
    which a swap takes if the bucket has one object of a kind."""
    chance = random.Random(seed)
    places = {key: (kind, place) for (kind, place), key in chosen(objects).items()}
    return [
        Case(kind, place, key, damage)
        for key, (kind, place) in places.items()
        for damage in damages(key, objects, deleted, flips, chance)
    ]
