"""One slot's way into the bucket: laid out, put if absent, and what the answer means.

Slots are laid out in their order, since each header carries the checksum of the slot before; puts
may go side by side. What a death or a lost answer leaves behind `writer` tells.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tidelog.clock import Clock
from tidelog.crash_points import CrashPoint, CrashPoints
from tidelog.entropy import Entropy
from tidelog.errors import Fenced
from tidelog.identifiers import Incarnation, Slot
from tidelog.offload import Offload
from tidelog.storage.object_store import ObjectStore, StoreError
from tidelog.storage.sequence import AppendUndecided, Sequence, SequenceGone, Taken
from tidelog.wal.format.object_format import (
    WAL_SUFFIX,
    ObjectHeader,
    ObjectKind,
    SlotStamps,
    decode_header,
    identify,
    wal_prefix,
)
from tidelog.wal.write.buffer import AssembledSlot, SlotBuffer
from tidelog.wal.write.previous_slots import PreviousSlots
from tidelog.wal.write.slot_waiters import WalLost

_INLINE_BYTES_MAX = 128 * 1024
"""Below this size laying a slot out takes less time than handing it to a thread."""


@dataclass(frozen=True, slots=True)
class SlotUpload:
    """A slot that is laid out."""

    slot: Slot
    assembled: AssembledSlot
    writer_id: bytes
    pending_bytes: int
    batches: int


class SlotUploader:
    """One incarnation's."""

    def __init__(
        self,
        store: ObjectStore,
        clock: Clock,
        entropy: Entropy,
        offload: Offload,
        incarnation: Incarnation,
        deadline_ms: int,
        stamps: Callable[[], SlotStamps],
        crash_points: CrashPoints,
    ) -> None:
        """`deadline_ms`: how long a slot's outcome may stay unknown. `stamps`: as of now."""
        self._clock = clock
        self._entropy = entropy
        self._offload = offload
        self._incarnation = incarnation
        self._deadline_seconds = deadline_ms / 1000
        self._stamps = stamps
        self._crash_points = crash_points
        self._sequence = Sequence(store, clock, wal_prefix(incarnation), WAL_SUFFIX, identify)
        self._previous_crc = 0
        self._previous_slots = PreviousSlots()

    def forget_below(self, floor: Slot) -> None:
        """A checkpoint at this slot is in the bucket."""
        self._previous_slots.forget_below(floor)

    async def lay_out(self, slot: Slot, buffer: SlotBuffer) -> SlotUpload:
        """Make a slot's object; one after the other, in slot order."""
        header = ObjectHeader(
            ObjectKind.DATA,
            self._incarnation,
            slot,
            self._clock.time_ms(),
            self._entropy.uuid().bytes,
            self._previous_crc,
            self._stamps(),
        )
        previous_slots = self._previous_slots.next(slot, buffer.tenures)
        if buffer.size_bytes <= _INLINE_BYTES_MAX:
            assembled = buffer.assemble(header, previous_slots)
        else:
            assembled = await self._offload.run(buffer.assemble, header, previous_slots)
        self._previous_crc = assembled.crc
        return SlotUpload(slot, assembled, header.writer_id, buffer.size_bytes, buffer.batches)

    async def put(self, upload: SlotUpload) -> None:
        """Return when the slot is in the bucket and ours. Raises Fenced if it is another's, WalLost
        if that cannot be told."""
        what = f"slot {upload.slot} of the WAL of {self._incarnation}"
        self._crash_points.hit(CrashPoint.SLOT_UPLOAD)
        try:
            result = await self._sequence.append(
                upload.slot, upload.assembled.data, upload.writer_id, self._deadline_seconds
            )
        except SequenceGone as error:
            raise Fenced(f"{what} is another's and has been deleted since: {error}") from error
        except AppendUndecided as error:
            raise WalLost(f"{what} may or may not be stored: {error}") from error
        except StoreError as error:
            raise WalLost(f"{what} could not be stored: {error}") from error
        if isinstance(result, Taken):
            found = decode_header(upload.assembled.key, result.data)
            met = "a seal" if found.kind is ObjectKind.SEAL else "another writer's object"
            raise Fenced(
                f"{what} holds {met}: this broker has been superseded and must stop;"
                " what it acknowledged is safe"
            )
