"""The WAL of one incarnation: group commit, uploads in flight, acknowledgement in slot order.

What is added goes into the slot being filled (`slot_filling`). One that is closed is laid out, and
put if absent (`slot_upload`). Several slots may be in flight; slot k counts as durable only when
0 to k are all confirmed as ours, in whatever order the answers come. Then `on_durable` runs, and
after it those who wait for slot k go on.

What happens when something fails:

- The process dies while a slot is being filled or laid out: nobody was told of it, nobody finds it.
- It dies while slots are in flight: each of them is in the bucket or not. Whoever takes over keeps
  those up to the first that is missing, puts a seal there (`fencing`), ignores what lies behind. A
  record in a slot that was kept but never acknowledged is a record whose acknowledgement was lost:
  an idempotent producer repeats it and is recognised.
- It dies after a slot was confirmed: the slot is in the bucket, below every seal, and is recovered.
- A reply is lost: `Sequence.append` reads the slot back. It is ours, or absent (then the same bytes
  are put again), or someone's seal.
- An old owner wakes up: its next put meets a seal, in the hole where its successor stopped or in
  one of the barriers ahead, and `run` raises Fenced. What lies behind the successor's seal it can
  never acknowledge, because it acknowledges in order; what lies before, the successor has. A put
  that is still on its way can only land behind the seal, where nobody looks.
- A slot's outcome stays unknown until the deadline, or the store refuses it: nothing behind it can
  ever be acknowledged, so the incarnation ends. `run` raises WalLost; those who wait are told that
  the outcome is unknown. Nothing is rolled back: a new incarnation starts from the bucket.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from tidelog.clock import Clock
from tidelog.crash_points import NO_CRASH_POINTS, CrashPoints
from tidelog.entropy import Entropy
from tidelog.errors import TidelogError
from tidelog.identifiers import (
    Incarnation,
    LeaderEpoch,
    MetadataStamp,
    Slot,
    TopicPartition,
)
from tidelog.offload import Offload
from tidelog.storage.object_store import Buffer, ObjectStore
from tidelog.wal.format.object_format import SlotStamps
from tidelog.wal.log.adoption import AdoptedBatch
from tidelog.wal.log.entries import NO_ORDINAL, BatchFields
from tidelog.wal.log.extents import Extent, SlotEffect
from tidelog.wal.log.image import PartitionImage
from tidelog.wal.metrics import WalMetrics
from tidelog.wal.settings import WalSettings
from tidelog.wal.write.buffer import SlotBuffer
from tidelog.wal.write.slot_filling import SlotFilling
from tidelog.wal.write.slot_upload import SlotUpload, SlotUploader
from tidelog.wal.write.slot_waiters import SlotWaiters, Told, WalLost

__all__ = ["DurableSlot", "WalClosed", "WalLost", "WalWriter"]


class WalClosed(TidelogError):
    """The WAL was closed; nothing of what was to be added is stored."""


@dataclass(frozen=True, slots=True)
class DurableSlot:
    """A slot that is durable, as are all before it."""

    slot: Slot
    key: str
    data: memoryview
    """The whole object, for the tail cache."""
    advances: tuple[SlotEffect, ...]
    """For `PartitionLog.advance` of the partitions whose leader epoch it is."""
    size_bytes: int


class WalWriter:
    """One incarnation's WAL. `run` must be running for anything to become durable."""

    def __init__(
        self,
        store: ObjectStore,
        clock: Clock,
        entropy: Entropy,
        offload: Offload,
        incarnation: Incarnation,
        settings: WalSettings,
        on_durable: Callable[[DurableSlot], None],
        metadata_stamp: Callable[[], MetadataStamp],
        crash_points: CrashPoints = NO_CRASH_POINTS,
    ) -> None:
        """`metadata_stamp`: the last entry of the metadata log that this process has applied."""
        self._clock = clock
        self._incarnation = incarnation
        self._settings = settings
        self._on_durable = on_durable
        self._uploader = SlotUploader(
            store,
            clock,
            entropy,
            offload,
            incarnation,
            settings.upload_deadline_ms,
            lambda: SlotStamps(self._durable_end, metadata_stamp()),
            crash_points,
        )
        self._wake = asyncio.Event()
        self._filling = SlotFilling(settings, clock, self._wake.set)
        self._in_flight = 0
        self._confirmed: dict[Slot, SlotUpload] = {}
        self._durable_end = Slot(0)
        self._waiters = SlotWaiters()
        self._room_waiters: list[asyncio.Future[None]] = []
        self._pending_bytes = 0
        self._closing = False
        self._failure: TidelogError | None = None
        self.metrics = WalMetrics()

    @property
    def incarnation(self) -> Incarnation:
        return self._incarnation

    @property
    def slot(self) -> Slot:
        """The slot being filled."""
        return self._filling.slot

    @property
    def newest_slot(self) -> Slot:
        """The last slot that holds anything; -1 before the first. Once it is durable, all that was
        added so far is."""
        filling = self._filling
        return Slot(filling.slot - 1) if filling.is_empty else filling.slot

    @property
    def durable_end(self) -> Slot:
        """The slots below are durable."""
        return self._durable_end

    @property
    def pending_bytes(self) -> int:
        """What was added and is not durable yet."""
        return self._pending_bytes

    @property
    def has_room(self) -> bool:
        """Whether more should be added. Adding is never refused for want of room."""
        return self._pending_bytes < self._settings.buffer_bytes_max

    async def wait_for_room(self) -> None:
        """Return when there is room. Raises WalLost when the WAL has ended."""
        while not self.has_room:
            self._refuse_if_ended()
            waiter = asyncio.get_running_loop().create_future()
            self._room_waiters.append(waiter)
            await waiter

    # Adding: synchronous, in log order. Each returns the slot to wait for.

    def add_batch(
        self,
        partition: TopicPartition,
        leader_epoch: LeaderEpoch,
        data: Buffer,
        batch: BatchFields,
        base_offset: int,
        ordinal: int = NO_ORDINAL,
    ) -> Slot:
        """A batch that the partition log has just appended. `data` must not change any more."""
        buffer = self._buffer_for(len(data))
        buffer.add_batch(partition, leader_epoch, data, batch, base_offset, ordinal)
        return self._added()

    def add_adopted(
        self,
        partition: TopicPartition,
        leader_epoch: LeaderEpoch,
        batches: Iterable[tuple[AdoptedBatch, int]],
        ordinal: int,
    ) -> Slot:
        """Batches of staged objects that the partition log has just appended at these offsets. All
        in one slot, however many: after a crash either all of them are there or none."""
        buffer = self._buffer_for(0)
        for batch, base_offset in batches:
            buffer.add_adopted(partition, leader_epoch, batch, base_offset, ordinal)
        return self._added()

    def add_marker(
        self,
        partition: TopicPartition,
        leader_epoch: LeaderEpoch,
        data: Buffer,
        batch: BatchFields,
        base_offset: int,
        *,
        ordinal: int,
        commit: bool,
        coordinator_epoch: int,
    ) -> Slot:
        """A control batch that the partition log has just appended."""
        buffer = self._buffer_for(len(data))
        buffer.add_marker(
            partition,
            leader_epoch,
            data,
            batch,
            base_offset,
            ordinal=ordinal,
            commit=commit,
            coordinator_epoch=coordinator_epoch,
        )
        return self._added()

    def add_opening(self, image: PartitionImage) -> Slot:
        """The image with which a tenure begins (C2); before anything else of it."""
        self._buffer_for(0).add_opening(image)
        return self._added()

    def add_log_start(
        self, partition: TopicPartition, leader_epoch: LeaderEpoch, log_start: int
    ) -> Slot:
        """A later log start that the partition log has just taken up."""
        self._buffer_for(0).add_log_start(partition, leader_epoch, log_start)
        return self._added()

    def add_relocated(
        self, partition: TopicPartition, leader_epoch: LeaderEpoch, moved: Extent
    ) -> Slot:
        """A place in a merged object that the partition log has just taken up."""
        self._buffer_for(0).add_relocated(partition, leader_epoch, moved)
        return self._added()

    def begin_slot(self) -> Slot:
        """Close the slot being filled, if it holds anything; the slot that is filled from now on.

        All that was added so far lies below it, all that comes will not: images that are taken now
        make up a checkpoint at this slot (D1).
        """
        self._refuse_if_ended()
        if not self._filling.is_empty:
            self._filling.close()
        return self._filling.slot

    def checkpointed(self, slot: Slot) -> None:
        """A checkpoint at this slot is in the bucket: slots below are not replayed any more."""
        self._uploader.forget_below(slot)

    # Waiting.

    def durable(self, slot: Slot) -> asyncio.Future[None]:
        """Done when the slot is durable, and `on_durable` has seen it. Fails with WalLost when that
        can no longer be told. Each call gives a future of its own, which may be cancelled."""
        if slot >= self._durable_end and self._failure is None:
            assert slot <= self._filling.slot
            return self._waiters.future(slot)
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if slot < self._durable_end:
            future.set_result(None)
        else:
            future.set_exception(self._unknown())
        return future

    def tell(self, slot: Slot, told: Told) -> None:
        """As `durable`, for producers, who are told after this returns, in the order in which they
        came. Each has added batches just before, and will send more when it is answered."""
        if slot < self._durable_end:
            asyncio.get_running_loop().call_soon(told, None)
        elif self._failure is not None:
            asyncio.get_running_loop().call_soon(told, self._unknown())
        else:
            assert slot <= self._filling.slot
            self._waiters.add(slot, told)
            self._filling.producer_waits()

    async def flush(self) -> None:
        """Close the slot being filled and wait until all is durable. Raises WalLost."""
        newest = self.newest_slot
        if not self._filling.is_empty:
            self._filling.close()
        await self.durable(newest)

    async def close(self) -> None:
        """Flush; nothing can be added any more, and `run` returns. Raises WalLost."""
        self._closing = True
        self._wake.set()
        await self.flush()

    async def run(self) -> None:
        """Upload slots until closed. Raises Fenced or WalLost when the incarnation has ended."""
        failure: TidelogError = WalLost(f"the WAL of {self._incarnation} was stopped")
        try:
            async with asyncio.TaskGroup() as tasks:
                while not self._is_drained():
                    await self._wake.wait()
                    # What the next turn of the loop adds shares the slot: a batch follows the
                    # record that enlists its partition in a transaction.
                    await self._clock.sleep(0)
                    self._wake.clear()
                    while self._may_upload():
                        await self._upload_next(tasks)
            failure = WalClosed(f"the WAL of {self._incarnation} is closed")
        except BaseExceptionGroup as group:
            # The first failure made the others: the task group cancelled them.
            first = group.exceptions[0]
            if isinstance(first, TidelogError):
                failure = first
            raise first from None
        finally:
            self._end(failure)

    # What stands behind it.

    def _buffer_for(self, size_bytes: int) -> SlotBuffer:
        self._refuse_if_ended()
        buffer = self._filling.buffer_for(size_bytes, is_idle=self._in_flight == 0)
        self._pending_bytes -= buffer.size_bytes
        return buffer

    def _added(self) -> Slot:
        self._pending_bytes += self._filling.size_bytes
        return self._filling.added()

    def _refuse_if_ended(self) -> None:
        if self._failure is not None and not isinstance(self._failure, WalClosed):
            raise WalLost(f"{self._failure}; nothing was added") from self._failure
        if self._closing:
            raise WalClosed(f"the WAL of {self._incarnation} is closed; nothing was added")

    def _may_upload(self) -> bool:
        if self._in_flight >= self._settings.uploads_in_flight_max:
            return False
        filling = self._filling
        return filling.may_go(self._waiters.producers(filling.slot), is_idle=self._in_flight == 0)

    def _is_drained(self) -> bool:
        filling = self._filling
        return self._closing and self._durable_end == filling.slot and filling.is_empty

    async def _upload_next(self, tasks: asyncio.TaskGroup) -> None:
        slot, buffer = self._filling.take()
        self._in_flight += 1
        upload = await self._uploader.lay_out(slot, buffer)
        tasks.create_task(self._upload(upload))

    async def _upload(self, upload: SlotUpload) -> None:
        started = self._clock.monotonic()
        self.metrics.puts += 1
        await self._uploader.put(upload)
        put_seconds = self._clock.monotonic() - started
        self.metrics.observe_put(put_seconds)
        self._in_flight -= 1
        self._confirmed[upload.slot] = upload
        answered = self._acknowledge()
        if self._in_flight == 0:
            waiting = self._waiters.producers(self._filling.slot)
            self._filling.gather(answered, waiting, put_seconds)
        self._wake.set()

    def _acknowledge(self) -> int:
        """Take up what is durable now; how many producers are told so."""
        answered = 0
        while (upload := self._confirmed.pop(self._durable_end, None)) is not None:
            assembled = upload.assembled
            size_bytes = len(assembled.data)
            self._on_durable(
                DurableSlot(
                    upload.slot, assembled.key, assembled.data, assembled.advances, size_bytes
                )
            )
            self._durable_end = Slot(upload.slot + 1)
            self._pending_bytes -= upload.pending_bytes
            self.metrics.slots += 1
            self.metrics.bytes += size_bytes
            self.metrics.batches += upload.batches
            answered += self._waiters.release(upload.slot)
            if self._room_waiters and self.has_room:
                self._release_room_waiters()
        return answered

    def _release_room_waiters(self) -> None:
        waiters, self._room_waiters = self._room_waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    def _end(self, failure: TidelogError) -> None:
        self._failure = failure
        self._filling.end()
        self._waiters.fail(self._unknown)
        self._release_room_waiters()

    def _unknown(self) -> WalLost:
        lost = WalLost(f"whether it is durable is unknown: {self._failure}")
        lost.__cause__ = self._failure
        return lost
