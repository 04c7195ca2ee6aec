"""Rebuilds partitions from the bucket: to open them (C5 to C7), or to read them (G2, G3).

The pure part takes the content of WALs. `choose_base` finds the base of a tenure. `replay` applies
the later entries of the WAL with the functions of the partition log. The shell `recover` reads, for
each needed incarnation, the newest checkpoint and the ends of the WAL objects after it. It reads no
batches. A WAL is needed if it belongs to a partition's newest tenure. If that tenure never opened,
the WAL of the tenure before is needed, and so on.

A damaged or missing object harms only partitions whose logs need it. `recover` reports these and
returns the others. A reader that dies has changed nothing. An old owner that still writes cannot
change slots below the end of a sealed WAL.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import NamedTuple

from tidelog.clock import Clock
from tidelog.concurrency import read_all
from tidelog.errors import CorruptObject
from tidelog.identifiers import (
    FIRST_LEADER_EPOCH,
    FIRST_SLOT,
    Incarnation,
    MetadataStamp,
    Slot,
    TenureKey,
    TopicPartition,
)
from tidelog.storage.object_store import Buffer, ObjectStore
from tidelog.wal.format.image_codec import Images
from tidelog.wal.format.object_format import wal_prefix
from tidelog.wal.format.slot_index import SlotIndex
from tidelog.wal.log.image import PartitionImage
from tidelog.wal.log.partition_log import PartitionLog
from tidelog.wal.log.tenure import Tenure, TenureEnd
from tidelog.wal.recover.wal_reader import WalContent, WalReader
from tidelog.wal.write.checkpoint import WalCheckpoint
from tidelog.workers.offload import Offload

WALS_AT_ONCE_MAX = 8
HANDOVERS_AT_ONCE_MAX = 64


class Base(NamedTuple):
    """The base of a tenure's log: an image, and the first slot whose entries follow it."""

    image: PartitionImage
    slot: Slot


@dataclass(frozen=True, slots=True)
class Recovered:
    """The state of some partitions in the bucket."""

    images: dict[TopicPartition, PartitionImage] = field(default_factory=dict)
    failures: dict[TopicPartition, CorruptObject] = field(default_factory=dict)
    """The partitions that cannot be rebuilt, each with the damaged object."""
    ends: dict[Incarnation, Slot] = field(default_factory=dict)
    """The slot up to which each WAL was read."""
    stamps: dict[str, MetadataStamp] = field(default_factory=dict)
    """The last metadata stamps of the WALs' writers, by the object with the stamp (C11)."""
    seconds: float = 0.0
    """The duration of the recovery."""


def choose_base(
    content: WalContent, tenure: TenureKey, end: Slot | None = None
) -> Base | CorruptObject | None:
    """The tenure's base in its incarnation's WAL (C5): checkpoint, else opening image.

    `end`: the end of a tenure that was given away; all its entries lie below that slot.

    Returns None if the tenure never opened, so it accepted no record. CorruptObject: damage hides
    whether it opened, or the image is damaged.
    """
    try:
        row = content.in_checkpoint.get(tenure)
        if row is not None:
            assert isinstance(content.checkpoint, WalCheckpoint)
            return Base(content.checkpoint.images.image(row), content.start)
        opening = content.opening_images.get(tenure)
        if opening is not None:
            slot, row = opening
            found = content.slots[slot - content.start]
            assert isinstance(found, SlotIndex)
            assert found.images is not None
            return Base(found.images.image(row), slot)
    except CorruptObject as error:
        return error
    if isinstance(content.checkpoint, CorruptObject):
        return content.checkpoint
    return content.damage_of(tenure, content.start, end)


def replay(
    content: WalContent,
    bases: Mapping[TenureKey, Base],
    ends: Mapping[TenureKey, Slot] = MappingProxyType({}),
) -> dict[TenureKey, PartitionImage | CorruptObject]:
    """The state of each tenure at its end (C6): its base and the entries after it, in order.

    A tenure ends at the WAL's end, or at its slot in `ends`.

    If a slot is missing or damaged, every tenure fails that may have an entry in it.
    """
    logs: dict[TenureKey, PartitionLog] = {}
    results: dict[TenureKey, PartitionImage | CorruptObject] = {}
    for tenure, base in bases.items():
        damage = content.damage_of(tenure, base.slot, ends.get(tenure))
        if damage is not None:
            results[tenure] = damage
    for number, slot in enumerate(content.slots, content.start):
        if isinstance(slot, CorruptObject):
            continue
        for entry in slot.entries(bases):
            tenure = (entry.topic_partition, entry.leader_epoch)
            base = bases[tenure]
            if tenure in results or number < base.slot or number >= ends.get(tenure, content.end):
                continue
            log = logs.get(tenure)
            if log is None:
                log = logs[tenure] = PartitionLog.from_image(base.image)
            try:
                log.replay(entry, slot.header.created_ms)
            except CorruptObject as error:
                results[tenure] = error
    for tenure, base in bases.items():
        if tenure not in results:
            results[tenure] = logs[tenure].image() if tenure in logs else base.image
    return results


def rebuild(
    content: WalContent,
    tenures: Iterable[TenureKey],
    ends: Mapping[TenureKey, Slot] = MappingProxyType({}),
) -> dict[TenureKey, PartitionImage | CorruptObject | None]:
    """Each tenure's state at its end, or its damage, or None if it never opened.

    `ends`: as for `replay`.
    """
    results: dict[TenureKey, PartitionImage | CorruptObject | None] = {}
    bases: dict[TenureKey, Base] = {}
    for tenure in tenures:
        found = choose_base(content, tenure, ends.get(tenure))
        if isinstance(found, Base):
            bases[tenure] = found
        else:
            results[tenure] = found
    results.update(replay(content, bases, ends))
    return results


def decode_handover(key: str, data: Buffer, partition: TopicPartition) -> PartitionImage:
    """The image in a hand-over object (C3). Raises CorruptObject and UnsupportedFormat."""
    images = Images(key, data)
    if len(images) != 1 or images.tenures[0][0] != partition:
        raise CorruptObject(key, f"it does not hold the image of {partition}, and that alone")
    return images.image(0)


async def recover(
    store: ObjectStore,
    clock: Clock,
    offload: Offload,
    tenures: Mapping[TopicPartition, Sequence[Tenure]],
    ends: Mapping[Incarnation, Slot],
    unopened: Container[Incarnation] = (),
    reader: WalReader | None = None,
    told: Mapping[Incarnation, Slot] = MappingProxyType({}),
    opener: Incarnation | None = None,
) -> Recovered:
    """The state of partitions, from the bucket alone.

    - `tenures`: those in the metadata log, oldest first, at least one for each partition.
    - `ends`: the ends of the sealed WALs. Any other WAL is live and counts up to its first missing
      slot (G2), or up to the slot at which its partitions were given away. They may get another
      owner meanwhile. So the caller reads the metadata log again afterwards, and begins again if a
      partition's tenures have changed.
    - `unopened`: incarnations that have opened none of these partitions.
    - `opener`: this incarnation is about to open its newest tenures, which no broker has opened.
    - `reader`: a remembering one, for callers that recover repeatedly.
    - `told`: the numbers of durable slots of live WALs, by their leases (C10).

    An image has the leader epoch of its tenure. Raises StoreError and UnsupportedFormat.
    """
    started = clock.monotonic()
    search = _TenureSearch(reader or WalReader(store, offload), offload, tenures, ends, told)
    waiting = {partition: len(known) - 1 for partition, known in tenures.items()}
    if opener is not None:
        waiting = await search.skip_newest(waiting, opener)
    while waiting:
        waiting = await search.try_tenures(waiting, unopened)
    return replace(search.found, seconds=clock.monotonic() - started)


class _TenureSearch:
    """Searches the tenures of all partitions backwards together, and reads each WAL once."""

    def __init__(
        self,
        reader: WalReader,
        offload: Offload,
        tenures: Mapping[TopicPartition, Sequence[Tenure]],
        ends: Mapping[Incarnation, Slot],
        told: Mapping[Incarnation, Slot],
    ) -> None:
        self.found = Recovered()
        self._reader = reader
        self._offload = offload
        self._tenures = tenures
        self._ends = ends
        self._durable_ends = told
        self._contents: dict[Incarnation, WalContent] = {}
        self._read_to: dict[Incarnation, Slot | None] = {}
        """The slot up to which each WAL was requested; None: to its end."""
        self._given: dict[TopicPartition, TenureEnd] = {}
        """The slot at which a partition's examined tenure ended, if it was given away."""
        self._next_offsets: dict[TopicPartition, int] = {}
        """The next offset of each partition that was given away, by the newest move."""

    async def skip_newest(
        self, waiting: Mapping[TopicPartition, int], opener: Incarnation
    ) -> dict[TopicPartition, int]:
        """As `try_tenures`. The newest tenures of `opener` are known to be unopened."""
        own, others = [], {}
        for partition, number in waiting.items():
            if self._tenures[partition][number].incarnation == opener:
                own.append(partition)
            else:
                others[partition] = number
        return others | await self._go_back(waiting, own)

    async def try_tenures(
        self, waiting: Mapping[TopicPartition, int], unopened: Container[Incarnation]
    ) -> dict[TopicPartition, int]:
        """Look into one tenure of each partition. Returns the next tenure for those not opened.

        `waiting`: the indexes of the tenures in their lists.
        """
        wanted: dict[Incarnation, list[TopicPartition]] = defaultdict(list)
        never_opened: list[TopicPartition] = []
        for partition, number in waiting.items():
            incarnation = self._tenures[partition][number].incarnation
            if incarnation in unopened:
                never_opened.append(partition)
            else:
                wanted[incarnation].append(partition)
        await self._read_wals(wanted)
        for incarnation, partitions in wanted.items():
            keys = {p: (p, self._tenures[p][waiting[p]].leader_epoch) for p in partitions}
            given = {key: self._given[p].slot for p, key in keys.items() if p in self._given}
            content = self._contents[incarnation]
            rebuilt = await self._offload.run(rebuild, content, list(keys.values()), given)
            for (partition, _), state in rebuilt.items():
                if state is None:
                    never_opened.append(partition)
                else:
                    self._settle(partition, state)
        return await self._go_back(waiting, never_opened)

    async def _read_wals(self, wanted: Mapping[Incarnation, Sequence[TopicPartition]]) -> None:
        async def read(incarnation: Incarnation) -> WalContent:
            told = self._durable_ends.get(incarnation, FIRST_SLOT)
            return await self._reader.read(incarnation, ends[incarnation], told)

        ends = {each: self._end_of(each, partitions) for each, partitions in wanted.items()}
        missing = [each for each, end in ends.items() if not self._has_read(each, end)]
        at_once = asyncio.Semaphore(WALS_AT_ONCE_MAX)
        for content in await read_all(read, missing, at_once):
            self._contents[content.incarnation] = content
            self._read_to[content.incarnation] = ends[content.incarnation]
            self.found.ends[content.incarnation] = content.end
            self.found.stamps.update(content.stamps)

    def _end_of(
        self, incarnation: Incarnation, partitions: Iterable[TopicPartition]
    ) -> Slot | None:
        """The slot up to which a WAL is needed: its end, or the slot where these partitions were
        given away, if it goes on. None: to its end, which must be found."""
        if incarnation in self._ends:
            return self._ends[incarnation]
        given = [self._given.get(partition) for partition in partitions]
        slots = [end.slot for end in given if end is not None]
        return max(slots) if len(slots) == len(given) else None

    def _has_read(self, incarnation: Incarnation, end: Slot | None) -> bool:
        if incarnation not in self._read_to:
            return False
        known = self._read_to[incarnation]
        return known is None or (end is not None and known >= end)

    async def _go_back(
        self, waiting: Mapping[TopicPartition, int], never_opened: Iterable[TopicPartition]
    ) -> dict[TopicPartition, int]:
        earlier: dict[TopicPartition, int] = {}
        handovers: list[tuple[TopicPartition, str]] = []
        for partition in never_opened:
            number = waiting[partition]
            tenure = self._tenures[partition][number]
            self._given.pop(partition, None)
            if tenure.previous_end is not None:
                self._given[partition] = tenure.previous_end
                self._next_offsets.setdefault(partition, tenure.previous_end.next_offset)
            if tenure.handover is not None:
                handovers.append((partition, tenure.handover))
            elif number > 0:
                earlier[partition] = number - 1
            elif tenure.leader_epoch == FIRST_LEADER_EPOCH:
                self._settle(partition, PartitionImage.empty(partition, tenure.leader_epoch))
            else:
                # The metadata log forgets a tenure only when a later one has opened.
                why = f"no image of {partition} at leader epoch {tenure.leader_epoch} in this WAL"
                key = wal_prefix(tenure.incarnation)
                self._settle(partition, CorruptObject(key, why))
        at_once = asyncio.Semaphore(HANDOVERS_AT_ONCE_MAX)
        for partition, state in await read_all(self._read_handover, handovers, at_once):
            self._settle(partition, state)
        return earlier

    async def _read_handover(
        self, handover: tuple[TopicPartition, str]
    ) -> tuple[TopicPartition, PartitionImage | CorruptObject]:
        partition, key = handover
        data = await self._reader.read_object(key)
        if isinstance(data, CorruptObject):
            return partition, data
        try:
            return partition, decode_handover(key, data, partition)
        except CorruptObject as error:
            return partition, error

    def _settle(self, partition: TopicPartition, state: PartitionImage | CorruptObject) -> None:
        expected = self._next_offsets.get(partition)
        if isinstance(state, PartitionImage) and expected not in (None, state.next_offset):
            # A missing row of the giver's checkpoint looks like a tenure that accepted nothing.
            giver = self._tenures[partition][0].incarnation
            why = (
                f"the remaining log of {partition} ends at offset {state.next_offset}, but it was"
                f" given away at {expected}"
            )
            state = CorruptObject(wal_prefix(giver), why)
        if isinstance(state, CorruptObject):
            self.found.failures[partition] = state
        else:
            self.found.images[partition] = state
