"""Sealing the WAL of an incarnation that is to write no more (rule C4).

A seal is an object in a slot, created if absent like any other, and never removed. The end of a WAL
is found by scanning forward and putting a seal into the first hole: it is the first seal that the
scan meets. `docs/formats/wal.md` has the argument why all who do so find the same end, and why
nothing behind it was ever acknowledged.

Barrier seals are put further ahead before the scan. They decide nothing: they stop a writer that is
alive and would otherwise keep ahead of the scan for ever. Listings and hints decide nothing either.

What happens when something fails. The sealer dies, or an answer is lost, at any step: whoever seals
next goes on from what is in the bucket and finds the same end, because every slot is decided once.
A seal whose put arrives very late lands in a hole, where any seal is welcome, or behind the end.
Two that seal at once help each other. The old owner may write on while its slots are being scanned:
what it fills before the scan puts a seal there is below the end and is recovered.
"""

from __future__ import annotations

import asyncio

from tidelog.clock import Clock
from tidelog.entropy import Entropy
from tidelog.errors import CorruptObject
from tidelog.identifiers import Incarnation, Slot
from tidelog.storage.object_store import Buffer, ByteRange, ObjectNotFound, ObjectStore
from tidelog.storage.sequence import Sequence, Taken
from tidelog.wal.checkpoint import newest_checkpoint
from tidelog.wal.object_format import (
    HEADER_BYTES,
    WAL_SUFFIX,
    ObjectHeader,
    ObjectKind,
    decode_header,
    encode_header,
    identify,
    wal_prefix,
)
from tidelog.wal.reading import read_all

BARRIERS = 6
READS_AT_ONCE_MAX = 16
SEAL_DEADLINE_SECONDS = 30.0


async def seal(
    store: ObjectStore,
    clock: Clock,
    entropy: Entropy,
    incarnation: Incarnation,
    start: Slot,
    in_flight_max: int,
) -> Slot:
    """End an incarnation's WAL. The slot of the seal: what lies below it counts, nothing else.

    `start`: where to scan from: the slot of the incarnation's newest checkpoint, or 0.
    `in_flight_max`: how many slots the old owner puts at a time. Raises StoreError when the store
    does not let it finish, with AppendUndecided and SequenceGone among them: call again, from the
    newest checkpoint; what was done stays and does no harm.
    """
    sealer = _Sealer(store, clock, entropy, incarnation)
    tail = await sealer.guess_tail(start)
    ahead = [Slot(tail + in_flight_max * 4**power) for power in range(1, BARRIERS + 1)]
    await read_all(sealer.put_seal, ahead, asyncio.Semaphore(BARRIERS))
    while True:
        end = await sealer.find_end(start)
        floor = await newest_checkpoint(store, incarnation)
        if floor is None or floor <= end:
            return end
        # The hole was no hole: a newer checkpoint made the slots there superfluous, and they were
        # deleted while we stalled. A checkpoint never lies behind the end.
        start = floor


class _Sealer:
    def __init__(
        self, store: ObjectStore, clock: Clock, entropy: Entropy, incarnation: Incarnation
    ) -> None:
        self._store = store
        self._clock = clock
        self._entropy = entropy
        self._incarnation = incarnation
        self._wal = Sequence(store, clock, wal_prefix(incarnation), WAL_SUFFIX, identify)

    async def guess_tail(self, start: Slot) -> Slot:
        """Where a listing has its first gap: good enough to place barriers."""
        tail = start
        after = self._wal.key(start - 1) if start else ""
        async for found in self._store.list(self._wal.prefix, start_after=after):
            if self._wal.number(found.key) != tail:
                break
            tail = Slot(tail + 1)
        return tail

    async def put_seal(self, slot: Slot) -> bool:
        """Put a seal into a slot if it is empty; whether the slot holds a seal now."""
        header = ObjectHeader(
            ObjectKind.SEAL,
            self._incarnation,
            slot,
            self._clock.time_ms(),
            self._entropy.uuid().bytes,
            previous_crc=0,
        )
        result = await self._wal.append(
            slot, encode_header(header), header.writer_id, SEAL_DEADLINE_SECONDS
        )
        return not isinstance(result, Taken) or self._is_seal(slot, result.data)

    async def find_end(self, start: Slot) -> Slot:
        """Scan forward to the first seal, putting one where nothing is."""
        slot, width, at_once = start, 1, asyncio.Semaphore(READS_AT_ONCE_MAX)
        while True:
            slots = [Slot(slot + ahead) for ahead in range(width)]
            scanned = await read_all(self._holds_seal, slots, at_once)
            for at, found in zip(slots, scanned, strict=True):
                holds_seal = await self.put_seal(at) if found is None else found
                if holds_seal:
                    return at
            slot, width = Slot(slot + width), min(2 * width, READS_AT_ONCE_MAX)

    async def _holds_seal(self, slot: Slot) -> bool | None:
        """None if the slot is empty."""
        try:
            stored = await self._wal.read_range(slot, ByteRange(0, HEADER_BYTES))
        except ObjectNotFound:
            return None
        return self._is_seal(slot, stored.data)

    def _is_seal(self, slot: Slot, data: Buffer) -> bool:
        try:
            header = decode_header(self._wal.key(slot), data)
        except CorruptObject:
            # Something lies there, so the slot is decided; who replays it reports the damage. An
            # object that is no seal does not end the WAL, for what follows may be acknowledged.
            return False
        return header.kind is ObjectKind.SEAL
