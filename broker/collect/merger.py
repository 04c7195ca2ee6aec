"""Merges old WAL objects, so that this broker's partitions keep few of them from collection.

`run` is the task. One pass has three parts:

1. The merger writes a checkpoint if the newest one lacks enough: a collector deletes only objects
   below a checkpoint (F1).
2. If too many old objects hold batches that no table has yet, the merger copies the emptiest ones
   into one object (`merge_plan`, `merged_object`). An entry in the WAL tells where the batches lie
   now.
3. The merger writes a checkpoint with the new places.

The first passes come soon after the start, each at twice the time of the one before, up to the
interval. So the objects of dead predecessors become fewer even if no process lives long. They merge
these alone: a process that lives long merges its own at the interval, and they may be needless by
then.

If a merge fails:

- The process dies before the merged object is put, or the outcome of the put stays unknown. No
  entry names the object. The next collection deletes it, or one after this WAL is passed.
- The process dies after the put, before the WAL names the object: the same.
- The process dies while the slot with the entry is in flight. Recovery replays the slot, or finds
  the batches in the old objects, which stay while the newest checkpoint refers to them.
- Another broker fences this one. The slot meets the seal, so no checkpoint of a fenced incarnation
  refers to an object that its WAL does not name.
- A reader holds old extents. Their objects stay for the grace at least; a later reader asks the
  partition's log again (F4).

The entry in the WAL makes recovery from an older checkpoint refer to the same objects as recovery
from the newest. Without it, recovery would refer to objects that a collector takes for superfluous
(the ownership model shows it).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from math import inf
from typing import NoReturn

from tidelog.broker.partitions.log_writer import LogWriter
from tidelog.broker.partitions.partitions import Partition, PartitionError, PartitionRegistry
from tidelog.broker.read.wal_tier import LogReader
from tidelog.bucket.object_keys import WAL_FOLDER
from tidelog.bucket.object_keys import MergedObjectKey as MergedKey
from tidelog.clock import Clock
from tidelog.concurrency import all_results
from tidelog.coordinator.cluster.membership.tenure_reports import TenureReports
from tidelog.counts import counter
from tidelog.crash_points import CrashPoint, CrashPoints
from tidelog.entropy import Entropy
from tidelog.errors import CorruptObject, TidelogError, UnsupportedFormat
from tidelog.identifiers import Incarnation, Slot, TopicPartition
from tidelog.storage.object_store import Buffer, IfAbsent, ObjectStore, StoreError
from tidelog.wal.format.merged_object import ExtentRun, MergedObject, MergeSource, assemble_merged
from tidelog.wal.format.object_format import MERGED_FOLDER, wal_key, wal_prefix
from tidelog.wal.format.slot_index import SlotIndex
from tidelog.wal.log.extents import Extent, Place
from tidelog.wal.read.index import read_batch_index
from tidelog.wal.roll.merge_plan import MergePlan, WalMergeLimits, plan_merge
from tidelog.wal.roll.pace import Throttle, rate_of
from tidelog.wal.write.checkpoint import Checkpointer
from tidelog.wal.write.writer import WalWriter
from tidelog.workers.offload import Offload

logger = logging.getLogger(__name__)

MERGES_A_PASS_MAX = 256
MERGE_BYTES_MAX = 16 * 1024 * 1024
"""Bytes that one merge copies; twice as much is in memory."""
MERGE_SOURCES_MAX = 1024
"""Objects of one merge. To free the index of one takes the event loop some 5 µs."""
EXTENTS_AT_ONCE = 64
EXTENT_OBJECTS = 1 / 16
"""The cost of reading an extent, as a part of the cost of reading an object's index."""
INDEXES_AT_ONCE_MAX = 64
FIRST_SHARE = 1 / 64
"""The first pass begins after this part of the interval."""
SPREAD_SHARE = 3 / 4
"""A pass takes this part of the interval."""
GRACE_SHARE_MAX = 1 / 8
"""A pass takes at most this part of the grace. In a longer one, objects that a roll made needless
might be deleted before the pass reads them."""
OBJECTS_A_SECOND_MIN = 100
"""The least rate. Each object takes up to a quarter of a millisecond of the event loop."""
CHECKPOINT_SLOTS_MIN = 64
"""After this many slots since the newest checkpoint, the next pass writes one."""
DAMAGED_REMEMBERED_MAX = 10_000


@dataclass(slots=True)
class MergeMetrics:
    """The counts of merges."""

    merges: int = counter("tidelog_wal_merges", "Merged objects written.")
    objects: int = counter(
        "tidelog_wal_merged_objects",
        "Objects that a merge has made needless for all partitions.",
    )
    bytes: int = counter("tidelog_wal_merged_bytes", "Bytes that merges wrote.")
    failures: int = counter(
        "tidelog_wal_merge_failures", "Failed merges, and damaged objects met by merges."
    )


class MergedObjects:
    """Which of this incarnation's merged objects its WAL names, as only this process knows."""

    def __init__(self, incarnation: Incarnation) -> None:
        self._incarnation = incarnation
        self._next = 0
        self._pending: int | None = None
        self._named: dict[int, Slot] = {}

    def begin(self) -> int:
        """The next object's number. Only this process numbers its incarnation's merged objects."""
        self._pending = self._next
        self._next += 1
        return self._pending

    def end(self, slot: Slot | None) -> None:
        """The last entry that names it lies in this slot; None: it will never be named."""
        if self._pending is not None and slot is not None:
            self._named[self._pending] = slot
        self._pending = None

    def is_settled(self, found: MergedKey, floor: Slot) -> bool:
        """Whether no entry at or above the floor names this object, nor will any."""
        if found.incarnation != self._incarnation or found.number == self._pending:
            return False
        slot = self._named.get(found.number)
        if slot is not None and slot >= floor:
            return False
        self._named.pop(found.number, None)
        return found.number < self._next


def old_objects(incarnation: Incarnation, floor: Slot) -> Callable[[str], bool]:
    """Whether the object of a key may go as soon as it has no live bytes, as one broker judges.

    True below the incarnation's floor, and for all objects of others. Objects above the floor stay
    anyway, and may soon be in a table. Staged objects are not merged. It compares keys as they
    sort, since a plan asks it for every object with live batches.
    """
    own, first_young = wal_prefix(incarnation), wal_key(incarnation, floor)
    others = (WAL_FOLDER, MERGED_FOLDER)
    return lambda key: key < first_young if key.startswith(own) else key.startswith(others)


class Merger:
    """One incarnation's merges and timely checkpoints."""

    def __init__(
        self,
        store: ObjectStore,
        clock: Clock,
        entropy: Entropy,
        offload: Offload,
        writer: WalWriter,
        log_writer: LogWriter,
        reader: LogReader,
        partitions: PartitionRegistry,
        tenure_reports: TenureReports,
        checkpointer: Checkpointer,
        interval_seconds: float,
        grace_seconds: float,
        objects_max: int,
        crash_points: CrashPoints,
    ) -> None:
        self._store = store
        self._clock = clock
        self._entropy = entropy
        self._offload = offload
        self._writer = writer
        self._log_writer = log_writer
        self._reader = reader
        self._partitions = partitions
        self._tenure_reports = tenure_reports
        self._checkpointer = checkpointer
        self._interval_seconds = interval_seconds
        self._limits = WalMergeLimits(objects_max, MERGE_BYTES_MAX, MERGE_SOURCES_MAX)
        self._crash_points = crash_points
        self._checkpoint_seconds = grace_seconds
        self._checkpointed_at = clock.monotonic()
        self._has_merged = False
        self._throttle = Throttle(inf)
        self._spread_seconds = min(SPREAD_SHARE * interval_seconds, GRACE_SHARE_MAX * grace_seconds)
        self._spread_until = clock.monotonic()
        self._damaged: dict[str, None] = {}
        self.merged = MergedObjects(writer.incarnation)
        self.metrics = MergeMetrics()

    async def run(self) -> NoReturn:
        """Passes at intervals, until cancelled."""
        began_at = self._clock.monotonic()
        share = FIRST_SHARE
        while True:
            seconds = began_at + share * self._interval_seconds - self._clock.monotonic()
            await self._clock.sleep(max(0.0, seconds))
            began_at = self._clock.monotonic()
            share = min(1.0, 2 * share)
            try:
                await self.maintain(share)
            except StoreError as error:
                # A failed merge costs only space in the bucket.
                self.metrics.failures += 1
                logger.warning(
                    "WAL objects could not be merged; it will be tried again",
                    extra={"key": error.key, "why": str(error)},
                )

    async def maintain(self, share: float = 1.0) -> None:
        """One pass, which ends after `share` of the time for a whole pass.

        It merges objects of this incarnation only if it is a whole one. Raises StoreError, WalLost.
        """
        began_at = self._clock.monotonic()
        self._spread_until = began_at + self._spread_seconds
        ends_at = began_at + share * self._spread_seconds
        # Objects below the checkpoint are old from then on.
        await self._checkpoint_if_worth_it()
        for _ in range(MERGES_A_PASS_MAX):
            if not await self._merge(own=share == 1.0) or self._clock.monotonic() > ends_at:
                # The next pass merges the rest.
                break
        await self._checkpoint_if_worth_it()

    async def _checkpoint_if_worth_it(self) -> None:
        if self._checkpoint_is_worth_it():
            await self._checkpointer.checkpoint()
            self._checkpointed_at = self._clock.monotonic()
            self._has_merged = False

    def _checkpoint_is_worth_it(self) -> bool:
        since = self._checkpointer.slots_since
        waited = self._clock.monotonic() - self._checkpointed_at >= self._checkpoint_seconds
        return (
            self._has_merged
            or since >= CHECKPOINT_SLOTS_MIN
            or (waited and self._checkpointer.has_changes)
            or (self._tenure_reports.waiting > 0 and len(self._partitions.checkpointed) > 0)
        )

    async def _merge(self, *, own: bool) -> bool:
        """Merge once, also this incarnation's objects if `own`; whether there may be more."""
        found = await self._plan(own=own)
        if found is None:
            return False
        plan, planned_for = found
        # Objects become old while these are merged.
        rate = rate_of(plan.old_objects, self._seconds_left(), OBJECTS_A_SECOND_MIN)
        self._throttle.renew(rate, self._clock.monotonic())
        number = self.merged.begin()
        slot: Slot | None = None
        try:
            stored = await self._store_merged(plan, number)
            if stored is None:
                return True
            self._crash_points.hit(CrashPoint.MERGED_STORED)
            # A checkpoint that is under way was taken before: it must not refer to the object.
            async with self._checkpointer.paused():
                slot = self._relocate(stored.moved, planned_for)
        finally:
            self.merged.end(slot)
        if slot is not None:
            self._has_merged = True
            await self._writer.durable(slot)
            self._crash_points.hit(CrashPoint.MERGED_NAMED)
        self.metrics.merges += 1
        self.metrics.objects += plan.objects
        self.metrics.bytes += stored.size_bytes
        logger.info(
            "WAL objects were merged",
            extra={"key": stored.key, "objects": plan.objects, "bytes": stored.size_bytes},
        )
        return True

    def _seconds_left(self) -> float:
        """The time that is left for this pass."""
        return self._spread_until - self._clock.monotonic()

    async def _plan(
        self, *, own: bool
    ) -> tuple[MergePlan, Mapping[TopicPartition, Partition]] | None:
        """The next merge, and the partitions that it was planned for."""
        floor = self._checkpointer.floor if own else None
        is_old = old_objects(self._writer.incarnation, floor or Slot(0))
        partitions = {
            hosted.log.partition: hosted
            for hosted in self._partitions
            if hosted.fault is None and len(hosted.log.extents)
        }
        extents = {place: hosted.log.extents.copy() for place, hosted in partitions.items()}
        plan = await self._offload.run(plan_merge, extents, is_old, self._damaged, self._limits)
        return None if plan is None else (plan, partitions)

    async def _store_merged(self, plan: MergePlan, number: int) -> MergedObject | None:
        """Copy the planned batches; None if a source is damaged. The next plan leaves it out.

        Raises StoreError: the bucket may have the object, which no entry will name.
        """
        keys = sorted({extent.key for run in plan.runs for extent in run.extents})
        indexes = await self._read_indexes(keys)
        found = await self._read_extents([e for run in plan.runs for e in run.extents])
        if indexes is None or found is None:
            return None
        runs = [
            ExtentRun(run.partition, [MergeSource(each, found[each.place]) for each in run.extents])
            for run in plan.runs
        ]
        try:
            merged = await self._offload.run(
                assemble_merged,
                self._writer.incarnation,
                number,
                self._entropy.uuid().bytes,
                runs,
                indexes,
            )
        except CorruptObject as error:
            self._leave_out(error)
            return None
        await self._store.put(merged.key, merged.pieces, IfAbsent())
        return merged

    async def _read_indexes(self, keys: Iterable[str]) -> Mapping[str, SlotIndex] | None:
        async def read(key: str) -> SlotIndex | CorruptObject:
            # Decoding an index in memory takes a third of the time of a read from the store.
            held = self._reader.whole(key)
            try:
                return await read_batch_index(self._store, self._offload, key, held)
            except CorruptObject as error:
                return error
            except UnsupportedFormat as error:
                # The partition has come from a broker of a newer version.
                return CorruptObject(key, str(error))

        left = iter(keys)
        indexes: dict[str, SlotIndex] = {}
        is_whole = True

        async def read_what_is_left() -> None:
            nonlocal is_whole
            for key in left:
                await self._wait_for_reads(1)
                index = await read(key)
                if isinstance(index, CorruptObject):
                    self._leave_out(index)
                    is_whole = False
                else:
                    indexes[key] = index

        await all_results(read_what_is_left() for _ in range(INDEXES_AT_ONCE_MAX))
        return indexes if is_whole else None

    async def _wait_for_reads(self, objects: float) -> None:
        """Wait until this many more objects may be read."""
        now = self._clock.monotonic()
        seconds = self._throttle.seconds_to_wait(now)
        self._throttle.begin(now)
        self._throttle.note(objects)
        await self._clock.sleep(seconds)

    async def _read_extents(self, extents: list[Extent]) -> Mapping[Place, Buffer] | None:
        """The extents' bytes, each proved to be its batches."""
        found: dict[Place, Buffer] = {}
        is_whole = True
        for first in range(0, len(extents), EXTENTS_AT_ONCE):
            await self._wait_for_reads(EXTENTS_AT_ONCE * EXTENT_OBJECTS)
            loaded = await self._reader.load(extents[first : first + EXTENTS_AT_ONCE])
            for place, outcome in loaded.items():
                if isinstance(outcome, CorruptObject):
                    self._leave_out(outcome)
                    is_whole = False
                elif isinstance(outcome, TidelogError):
                    raise outcome
                else:
                    found[place] = outcome
        return found if is_whole else None

    def _leave_out(self, error: CorruptObject) -> None:
        if len(self._damaged) >= DAMAGED_REMEMBERED_MAX:
            del self._damaged[next(iter(self._damaged))]
        self._damaged[error.key] = None
        self.metrics.failures += 1
        logger.error(
            "an unreadable object is not merged", extra={"key": error.key, "why": error.why}
        )

    def _relocate(
        self,
        moved: Iterable[tuple[TopicPartition, Extent]],
        planned_for: Mapping[TopicPartition, Partition],
    ) -> Slot | None:
        """Tell the logs and the WAL the batches' new places; returns the slot of the last entry."""
        newest: Slot | None = None
        for place, extent in moved:
            try:
                slot = self._log_writer.relocate(planned_for[place], extent)
            except PartitionError:
                # The partition has left since the plan, or has turned out to be damaged.
                continue
            newest = newest if slot is None else slot
        return newest
