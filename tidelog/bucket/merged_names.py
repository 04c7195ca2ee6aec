"""Which merged objects a living broker's WAL can yet name, as anybody can tell from the bucket.

A merged object is needed as long as an image refers to it, or an entry of its WAL at or above the
newest checkpoint names it, or will. Its own process knows that; others see it so: a broker merges
one object at a time and numbers them, and begins the next when the entries that name the last one
are durable. So when a WAL is read that was listed with an object of a higher number, the entries
that name a lower one are in it or below its floor, or there are none and never will be (the put was
given up). Of the highest number nothing can be told.

Pure; `read_merged_names` reads.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from tidelog.bucket.object_keys import MergedObjectKey
from tidelog.coordinator.cluster.state.state import ClusterState
from tidelog.identifiers import Incarnation
from tidelog.offload import Offload
from tidelog.storage.object_store import ObjectStore
from tidelog.wal.format.object_format import SlotIndex, merged_key
from tidelog.wal.recover.wal_reader import WalContent, WalReader
from tidelog.wal.write.checkpoint import WalCheckpoint


@dataclass(frozen=True, slots=True)
class MergedNames:
    """What the WALs say of merged objects that were listed before the WALs were read."""

    newest: Mapping[Incarnation, int]
    """The highest number that was listed."""
    named: Mapping[Incarnation, frozenset[str]]
    """Objects to which the newest checkpoint refers, or an entry at or above it; of those WALs that
    could be read to their ends."""

    def is_settled(self, found: MergedObjectKey) -> bool:
        """Whether its WAL does not name this object from the newest checkpoint on, and never will.
        Of incarnations that are not known here, and of the newest object of each: no."""
        owner, number = found
        named = self.named.get(owner)
        return (
            named is not None
            and number < self.newest.get(owner, 0)
            and merged_key(owner, number) not in named
        )


def highest_numbers(listed: Iterable[MergedObjectKey]) -> dict[Incarnation, int]:
    """The highest number of each incarnation's merged objects."""
    newest: dict[Incarnation, int] = {}
    for owner, number in listed:
        newest[owner] = max(newest.get(owner, 0), number)
    return newest


def names_in(content: WalContent) -> frozenset[str] | None:
    """Other objects in which a WAL says that batches lie, from its newest checkpoint on; None where
    something of it is missing or broken."""
    if content.first_damage is not None:
        return None
    names: set[str] = set()
    if isinstance(content.checkpoint, WalCheckpoint):
        names.update(content.checkpoint.images.objects)
    for slot in content.slots:
        if isinstance(slot, SlotIndex):
            names.update(slot.other_objects)
            names.update(slot.images.objects if slot.images is not None else ())
    return frozenset(names)


async def read_merged_names(
    store: ObjectStore, offload: Offload, state: ClusterState, listed: Iterable[MergedObjectKey]
) -> MergedNames:
    """Read the WALs of the living whose merged objects were listed. Others' wait until their whole
    WAL is passed: brokers delete them only then. Raises StoreError, UnsupportedFormat."""
    newest = highest_numbers(found for found in listed if state.is_live(found.incarnation.epoch))
    named: dict[Incarnation, frozenset[str]] = {}
    reader = WalReader(store, offload)
    for owner in newest:
        names = names_in(await reader.read(owner, None))
        if names is not None:
            named[owner] = names
    return MergedNames(newest, named)
