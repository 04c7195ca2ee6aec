"""Checkpoints: the state of a broker's partitions as of a slot of its WAL (rule D1).

A checkpoint at slot c covers all slots below c, and nothing of c or later, for every partition that
the incarnation leads. The images are taken when slot c opens. They are completed and written when
all slots below c are durable. So a checkpoint never holds more than the WAL, and recovery starts at
its slot.

Failures:

- The process dies before the PUT: recovery uses the previous checkpoint and replays more slots.
- The PUT's response is lost: the bucket is correct either way, and the PUT is retried. If records
  moved to the table meanwhile, the two versions differ, and both are correct.
- The broker writes no more slots, and its partitions' records move to the table: the next
  checkpoint replaces the newest one under the same key. Otherwise the newest checkpoint would refer
  forever to objects that nothing else needs.
- An old owner wakes up and puts a checkpoint late: it covers only durable slots, so it lies at or
  below the seal and is correct. It may be newer than the checkpoint that a successor started from;
  both lead to the same state.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from struct import Struct
from typing import NamedTuple

from awscrt.checksums import crc32c

from tidelog.clock import Clock
from tidelog.crash_points import NO_CRASH_POINTS, CrashPoint, CrashPoints
from tidelog.errors import CorruptObject, UnsupportedFormat
from tidelog.identifiers import BrokerId, Epoch, Incarnation, MetadataStamp, Slot
from tidelog.storage.object_store import Buffer, ObjectStore, StoreError
from tidelog.storage.sequence import NUMBER_DIGITS
from tidelog.wal.format.image_codec import Images, encode_block, join_blocks
from tidelog.wal.log.image import PartitionImage
from tidelog.wal.metrics import CheckpointMetrics
from tidelog.wal.write.checkpoint_images import CheckpointImages, SettledBlock
from tidelog.wal.write.writer import DurableSlot, WalWriter
from tidelog.workers.offload import Offload

CHECKPOINT_MAGIC = b"TIDECKPT"
FIRST_FORMAT_VERSION = 1
"""The format of the first release. It has no metadata stamp."""
CHECKPOINT_FORMAT_VERSION = 2
RETRY_SECONDS = 1.0
BYTES_A_SLOT = 2048
"""Checkpoint bytes that cost as much as replaying one slot."""

_HEADER = Struct("<8sIiqqq")
_CRC = Struct("<I")
_STAMP = Struct("<qII")
"""Follows the header's checksum. Its last field is a checksum of all bytes before it."""
_FIRST_HEADER_BYTES = _HEADER.size + _CRC.size
CHECKPOINT_HEADER_BYTES = _FIRST_HEADER_BYTES + _STAMP.size

_log = logging.getLogger(__name__)


class CheckpointHeader(NamedTuple):
    incarnation: Incarnation
    slot: Slot
    metadata: MetadataStamp | None
    """The last metadata log entry that the writer had applied (C11); None in the first format."""
    size_bytes: int
    """The size of the header."""


class WalCheckpoint(NamedTuple):
    """A decoded checkpoint."""

    key: str
    incarnation: Incarnation
    slot: Slot
    images: Images
    metadata: MetadataStamp | None


def checkpoint_prefix(incarnation: Incarnation) -> str:
    """The key prefix of an incarnation's checkpoints."""
    return f"checkpoint/{incarnation}/"


def checkpoint_key(incarnation: Incarnation, slot: Slot) -> str:
    return f"{checkpoint_prefix(incarnation)}{slot:0{NUMBER_DIGITS}d}"


def encode_checkpoint(
    incarnation: Incarnation,
    slot: Slot,
    created_ms: int,
    metadata: MetadataStamp,
    images: Sequence[PartitionImage],
    settled: Sequence[SettledBlock] = (),
) -> bytes:
    """A checkpoint's bytes: the settled images, then the others."""
    header = _HEADER.pack(
        CHECKPOINT_MAGIC,
        CHECKPOINT_FORMAT_VERSION,
        incarnation.broker_id,
        incarnation.epoch,
        slot,
        created_ms,
    )
    header += _CRC.pack(crc32c(header))
    header += _STAMP.pack(metadata.sequence, metadata.checksum, 0)[: -_CRC.size]
    header += _CRC.pack(crc32c(header))
    blob = join_blocks([*(block.encoded() for block in settled), encode_block(images)])
    return header + blob


def decode_checkpoint_header(key: str, data: Buffer) -> CheckpointHeader:
    """The header at the start of `data`. Raises CorruptObject and UnsupportedFormat."""
    view = memoryview(data)
    if len(view) < _FIRST_HEADER_BYTES:
        raise CorruptObject(key, f"it has only {len(view)} bytes")
    magic, version, broker_id, epoch, slot, _ = _HEADER.unpack_from(view)
    if magic != CHECKPOINT_MAGIC:
        raise CorruptObject(key, f"it begins with {magic!r}, not {CHECKPOINT_MAGIC!r}")
    if crc32c(view[: _HEADER.size]) != _CRC.unpack_from(view, _HEADER.size)[0] or version < 1:
        raise CorruptObject(key, "the header's checksum does not match")
    if version > CHECKPOINT_FORMAT_VERSION:
        raise UnsupportedFormat(
            f"object {key} is of checkpoint format {version}; this version of Tidelog reads formats"
            f" up to {CHECKPOINT_FORMAT_VERSION}: use a newer one; nothing was changed"
        )
    incarnation = Incarnation(BrokerId(broker_id), Epoch(epoch))
    if checkpoint_key(incarnation, Slot(slot)) != key:
        raise CorruptObject(key, f"it is the checkpoint of {incarnation} at slot {slot}")
    if version == FIRST_FORMAT_VERSION:
        return CheckpointHeader(incarnation, Slot(slot), None, _FIRST_HEADER_BYTES)
    if len(view) < CHECKPOINT_HEADER_BYTES:
        raise CorruptObject(key, f"it has only {len(view)} bytes")
    sequence, checksum, crc = _STAMP.unpack_from(view, _FIRST_HEADER_BYTES)
    if crc32c(view[: CHECKPOINT_HEADER_BYTES - _CRC.size]) != crc:
        raise CorruptObject(key, "the checksum of the header's stamp does not match")
    stamp = MetadataStamp(sequence, checksum)
    return CheckpointHeader(incarnation, Slot(slot), stamp, CHECKPOINT_HEADER_BYTES)


def decode_checkpoint(key: str, data: Buffer) -> WalCheckpoint:
    """The checkpoint in `data`. Raises CorruptObject and UnsupportedFormat."""
    header = decode_checkpoint_header(key, data)
    images = Images(key, memoryview(data)[header.size_bytes :])
    return WalCheckpoint(key, header.incarnation, header.slot, images, header.metadata)


async def list_checkpoints(store: ObjectStore, incarnation: Incarnation) -> list[Slot]:
    """The slots of an incarnation's checkpoints, ascending."""
    prefix = checkpoint_prefix(incarnation)
    slots = []
    async for found in store.list(prefix):
        digits = found.key.removeprefix(prefix)
        if len(digits) == NUMBER_DIGITS and digits.isascii() and digits.isdigit():
            slots.append(Slot(int(digits)))
    return slots


async def newest_checkpoint(store: ObjectStore, incarnation: Incarnation) -> Slot | None:
    """The slot of an incarnation's newest checkpoint: its floor. None if it has none."""
    slots = await list_checkpoints(store, incarnation)
    return slots[-1] if slots else None


class CheckpointSchedule:
    """Decides when a checkpoint is due. Pure."""

    def __init__(self, interval_bytes: int, interval_slots: int) -> None:
        self._interval_bytes = interval_bytes
        self._interval_slots = interval_slots
        self._newest: Slot | None = None
        self._newest_bytes = 0
        self._taken = Slot(0)
        self._end = Slot(0)
        self._bytes = 0
        self._bytes_since_taken = 0

    @property
    def newest(self) -> Slot | None:
        """The slot of the newest checkpoint in the bucket."""
        return self._newest

    @property
    def is_due(self) -> bool:
        """True if a recovery would replay so much that a checkpoint is worth its cost."""
        slots = max(self._interval_slots, self._newest_bytes // BYTES_A_SLOT)
        return self._bytes >= self._interval_bytes or self._end - (self._newest or Slot(0)) >= slots

    def note(self, slot: Slot, size_bytes: int) -> None:
        """Count a slot that became durable."""
        self._end = Slot(slot + 1)
        self._bytes += size_bytes
        if slot >= self._taken:
            self._bytes_since_taken += size_bytes

    def take(self, slot: Slot, *, has_changed: bool) -> bool:
        """Begin a checkpoint at this slot; False if the newest one already holds the same.

        `has_changed`: a partition differs from its last image, possibly without a new slot.
        """
        if slot == self._newest and not has_changed:
            return False
        self._taken = slot
        self._bytes_since_taken = 0
        return True

    def written(self, size_bytes: int) -> None:
        """The last begun checkpoint is in the bucket, in an object of `size_bytes`."""
        self._newest = self._taken
        self._newest_bytes = size_bytes
        self._bytes = self._bytes_since_taken


class Checkpointer:
    """Writes an incarnation's checkpoints. `run` is its task."""

    def __init__(
        self,
        store: ObjectStore,
        clock: Clock,
        offload: Offload,
        writer: WalWriter,
        partitions: CheckpointImages,
        interval_bytes: int,
        interval_slots: int,
        metadata_stamp: Callable[[], MetadataStamp],
        crash_points: CrashPoints = NO_CRASH_POINTS,
    ) -> None:
        """`metadata_stamp`: the last metadata log entry that this process has applied.

        `partitions`: every partition that the incarnation leads and has opened. It includes
        partitions that are being handed over, and excludes faulty ones.
        """
        self._store = store
        self._clock = clock
        self._offload = offload
        self._writer = writer
        self._partitions = partitions
        self._metadata_stamp = metadata_stamp
        self._crash_points = crash_points
        self._schedule = CheckpointSchedule(interval_bytes, interval_slots)
        self._due = asyncio.Event()
        self._writing = asyncio.Lock()
        self._is_missing = False
        """A checkpoint was begun and is not in the bucket: its images count as taken."""
        self.metrics = CheckpointMetrics()

    @property
    def floor(self) -> Slot | None:
        """The slot of the newest checkpoint in the bucket; None before the first."""
        return self._schedule.newest

    @property
    def slots_since(self) -> int:
        """Slots that became durable since the newest checkpoint was taken."""
        return self._writer.durable_end - (self._schedule.newest or Slot(0))

    @property
    def has_changes(self) -> bool:
        """True if a checkpoint taken now would differ from the newest."""
        return self.slots_since > 0 or self._has_changed

    @property
    def _has_changed(self) -> bool:
        return self._is_missing or self._partitions.have_changed

    @asynccontextmanager
    async def paused(self) -> AsyncIterator[None]:
        """Prevent checkpoints within the context.

        Changes to the logs in it are in all later checkpoints, and in no earlier one (D1).
        """
        async with self._writing:
            yield

    def note(self, slot: DurableSlot) -> None:
        """Count a slot that became durable; the writer's `on_durable` calls it."""
        self._schedule.note(slot.slot, slot.size_bytes)
        if self._schedule.is_due:
            self._due.set()

    async def run(self) -> None:
        """Write a checkpoint whenever one is due, until cancelled."""
        while True:
            await self._due.wait()
            try:
                await self.checkpoint()
            except StoreError as error:
                # Only the duration of a recovery depends on a checkpoint.
                self.metrics.failures += 1
                _log.warning("the checkpoint failed; it is retried", extra={"why": str(error)})
                await self._clock.sleep(RETRY_SECONDS)
            if not self._schedule.is_due:
                self._due.clear()

    async def checkpoint(self) -> Slot | None:
        """Write a checkpoint of everything added so far; its slot, or None if nothing changed.

        A clean shutdown also calls it, before it closes the writer. Raises StoreError, after which
        the caller may retry, and WalLost.
        """
        async with self._writing:
            slot = self._writer.begin_slot()
            if not self._schedule.take(slot, has_changed=self._has_changed):
                return None
            self._is_missing = True
            taken = self._partitions.take()
            await self._writer.durable(Slot(slot - 1))
            # A partition that was deleted or handed over meanwhile has no current state here.
            images = [log.complete(image) for log, image in taken.others if log in self._partitions]
            incarnation = self._writer.incarnation
            data = await self._offload.run(
                encode_checkpoint,
                incarnation,
                slot,
                self._clock.time_ms(),
                self._metadata_stamp(),
                images,
                taken.settled,
            )
            await self._store.put(checkpoint_key(incarnation, slot), data)
            self._crash_points.hit(CrashPoint.CHECKPOINT_WRITTEN)
            self._schedule.written(len(data))
            self._is_missing = False
            self._writer.checkpointed(slot)
            self.metrics.written += 1
            self.metrics.succeeded_at = self._clock.time_ms() / 1000
            return slot
