"""The merged objects that the WAL of a living broker may still name, by the bucket alone.

A merged object is needed in two cases: an image refers to it, or an entry of its WAL at or above
the newest checkpoint names it or will name it. The broker of the WAL knows that. Other processes
infer it from the broker's order of work:

- The broker merges one object at a time, and numbers them.
- It begins the next one when the entries that name the previous one are durable.

Take a WAL that is read after an object with a higher number was listed. The entries that name a
lower number are in that WAL or below its floor. Otherwise they do not exist and never will: the put
was abandoned. The highest number allows no inference.

Pure, except for `read_merged_names`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from tidelog.bucket.object_keys import MergedObjectKey
from tidelog.coordinator.cluster.state.state import ClusterState
from tidelog.identifiers import Incarnation
from tidelog.storage.object_store import ObjectStore
from tidelog.wal.format.object_format import merged_key
from tidelog.wal.format.slot_index import SlotIndex
from tidelog.wal.recover.wal_reader import WalContent, WalReader
from tidelog.wal.write.checkpoint import WalCheckpoint
from tidelog.workers.offload import Offload


@dataclass(frozen=True, slots=True)
class MergedNames:
    """The names in the WALs of merged objects that were listed before the WALs were read."""

    newest: Mapping[Incarnation, int]
    """The highest listed number."""
    named: Mapping[Incarnation, frozenset[str]]
    """Objects named by the newest checkpoint or an entry at or above it.

    Only of those WALs that could be read to their ends.
    """

    def is_settled(self, found: MergedObjectKey) -> bool:
        """Whether its WAL does not name this object from the newest checkpoint on, and never will.

        False for unknown incarnations, and for the newest object of each incarnation.
        """
        owner, number = found
        named = self.named.get(owner)
        return (
            named is not None
            and number < self.newest.get(owner, 0)
            and merged_key(owner, number) not in named
        )


def highest_numbers(listed: Iterable[MergedObjectKey]) -> dict[Incarnation, int]:
    """The highest number of the merged objects of each incarnation."""
    newest: dict[Incarnation, int] = {}
    for owner, number in listed:
        newest[owner] = max(newest.get(owner, 0), number)
    return newest


def names_in(content: WalContent) -> frozenset[str] | None:
    """Other objects with batches that a WAL names from its newest checkpoint on.

    None if a part of the WAL is missing or broken.
    """
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
    """Read the WALs of the live incarnations with listed merged objects.

    Merged objects of other incarnations are deleted only when their whole WAL is passed. Raises
    StoreError and UnsupportedFormat.
    """
    newest = highest_numbers(found for found in listed if state.is_live(found.incarnation.epoch))
    named: dict[Incarnation, frozenset[str]] = {}
    reader = WalReader(store, offload)
    for owner in newest:
        names = names_in(await reader.read(owner, None))
        if names is not None:
            named[owner] = names
    return MergedNames(newest, named)
