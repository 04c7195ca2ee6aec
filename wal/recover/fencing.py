"""Seals the WAL of an incarnation that must not write any more (rules C4, C10).

A seal is an object in a slot, created if absent like any other, and never removed. The sealer walks
forward from the newest checkpoint and seals the first hole that is not damage. A hole below a stamp
of the writer (`wal_end`) is damage: the walk notes it and passes it. The seal is the WAL's end.
`docs/formats/wal.md` proves that no slot behind the end was acknowledged. All sealers find the same
end if stamps prove no damage. If a stamp becomes visible during the walks, the ends may differ. The
metadata log takes the first (`takeover`).

The sealer first puts barrier seals further ahead. They do not mark the end. They stop a live
writer, which could otherwise stay ahead of the walk.

| Failure | Effect |
|---|---|
| the sealer dies, or loses an answer | the next sealer continues: each slot is decided once |
| a put of a seal arrives late | the seal fills a hole, or lies behind the end; both are harmless |
| two sealers walk at the same time | they help each other |
| the old owner writes during the walk | recovery reads the slots that it fills below the seal |
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
from tidelog.wal.recover.wal_end import list_slots, proved_end
from tidelog.wal.write.checkpoint import newest_checkpoint

BARRIERS = 6
READS_AT_ONCE_MAX = 64
SEAL_DEADLINE_SECONDS = 30.0


class WalEnd(NamedTuple):
    """The end of a WAL, and the acknowledged slots below it that are lost."""

    slot: Slot
    """The slot of the seal. Only slots below it count."""
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

    `in_flight_max`: the slots that the old owner uploads at a time. `told`: the number of durable
    slots by its lease or fence. Raises StoreError, also as AppendUndecided or SequenceGone; then
    the caller calls again. Seals that were put remain and are harmless.
    """
    sealer = _Sealer(store, clock, entropy, incarnation, told)
    start = await sealer.floor()
    tail = await guess_tail(store, incarnation, start)
    ahead = [Slot(tail + in_flight_max * 4**power) for power in range(1, BARRIERS + 1)]
    await read_all(sealer.put_seal, ahead, asyncio.Semaphore(BARRIERS))
    return await sealer.find_end(start)


async def guess_tail(store: ObjectStore, incarnation: Incarnation, start: Slot) -> Slot:
    """The slot behind the last listed one: an estimate, which suffices for barriers."""
    tail = start
    async for slot, meta in list_slots(store, incarnation, start):
        if meta.size != HEADER_BYTES:
            tail = Slot(slot + 1)
    return tail


def _identify(data: Buffer) -> bytes:
    """The writer id in a slot's object; none if the object is damaged, which decides the slot."""
    try:
        return identify(data)
    except CorruptObject:
        return b""


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
        self._wal = Sequence(store, clock, wal_prefix(incarnation), WAL_SUFFIX, _identify)

    async def put_seal(self, slot: Slot) -> bool:
        """Put a seal into a slot if it is empty. Returns whether the slot holds a seal now."""
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
        """The newest checkpoint's slot. The collector may have deleted slots below it."""
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
            # The slot is decided: it has a damaged object, which the replay reports. Only a seal
            # ends the WAL: slots behind this one may be acknowledged.
            return False
        return header.kind is ObjectKind.SEAL
