"""Which partitions have lost data, and what remains of them.

A partition that cannot be recovered is rebuilt around its losses (`wal/salvage`). A partition that
can be recovered is read, and unreadable extents are filled. Nothing is changed here.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from tidelog.bucket.fsck.context import Progress
from tidelog.bucket.views.bucket import Bucket
from tidelog.bucket.views.partition_view import PartitionView
from tidelog.bucket.views.reading import BucketView
from tidelog.concurrency import read_all
from tidelog.coordinator.cluster.log.leases import read_durable_end
from tidelog.coordinator.cluster.records.records import OffsetRange
from tidelog.errors import CorruptObject, MissingObject
from tidelog.identifiers import (
    FIRST_LEADER_EPOCH,
    FIRST_SLOT,
    Incarnation,
    Slot,
    TenureKey,
    TopicPartition,
)
from tidelog.storage.segment.segment import table_prefix
from tidelog.storage.table.table_state import PartitionTable
from tidelog.wal.log.extents import Extent, Extents
from tidelog.wal.log.image import PartitionImage
from tidelog.wal.log.leader_epochs import EpochStart
from tidelog.wal.log.tenure import Tenure
from tidelog.wal.recover.filler import Filler
from tidelog.wal.recover.recovery import decode_handover
from tidelog.wal.recover.salvage import (
    AbortedLoss,
    Event,
    Found,
    events_of,
    filled_offsets,
    patch,
    salvage,
)
from tidelog.wal.recover.wal_reader import WalContent
from tidelog.wal.write.checkpoint import WalCheckpoint, list_checkpoints

PARTITIONS_AT_ONCE_MAX = 8


@dataclass(frozen=True, slots=True)
class PartitionDamage:
    """The losses of one partition, and the image with which it continues."""

    partition: TopicPartition
    name: str
    """The name for people, like `flights-0`."""
    faults: Mapping[str, str]
    """The faults of the objects to blame, by their keys."""
    image: PartitionImage
    lost: tuple[OffsetRange, ...]
    aborted: tuple[AbortedLoss, ...] = ()
    superfluous: tuple[str, ...] = ()
    """Objects to delete with the loss: unreadable states of a coordinator."""

    @property
    def is_loss(self) -> bool:
        """Whether records, or the ends of transactions, are lost."""
        return bool(self.lost or self.aborted or self.superfluous)


@dataclass(slots=True)
class _BaseSearch:
    """The findings of the search for a partition's base."""

    events: list[Event] = field(default_factory=list)
    faults: dict[str, str] = field(default_factory=dict)

    @classmethod
    def blaming(cls, errors: Iterable[CorruptObject]) -> _BaseSearch:
        found = cls()
        for error in errors:
            found.blame(error)
        return found

    def blame(self, error: CorruptObject) -> None:
        self.faults.setdefault(error.key, error.why)


@dataclass(frozen=True, slots=True)
class SoundEnd:
    """The readable part of a table, with the faults that may have cut it short."""

    table: PartitionTable
    faults: tuple[CorruptObject, ...] = ()


async def damaged_partitions(
    bucket: Bucket,
    view: BucketView,
    ends: Mapping[TopicPartition, SoundEnd],
    filler: Filler,
    progress: Progress,
) -> list[PartitionDamage]:
    """The partitions in a view that have lost a part of their tails, by name.

    `ends` has the ends of all of them. `progress` is called with the object of each extent that was
    read. Raises StoreError and UnsupportedFormat.
    """
    state = view.state
    at_once = asyncio.Semaphore(PARTITIONS_AT_ONCE_MAX)
    survey = _Survey(bucket, filler, progress)

    async def whole(seen: PartitionView) -> PartitionDamage | None:
        end = ends[seen.partition]
        found = _BaseSearch.blaming(end.faults) if end.faults else None
        return await survey.patched(view.name_of(seen.partition), seen.image, end, found)

    async def broken(partition: TopicPartition) -> PartitionDamage | None:
        name, failure = view.name_of(partition), view.failures[partition]
        found = _BaseSearch.blaming((*ends[partition].faults, failure))
        damage = await survey.rebuilt(
            name, state.tenures(partition), partition, ends[partition], found
        )
        # If its table is to blame and comes back whole, the partition has lost nothing.
        is_tables = failure.key.startswith(table_prefix(partition.topic_id))
        return damage if damage.is_loss or not is_tables else None

    found = [
        *await read_all(whole, list(view.partitions.values()), at_once),
        *await read_all(broken, [each for each in view.failures if each in ends], at_once),
    ]
    return sorted((each for each in found if each is not None), key=lambda each: each.name)


class _Readable(NamedTuple):
    content: WalContent
    faults: Sequence[CorruptObject]
    """The faults of newer checkpoints."""


class _Survey:
    def __init__(self, bucket: Bucket, filler: Filler, progress: Progress) -> None:
        self._bucket = bucket
        self._access = bucket.access
        self._filler = filler
        self._progress = progress
        self._contents: dict[Incarnation, asyncio.Task[_Readable]] = {}

    async def patched(
        self,
        name: str,
        image: PartitionImage,
        end: SoundEnd,
        found: _BaseSearch | None = None,
        aborted: tuple[AbortedLoss, ...] = (),
    ) -> PartitionDamage | None:
        """The damage of a partition with a known log; None if there is none."""
        known = found or _BaseSearch()
        unreadable = set()
        table_next = end.table.next_offset
        async for extent, error in self._unreadable(image.extents, table_next):
            unreadable.add(extent)
            known.blame(error)
        if not unreadable and found is None:
            return None
        image = patch(image, unreadable, table_next, self._filler)
        fault = image.fault()
        if fault is not None:
            raise CorruptObject(self._filler.key, f"the rest of {name} makes no log: {fault}")
        # A batch that fills a hole may begin below the table's end. The table has those offsets.
        lost = tuple(
            OffsetRange(max(first, table_next), last)
            for first, last in filled_offsets(image, self._filler)
            if last >= table_next
        )
        superfluous = tuple(fault.key for fault in end.faults)
        return PartitionDamage(
            image.partition, name, known.faults, image, lost, aborted, superfluous
        )

    async def rebuilt(
        self,
        name: str,
        tenures: Sequence[Tenure],
        partition: TopicPartition,
        end: SoundEnd,
        found: _BaseSearch,
    ) -> PartitionDamage:
        """The damage of a partition that cannot be recovered."""
        base = await self._base(tenures, partition, end, found)
        is_ahead = self._is_ahead(base, end, found.events)
        if is_ahead:
            # The partition's fault stands for the objects that the log has lost.
            found.events.append(CorruptObject(*next(iter(found.faults.items()))))
        left = await self._access.offload.run(salvage, base, found.events, self._filler)
        for event in found.events:
            if isinstance(event, CorruptObject):
                found.blame(event)
        # Transactions in a table have ended, though the log does not tell how.
        aborted = () if is_ahead else left.aborted
        damage = await self.patched(name, left.image, end, found, aborted)
        assert damage is not None
        return damage

    def _is_ahead(self, base: PartitionImage, end: SoundEnd, events: Iterable[Event]) -> bool:
        """Whether a table has more than the log that is left: the log has lost its end.

        Coordinators' states are no tables, and no client has seen the offsets of their logs.
        """
        if self._access.cluster.state.topics[base.partition.topic_id].internal:
            return False
        ends = (each.entry.last_offset + 1 for each in events if isinstance(each, Found))
        return max([base.next_offset, *ends]) < end.table.next_offset

    async def _base(
        self,
        tenures: Sequence[Tenure],
        partition: TopicPartition,
        end: SoundEnd,
        found: _BaseSearch,
    ) -> PartitionImage:
        """The newest readable image; its successors go to `found.events`."""
        for number in range(len(tenures) - 1, -1, -1):
            tenure = tenures[number]
            key = (partition, tenure.leader_epoch)
            content = await self._content(tenure.incarnation, found)
            image, slot = self._image_in(content, key, found)
            found.events[:0] = events_of(content, key, slot)
            if image is not None:
                return image
            if tenure.handover is not None:
                image = await self._handover(tenure.handover, partition, found)
                if image is not None:
                    return image
        oldest = tenures[0].leader_epoch
        if oldest == FIRST_LEADER_EPOCH:
            return PartitionImage.empty(partition, oldest)
        # The table alone tells of earlier records.
        following, segments = end.table.next_offset, end.table.segments
        start = segments[0].segment.name.base_offset if segments else following
        epochs = (EpochStart(oldest, following),)
        return PartitionImage(
            partition, oldest, following, start, following, epochs, (), True, (), Extents()
        )

    async def _content(self, incarnation: Incarnation, found: _BaseSearch) -> WalContent:
        if incarnation not in self._contents:
            self._contents[incarnation] = asyncio.create_task(self._read(incarnation))
        content, faults = await self._contents[incarnation]
        for fault in faults:
            found.blame(fault)
        return content

    async def _read(self, incarnation: Incarnation) -> _Readable:
        """A WAL from its newest readable checkpoint, else from its beginning."""
        access = self._access
        state = access.cluster.state
        retired = state.retired.get(incarnation.epoch)
        info = state.brokers.get(incarnation.epoch)
        told = FIRST_SLOT if info is None else await read_durable_end(access.store, info)
        end = None if retired is None else retired.end_slot
        floors: list[Slot | None] = [*await list_checkpoints(access.store, incarnation)]
        faults: list[CorruptObject] = []
        for floor in (*reversed(floors), None):
            content = await access.wals.read_from(incarnation, floor, end, told)
            if not isinstance(content.checkpoint, CorruptObject):
                return _Readable(content, faults)
            faults.append(content.checkpoint)
        raise AssertionError("a WAL that is read without a checkpoint has none that is damaged")

    def _image_in(
        self, content: WalContent, key: TenureKey, found: _BaseSearch
    ) -> tuple[PartitionImage | None, Slot]:
        try:
            row = content.in_checkpoint.get(key)
            if row is not None:
                assert isinstance(content.checkpoint, WalCheckpoint)
                return content.checkpoint.images.image(row), content.start
            opening = content.opening_images.get(key)
            if opening is not None:
                slot, row = opening
                index = content.slots[slot - content.start]
                assert not isinstance(index, CorruptObject)
                assert index.images is not None
                return index.images.image(row), slot
        except CorruptObject as error:
            found.blame(error)
        return None, content.start

    async def _handover(
        self, key: str, partition: TopicPartition, found: _BaseSearch
    ) -> PartitionImage | None:
        data = await self._access.wals.read_object(key)
        try:
            if isinstance(data, MissingObject):
                raise data
            return decode_handover(key, data, partition)
        except CorruptObject as error:
            found.blame(error)
            return None

    async def _unreadable(
        self, extents: Extents, table_next: int
    ) -> AsyncIterator[tuple[Extent, CorruptObject]]:
        """The extents from an offset on with unreadable batches, and the reasons.

        Extents that are filled already are not in the bucket yet, and are left out.
        """
        for extent in extents.from_offset(table_next):
            if extent.key == self._filler.key:
                continue
            try:
                async for _ in self._bucket.tails.batches((extent,)):
                    pass
            except CorruptObject as error:
                yield extent, error
            self._progress(extent.key)
