"""Reads one incarnation's WAL from the bucket: newest checkpoint, then footers and indexes."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice, takewhile
from typing import TypeAlias

from tidelog.concurrency import read_all
from tidelog.errors import CorruptObject, MissingObject
from tidelog.identifiers import (
    FIRST_SLOT,
    Incarnation,
    MetadataStamp,
    Slot,
    TenureKey,
    TopicPartition,
)
from tidelog.storage.object_store import Buffer, ObjectNotFound, ObjectStore
from tidelog.wal.format.object_format import ObjectHeader, ObjectKind, wal_key
from tidelog.wal.format.slot_index import SlotIndex
from tidelog.wal.read.index import read_index
from tidelog.wal.recover.wal_end import proved_end
from tidelog.wal.write.checkpoint import (
    WalCheckpoint,
    checkpoint_key,
    decode_checkpoint,
    newest_checkpoint,
)
from tidelog.workers.offload import Offload

READS_AT_ONCE_MAX = 128
READ_AHEAD_SLOTS_MAX = 32
REMEMBERED_WALS_MAX = 64


@dataclass(frozen=True)
class WalContent:
    """The content of one WAL from its newest checkpoint on, for all its tenures. Pure."""

    incarnation: Incarnation
    checkpoint: WalCheckpoint | CorruptObject | None
    start: Slot
    """The checkpoint's slot, else 0."""
    slots: Sequence[SlotIndex | CorruptObject]
    """The slots from `start` to the end, without a gap. A missing or damaged slot is its error. A
    missing slot above the WAL's stamps is the end (C10)."""
    in_checkpoint: Mapping[TenureKey, int]
    """The tenures in the checkpoint, and the rows of their images."""
    opening_images: Mapping[TenureKey, tuple[Slot, int]]
    """The tenures with an opening image in these slots: its slot, and its row in the images."""

    @property
    def end(self) -> Slot:
        return Slot(self.start + len(self.slots))

    def sound_from(self, start: Slot) -> Sequence[SlotIndex]:
        """The slots from `start` up to the first damaged or unread slot."""
        if not self.start <= start <= self.end:
            return ()
        slots = islice(self.slots, start - self.start, None)
        return [slot for slot in takewhile(_is_whole, slots) if isinstance(slot, SlotIndex)]

    @cached_property
    def written(self) -> frozenset[TopicPartition]:
        """The partitions with an entry in these slots."""
        slots = (slot for slot in self.slots if isinstance(slot, SlotIndex))
        return frozenset([place for slot in slots for place, _ in slot.tenures])

    @property
    def has_missing_objects(self) -> bool:
        """Whether an object of it is missing."""
        parts = (self.checkpoint, *self.slots)
        return any(isinstance(part, MissingObject) for part in parts)

    def damage_of(
        self, tenure: TenureKey, start: int, end: Slot | None = None
    ) -> CorruptObject | None:
        """The first damaged slot from `start` on, below `end`, that may hold an entry of the
        tenure."""
        for number, fault in self._damaged:
            if end is not None and number >= end:
                break
            if number >= start and self.may_hold(number, tenure):
                return fault
        return None

    @property
    def stamps(self) -> Mapping[str, MetadataStamp]:
        """The writer's metadata stamps, in its checkpoint and its newest slot (C11)."""
        found = {}
        if isinstance(self.checkpoint, WalCheckpoint) and self.checkpoint.metadata is not None:
            found[self.checkpoint.key] = self.checkpoint.metadata
        for slot in reversed(self.slots):
            if isinstance(slot, SlotIndex):
                if slot.header.stamps is not None:
                    found[slot.key] = slot.header.stamps.metadata
                break
        return found

    @property
    def first_damage(self) -> CorruptObject | None:
        """The first damaged part."""
        if isinstance(self.checkpoint, CorruptObject):
            return self.checkpoint
        return self._damaged[0][1] if self._damaged else None

    @cached_property
    def _damaged(self) -> Sequence[tuple[int, CorruptObject]]:
        slots = enumerate(self.slots, self.start)
        return [(number, found) for number, found in slots if isinstance(found, CorruptObject)]

    def may_hold(self, number: int, tenure: TenureKey) -> bool:
        """Whether a damaged slot may hold an entry of a tenure.

        The slots behind it name the slots with a tenure's previous entries.
        """
        for slot in islice(self.slots, number + 1 - self.start, None):
            if not isinstance(slot, SlotIndex):
                continue
            said = slot.previous_slot(tenure)
            if said is not None:
                return said >= number
            if slot.header.slot == number + 1 and slot.previous_slots is not None:
                return False
        return True


def _is_whole(slot: SlotIndex | CorruptObject) -> bool:
    return isinstance(slot, SlotIndex)


def content_of(
    incarnation: Incarnation,
    checkpoint: WalCheckpoint | CorruptObject | None,
    start: Slot,
    slots: Sequence[SlotIndex | CorruptObject],
) -> WalContent:
    """The content of these slots, each checked against the one before. Pure."""
    checked = _check_chain(slots)
    opening_images: dict[TenureKey, tuple[Slot, int]] = {}
    for found in checked:
        if isinstance(found, SlotIndex) and found.images is not None:
            for row, tenure in enumerate(found.images.tenures):
                opening_images.setdefault(tenure, (found.header.slot, row))
    listed = {}
    if isinstance(checkpoint, WalCheckpoint):
        listed = {tenure: row for row, tenure in enumerate(checkpoint.images.tenures)}
    return WalContent(incarnation, checkpoint, start, checked, listed, opening_images)


def _check_chain(slots: Sequence[SlotIndex | CorruptObject]) -> list[SlotIndex | CorruptObject]:
    """Each slot must name the checksum of the one before it."""
    checked: list[SlotIndex | CorruptObject] = []
    previous: SlotIndex | CorruptObject | None = None
    for found in slots:
        if (
            isinstance(found, SlotIndex)
            and isinstance(previous, SlotIndex)
            and found.header.previous_crc != previous.crc
        ):
            found = CorruptObject(found.key, "it does not continue the slot before it")
        checked.append(found)
        previous = found
    return checked


class WalReader:
    """Reads WALs; the limit on reads at once is shared by all.

    A reader that `remembers` keeps the content of each WAL from its newest checkpoint on, and reads
    only newer slots. Slots and checkpoints never change, so it returns what a new reader would. It
    does not notice the later loss of an object.
    """

    def __init__(self, store: ObjectStore, offload: Offload, *, remembers: bool = False) -> None:
        self._store = store
        self._offload = offload
        self._at_once = asyncio.Semaphore(READS_AT_ONCE_MAX)
        self._remembers = remembers
        self._known: dict[Incarnation, WalContent] = {}

    async def read(
        self, incarnation: Incarnation, end: Slot | None, told: Slot = FIRST_SLOT
    ) -> WalContent:
        """A WAL from its newest checkpoint to its end.

        `end` is that of a sealed WAL, or of the part that the caller needs: every slot below it
        must exist. Without `end`, every slot below the WAL's stamps must exist. Then the end is the
        first slot behind them that is missing or holds a seal (C10, G2). `told`: the stamp in the
        owner's lease or fence. If a newer checkpoint has replaced a missing object, the reading
        begins again (C7). Raises StoreError and UnsupportedFormat.
        """
        content = await self._read(incarnation, end, told)
        if self._remembers:
            self._known.pop(incarnation, None)
            self._known[incarnation] = content
            while len(self._known) > REMEMBERED_WALS_MAX:
                self._known.pop(next(iter(self._known)))
        return content

    async def _read(self, incarnation: Incarnation, end: Slot | None, told: Slot) -> WalContent:
        floor = await newest_checkpoint(self._store, incarnation)
        while True:
            content = await self.read_from(incarnation, floor, end, told)
            if end is not None and not content.has_missing_objects:
                return content
            newest = await newest_checkpoint(self._store, incarnation)
            if newest == floor:
                return content
            if not content.has_missing_objects and newest is not None and newest <= content.end:
                return content
            floor = newest

    async def read_object(self, key: str) -> Buffer | MissingObject:
        """A whole object, which must exist."""
        async with self._at_once:
            try:
                return (await self._store.get(key)).data
            except ObjectNotFound:
                return MissingObject(key, "it is missing")

    async def read_from(
        self, incarnation: Incarnation, floor: Slot | None, end: Slot | None, told: Slot
    ) -> WalContent:
        """Read once, from a checkpoint or from the WAL's beginning; `read` repeats it if needed."""
        checkpoint = None if floor is None else await self._read_checkpoint(incarnation, floor)
        start = Slot(0) if floor is None else floor
        known = self._known.get(incarnation)
        slots: list[SlotIndex | CorruptObject] = [*(known.sound_from(start) if known else ())]
        if end is None:
            slots += await self._read_to_the_end(incarnation, Slot(start + len(slots)), told)
        else:
            slots = slots[: max(0, end - start)]
            slots += await self._read_all(incarnation, range(start + len(slots), end))
        return await self._offload.run(content_of, incarnation, checkpoint, start, slots)

    async def _read_checkpoint(
        self, incarnation: Incarnation, slot: Slot
    ) -> WalCheckpoint | CorruptObject:
        known = self._known.get(incarnation)
        if known and known.start == slot and isinstance(known.checkpoint, WalCheckpoint):
            return known.checkpoint
        key = checkpoint_key(incarnation, slot)
        data = await self.read_object(key)
        if isinstance(data, CorruptObject):
            return data
        try:
            return await self._offload.run(decode_checkpoint, key, data)
        except CorruptObject as error:
            return error

    async def _read_to_the_end(
        self, incarnation: Incarnation, start: Slot, told: Slot
    ) -> list[SlotIndex | CorruptObject]:
        found = await self._read_ahead(incarnation, start)
        while True:
            at = Slot(start + len(found))
            proved = await proved_end(self._store, incarnation, at, told)
            if proved <= at:
                return found
            found += await self._read_all(incarnation, range(at, proved))
            found += await self._read_ahead(incarnation, proved)

    async def _read_all(
        self, incarnation: Incarnation, slots: range
    ) -> list[SlotIndex | CorruptObject]:
        """Read slots that must exist."""
        return [
            MissingObject(wal_key(incarnation, found.slot), "a seal lies in the place of records")
            if isinstance(found, ObjectHeader)
            else found
            for found in await self._read_slots(incarnation, slots)
        ]

    async def _read_ahead(
        self, incarnation: Incarnation, start: Slot
    ) -> list[SlotIndex | CorruptObject]:
        found: list[SlotIndex | CorruptObject] = []
        width = 1
        while True:
            first = start + len(found)
            for slot in await self._read_slots(incarnation, range(first, first + width)):
                if isinstance(slot, MissingObject | ObjectHeader):
                    return found
                found.append(slot)
            width = min(2 * width, READ_AHEAD_SLOTS_MAX)

    async def _read_slots(self, incarnation: Incarnation, slots: range) -> list[_Found]:
        async def read(number: int) -> _Found:
            return await self._read_slot(incarnation, Slot(number))

        return await read_all(read, slots, self._at_once)

    async def _read_slot(self, incarnation: Incarnation, slot: Slot) -> _Found:
        key = wal_key(incarnation, slot)
        try:
            found = await read_index(self._store, self._offload, key)
        except ObjectNotFound:
            return MissingObject(key, "it is missing")
        except CorruptObject as error:
            return error
        header = found.header if isinstance(found, SlotIndex) else found
        if header.kind is ObjectKind.MERGED:
            return CorruptObject(key, "a merged object in the place of a slot")
        if (header.incarnation, header.slot) != (incarnation, slot):
            return CorruptObject(key, f"it is slot {header.slot} of {header.incarnation}")
        return found


_Found: TypeAlias = "SlotIndex | ObjectHeader | CorruptObject"
