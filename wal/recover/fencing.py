"""Sealing the WAL of an incarnation that is to write no more (rules C4, C10).

A seal is an object in a slot, created if absent like any other, and never removed. The sealer walks
forward from the newest checkpoint and seals the first hole that is not damage: a slot below a stamp
of the writer (`wal_end`) must be there, so the walk passes it by and notes it. The end is the seal
in that slot. `docs/formats/wal.md` has the argument why nothing behind the end was ever
acknowledged. Where stamps prove no damage, all sealers find the same end. Where a stamp becomes
visible only meanwhile they may differ; the metadata log takes the first (`takeover`).

Barrier seals are put further ahead before the walk. They decide nothing: they stop a writer that is
alive and would otherwise keep ahead of the walk for ever.

What happens when something fails. The sealer dies, or an answer is lost, at any step: the next
sealer goes on from the bucket, where every slot is decided once. A seal whose put arrives very late
lands in a hole, where any seal is welcome, or behind the end. Two sealers help each other. The old
owner may write on during the walk: what it fills before the walk puts a seal there is below the end
and is recovered.
"""

from __future__ import annotations

import asyncio
from typing import NamedTuple

from tidelog.clock import Clock
from tidelog.concurrency import read_all
from tidelog.entropy import Entropy
from tidelog.errors import CorruptObject
from tidelog.identifiers import FIRST_SLOT, Incarnation, Slot
from tidelog.storage.object_store import Buffer, ByteRange, ObjectNotFound, ObjectStore
from tidelog.storage.sequence import Sequence, Taken
from tidelog.wal.format.object_format import (
    HEADER_BYTES,
    STAMPED_HEADER_BYTES,
    WAL_SUFFIX,
    ObjectHeader,
    ObjectKind,
    decode_header,
    encode_header,
    identify,
    wal_prefix,
)
from tidelog.wal.recover.wal_end import proved_end
from tidelog.wal.recover.wal_listing import list_slots
from tidelog.wal.write.checkpoint import newest_checkpoint

BARRIERS = 6
READS_AT_ONCE_MAX = 64
SEAL_DEADLINE_SECONDS = 30.0


class WalEnd(NamedTuple):
    """Where a WAL ends, and which slots below were acknowledged and are lost."""

    slot: Slot
    """It holds the seal; the slots below count, the others do not."""
    damaged: tuple[Slot, ...] = ()


async def seal(
    store: ObjectStore,
    clock: Clock,
    entropy: Entropy,
    incarnation: Incarnation,
    in_flight_max: int,
    told: Slot = FIRST_SLOT,
) -> WalEnd:
    """End an incarnation's WAL.

    `in_flight_max`: how many slots the old owner puts at a time. `told`: how many slots its lease
    or its fence tells to be durable. Raises StoreError when the store does not let it finish, with
    AppendUndecided and SequenceGone among them: call again; what was done stays and does no harm.
    """
    sealer = _Sealer(store, clock, entropy, incarnation, told)
    start = await sealer.floor()
    tail = await guess_tail(store, incarnation, start)
    ahead = [Slot(tail + in_flight_max * 4**power) for power in range(1, BARRIERS + 1)]
    await read_all(sealer.put_seal, ahead, asyncio.Semaphore(BARRIERS))
    return await sealer.find_end(start)


async def guess_tail(store: ObjectStore, incarnation: Incarnation, start: Slot) -> Slot:
    """Behind the last slot that a listing shows: good enough to place barriers."""
    tail = start
    async for slot, meta in list_slots(store, incarnation, start):
        if meta.size != HEADER_BYTES:
            tail = Slot(slot + 1)
    return tail


class _Sealer:
    def __init__(
        self,
        store: ObjectStore,
        clock: Clock,
        entropy: Entropy,
        incarnation: Incarnation,
        told: Slot,
    ) -> None:
        self._store = store
        self._clock = clock
        self._entropy = entropy
        self._incarnation = incarnation
        self._told = told
        self._wal = Sequence(store, clock, wal_prefix(incarnation), WAL_SUFFIX, identify)

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

    async def floor(self) -> Slot:
        """The newest checkpoint's slot: slots below may have been deleted."""
        return await newest_checkpoint(self._store, self._incarnation) or Slot(0)

    async def find_end(self, start: Slot) -> WalEnd:
        """Walk forward to the first hole or seal that is no damage, and put a seal there."""
        at = start
        damaged: list[Slot] = []
        while True:
            at = await self._first_without_data(at)
            proved = await self._proved_end(at)
            # The slots again, then the newest checkpoint: one may have landed meanwhile, or may
            # have been deleted below a newer checkpoint.
            lacking = await self._without_data(at, proved)
            floor = await self.floor()
            if at < max(proved, floor):
                damaged += [slot for slot in lacking if slot >= floor]
                at = max(proved, floor)
            elif await self.put_seal(at):
                # The slot may have been filled, confirmed, and deleted below a newer checkpoint
                # before the seal was put: then it is no end.
                floor = await self.floor()
                if at >= max(floor, await self._proved_end(at)):
                    return WalEnd(at, tuple(slot for slot in damaged if slot >= floor))

    async def _proved_end(self, start: Slot) -> Slot:
        return await proved_end(self._store, self._incarnation, start, self._told)

    async def _first_without_data(self, start: Slot) -> Slot:
        """The first slot from `start` on that is empty or holds a seal."""
        slot, width = start, 1
        while True:
            lacking = await self._without_data(slot, Slot(slot + width))
            if lacking:
                return lacking[0]
            slot, width = Slot(slot + width), min(2 * width, READS_AT_ONCE_MAX)

    async def _without_data(self, start: Slot, end: Slot) -> list[Slot]:
        """The slots in [start, end) that are empty or hold a seal."""
        slots = [Slot(slot) for slot in range(start, end)]
        seals = await read_all(self._holds_seal, slots, asyncio.Semaphore(READS_AT_ONCE_MAX))
        return [slot for slot, holds in zip(slots, seals, strict=True) if holds is not False]

    async def _holds_seal(self, slot: Slot) -> bool | None:
        """False if the slot holds data, None if it is empty."""
        try:
            stored = await self._wal.read_range(slot, ByteRange(0, STAMPED_HEADER_BYTES))
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
