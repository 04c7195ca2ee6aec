"""The WAL of one incarnation: group commit, uploads in flight, acknowledgement in slot order.

Entries go into the open slot (`slot_filling`). A closed slot is assembled and put if absent
(`slot_upload`). Several slots may be in flight, and their responses come in any order. Slot k is
durable only when slots 0 to k are all confirmed as this incarnation's. Then `on_durable` runs, and
after it the waiters of slot k continue.

Failures:

- The process dies before a slot's PUT: no record in it was acknowledged, and the bucket has none.
- It dies while slots are in flight: each of them may or may not be in the bucket. The successor
  keeps the slots below the first missing one, puts a seal there (`wal_end`), and ignores the slots
  after it. A kept record may never have been acknowledged: its acknowledgement is lost. An
  idempotent producer retries it, and the partition recognises the duplicate.
- It dies after a slot was confirmed: the slot is in the bucket, below every seal, and is recovered.
- A response is lost: `Sequence.append` reads the slot back. The slot is this incarnation's, or
  absent (then the same bytes are put again), or a seal.
- An old owner wakes up: its next PUT meets a seal, at the first missing slot or at one of the
  barriers ahead, and `run` raises Fenced. It cannot acknowledge slots after the seal, because it
  acknowledges in order. The successor has all slots before the seal. A PUT that is still in flight
  can only land after the seal, where recovery does not read.
- A slot's outcome stays unknown until the deadline, or the store refuses it: no later slot can be
  acknowledged, so the incarnation ends. `run` raises WalLost, and waiters get an unknown outcome.
  No state is rolled back: a new incarnation starts from the bucket.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from tidelog.clock import Clock
from tidelog.concurrency import OfOneLoop
from tidelog.crash_points import NO_CRASH_POINTS, CrashPoints
from tidelog.entropy import Entropy
from tidelog.errors import TidelogError
from tidelog.identifiers import (
    Incarnation,
    MetadataStamp,
    Slot,
)
from tidelog.storage.object_store import ObjectStore
from tidelog.wal.format.object_format import SlotStamps
from tidelog.wal.log.extents import SlotEffect
from tidelog.wal.metrics import WalMetrics
from tidelog.wal.settings import WalSettings
from tidelog.wal.write.slot_entries import BatchEntry, MarkerEntry, SlotEntry
from tidelog.wal.write.slot_filling import SlotFilling
from tidelog.wal.write.slot_upload import SlotUpload, SlotUploader, WalLost
from tidelog.workers.offload import Offload

__all__ = ["DurableSlot", "Told", "WalClosed", "WalLost", "WalWriter"]

logger = logging.getLogger(__name__)


class WalClosed(TidelogError):
    """The WAL is closed. The entry that the caller wanted to add is not stored."""


@dataclass(frozen=True, slots=True)
class DurableSlot:
    """A durable slot; all slots before it are durable too."""

    slot: Slot
    key: str
    data: memoryview
    """The whole object, for the tail cache."""
    advances: tuple[SlotEffect, ...]
    """The effects on tenures, for `PartitionLog.advance` of partitions with that leader epoch."""
    size_bytes: int


Told: TypeAlias = Callable[[WalLost | None], None]
"""Called with None when a slot is durable, or with the error that leaves its outcome unknown."""


class SlotWaiters(OfOneLoop):
    """The waiters of each slot. Frequent ones wait with a callback, cheaper than a future.

    Callbacks run in a later turn of the event loop, never within `release` or `fail`.
    """

    def __init__(self) -> None:
        self._futures: dict[Slot, list[asyncio.Future[None]]] = {}
        self._told: dict[Slot, list[Told]] = {}
        self._producers: dict[Slot, int] = {}

    def producers(self, slot: Slot) -> int:
        """The number of producers that wait for a slot."""
        return self._producers.get(slot, 0)

    def future(self, slot: Slot) -> asyncio.Future[None]:
        """A future of the caller's own, which may be cancelled."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._futures.setdefault(slot, []).append(future)
        return future

    def add(self, slot: Slot, told: Told, *, is_producer: bool) -> None:
        """Add a callback. Callbacks of a slot run in the order of their addition."""
        self._told.setdefault(slot, []).append(told)
        if is_producer:
            self._producers[slot] = self._producers.get(slot, 0) + 1

    def release(self, slot: Slot) -> int:
        """Answer the waiters of a durable slot; the number of its producers."""
        for future in self._futures.pop(slot, ()):
            if not future.done():
                future.set_result(None)
        told = self._told.pop(slot, ())
        if told:
            self.loop.call_soon(_tell, told, None)
        return self._producers.pop(slot, 0)

    def fail(self, lost: Callable[[], WalLost]) -> None:
        """Fail all waiters. `lost` makes an error for each."""
        for futures in self._futures.values():
            for future in futures:
                if not future.done():
                    future.set_exception(lost())
                    # The caller may be gone. Mark the error as retrieved for the event loop.
                    future.exception()
        self._futures.clear()
        for told in self._told.values():
            asyncio.get_running_loop().call_soon(_tell, told, lost())
        self._told.clear()
        self._producers.clear()


def _tell(waiters: Sequence[Told], lost: WalLost | None) -> None:
    for told in waiters:
        try:
            told(lost)
        except Exception:  # one callback's error must not affect the others
            logger.exception("the callback of a slot's waiter failed")


class WalWriter:
    """The WAL of one incarnation. Slots become durable only while `run` runs."""

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
        """`metadata_stamp`: the last metadata log entry that this process has applied."""
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
        self._put_seconds = 0.0
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
        """The open slot."""
        return self._filling.slot

    @property
    def newest_slot(self) -> Slot:
        """The last slot with entries; -1 before the first.

        When it is durable, everything added so far is durable.
        """
        filling = self._filling
        return Slot(filling.slot - 1) if filling.is_empty else filling.slot

    @property
    def durable_end(self) -> Slot:
        """All slots below this one are durable."""
        return self._durable_end

    @property
    def in_flight(self) -> int:
        """The uploads that have begun and not succeeded."""
        return self._in_flight

    @property
    def put_seconds(self) -> float:
        """How long the last successful upload took; 0 before the first."""
        return self._put_seconds

    @property
    def pending_bytes(self) -> int:
        """Bytes that were added and are not durable yet."""
        return self._pending_bytes

    @property
    def has_room(self) -> bool:
        """True if callers may add more. The writer itself accepts entries without room too."""
        return self._pending_bytes < self._settings.buffer_bytes_max

    async def wait_for_room(self) -> None:
        """Return when there is room. Raises WalLost if the WAL has ended."""
        while not self.has_room:
            self._refuse_if_ended()
            waiter = asyncio.get_running_loop().create_future()
            self._room_waiters.append(waiter)
            await waiter

    def add(self, *entries: SlotEntry) -> Slot:
        """Entries that partition logs have just taken up, in their order; the slot to wait for.

        All of them go into one slot: after a crash all are there or none. Buffers in them must not
        change any more.
        """
        size_bytes = 0
        for entry in entries:
            if isinstance(entry, (BatchEntry, MarkerEntry)):
                size_bytes += len(entry.data)
        self._refuse_if_ended()
        buffer = self._filling.buffer_for(size_bytes, is_idle=self._in_flight == 0)
        before = buffer.size_bytes
        for entry in entries:
            buffer.add(entry)
        self._pending_bytes += buffer.size_bytes - before
        return self._filling.added()

    def begin_slot(self) -> Slot:
        """Close the open slot unless it is empty; the slot that is open now.

        Everything added so far lies below it, and everything added later does not. So images that
        are taken now form a checkpoint at this slot (D1).
        """
        self._refuse_if_ended()
        if not self._filling.is_empty:
            self._filling.close()
        return self._filling.slot

    def checkpointed(self, slot: Slot) -> None:
        """Note that a checkpoint at this slot is in the bucket: recovery replays no slot below."""
        self._uploader.forget_below(slot)

    # Waiting.

    def durable(self, slot: Slot) -> asyncio.Future[None]:
        """A future that is done when the slot is durable and `on_durable` has returned.

        It fails with WalLost if the outcome stays unknown. Each call returns a new future, which
        the caller may cancel.
        """
        if slot >= self._durable_end and self._failure is None:
            assert slot <= self._filling.slot
            return self._waiters.future(slot)
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if slot < self._durable_end:
            future.set_result(None)
        else:
            future.set_exception(self._unknown())
        return future

    def tell(self, slot: Slot, told: Told, *, is_producer: bool = True) -> None:
        """As `durable`, with a callback, which is a producer's by default.

        Callbacks run after this call returns, in the order of the calls. A producer has just added
        batches, and sends more after its answer.
        """
        if slot < self._durable_end:
            asyncio.get_running_loop().call_soon(told, None)
        elif self._failure is not None:
            asyncio.get_running_loop().call_soon(told, self._unknown())
        else:
            assert slot <= self._filling.slot
            self._waiters.add(slot, told, is_producer=is_producer)
            if is_producer:
                filling = self._filling
                filling.producer_waits(self._waiters.producers(filling.slot))

    async def flush(self) -> None:
        """Close the open slot and wait until every slot is durable. Raises WalLost."""
        newest = self.newest_slot
        if not self._filling.is_empty:
            self._filling.close()
        await self.durable(newest)

    async def close(self) -> None:
        """Refuse further additions, flush, and let `run` return. Raises WalLost."""
        self._closing = True
        self._wake.set()
        await self.flush()

    async def run(self) -> None:
        """Upload slots until `close`. Raises Fenced or WalLost if the incarnation ends."""
        failure: TidelogError = WalLost(f"the WAL of {self._incarnation} was stopped")
        try:
            async with asyncio.TaskGroup() as tasks:
                while not self._is_drained():
                    await self._wake.wait()
                    # Additions of the next turn share the slot: a batch follows the record that
                    # adds its partition to a transaction.
                    await self._clock.sleep(0)
                    self._wake.clear()
                    while self._may_upload():
                        await self._upload_next(tasks)
            failure = WalClosed(f"the WAL of {self._incarnation} is closed")
        except BaseExceptionGroup as group:
            # The first failure caused the others: the task group cancelled those tasks.
            first = group.exceptions[0]
            if isinstance(first, TidelogError):
                failure = first
            raise first from None
        finally:
            self._end(failure)

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
        self.metrics.put_seconds.observe(put_seconds)
        self._put_seconds = put_seconds
        self._in_flight -= 1
        self._confirmed[upload.slot] = upload
        answered = self._acknowledge()
        if self._in_flight == 0:
            waiting = self._waiters.producers(self._filling.slot)
            self._filling.delay(answered, waiting, put_seconds)
        if self._closing or self._may_upload():
            self._wake.set()

    def _acknowledge(self) -> int:
        """Acknowledge confirmed slots in order; the number of producers that get an answer."""
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
