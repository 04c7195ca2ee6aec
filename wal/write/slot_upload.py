"""Uploads slots: assembles the object, puts it if absent, and interprets the response.

Slots are assembled in order: each header carries the checksum of the slot before, and each index
the previous slots of tenures (rule C10). Their PUTs may run in parallel. The docstring of `writer`
covers crashes and lost responses.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from tidelog.clock import Clock
from tidelog.crash_points import CrashPoint, CrashPoints
from tidelog.entropy import Entropy
from tidelog.errors import Fenced, TidelogError
from tidelog.identifiers import Incarnation, Slot, TenureKey
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
from tidelog.workers.offload import Offload

_INLINE_BYTES_MAX = 128 * 1024
"""Up to this size, assembling a slot takes less time than passing it to a thread."""


class WalLost(TidelogError):
    """This incarnation cannot acknowledge any more records.

    Records without an acknowledgement may or may not be in the bucket. A new incarnation finds out.
    """


@dataclass(frozen=True, slots=True)
class SlotUpload:
    """An assembled slot, ready for its PUT."""

    slot: Slot
    assembled: AssembledSlot
    writer_id: bytes
    pending_bytes: int
    batches: int


class PreviousSlots:
    """Computes the previous slots for one slot after the other (rule C10). Pure.

    Each slot lists the tenures that have an entry in it or in the slot before. For each of them it
    names an earlier slot; no slot in between has an entry of the tenure. So if a slot is lost, the
    next slot lists the tenures of the lost one. The next slot of a tenure tells the same for that
    tenure.
    """

    def __init__(self) -> None:
        self._last: dict[TenureKey, int] = {}
        self._before: dict[TenureKey, int] = {}
        self._forgotten_below = 0

    def next(self, slot: Slot, tenures: Iterable[TenureKey]) -> Mapping[TenureKey, int]:
        """The previous slots that `slot` records; tenures with an entry in it come first."""
        last, unknown = self._last, self._forgotten_below - 1
        said = {tenure: last.get(tenure, unknown) for tenure in tenures}
        # Copies of dictionaries do not hash their keys again, which takes long for tenures.
        earlier = dict.fromkeys(self._before, slot - 1)
        self._before = dict.fromkeys(said, slot)
        last.update(self._before)
        return {**said, **earlier, **said}

    def forget_below(self, floor: Slot) -> None:
        """Forget tenures whose last entry lies below `floor`, which are not replayed."""
        self._last = {tenure: slot for tenure, slot in self._last.items() if slot >= floor}
        self._forgotten_below = max(self._forgotten_below, floor)


class SlotUploader:
    """Uploads the slots of one incarnation."""

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
        """`deadline_ms`: how long an outcome may stay unknown. `stamps`: the current stamps."""
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
        """Forget slots below `floor`, where a checkpoint is in the bucket."""
        self._previous_slots.forget_below(floor)

    async def lay_out(self, slot: Slot, buffer: SlotBuffer) -> SlotUpload:
        """Assemble a slot's object. The caller calls it in slot order, one call at a time."""
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
        """Return when this incarnation's slot is in the bucket.

        Raises Fenced if the key holds another writer's object, and WalLost if the outcome stays
        unknown.
        """
        what = f"slot {upload.slot} of the WAL of {self._incarnation}"
        self._crash_points.hit(CrashPoint.SLOT_UPLOAD)
        try:
            result = await self._sequence.append(
                upload.slot, upload.assembled.data, upload.writer_id, self._deadline_seconds
            )
        except SequenceGone as error:
            raise Fenced(f"{what} was another writer's and is deleted: {error}") from error
        except AppendUndecided as error:
            raise WalLost(f"{what} may or may not be stored: {error}") from error
        except StoreError as error:
            raise WalLost(f"{what} could not be stored: {error}") from error
        if isinstance(result, Taken):
            found = decode_header(upload.assembled.key, result.data)
            met = "a seal" if found.kind is ObjectKind.SEAL else "another writer's object"
            raise Fenced(
                f"{what} holds {met}: this broker has been superseded and must stop;"
                " acknowledged records are safe"
            )
