"""The end of a WAL: proved by its writer's stamps, or made by a seal (rules C4, C10, G2).

A stamp is the number of slots that a writer had confirmed. Each slot, the lease and the fence have
one. A missing slot below a stamp is not the end. It is damage, unless a newer checkpoint replaced
it and a collector deleted it. So an observer of a hole looks in this order: the slot, the stamps,
the slot again, the newest checkpoint. In another order a slot that lands or is deleted meanwhile
looks like damage (`tests/models/wal_end.py`).

A seal ends the WAL of an incarnation that must not write any more. It is an object in a slot,
created if absent like any other, and never removed. The sealer walks forward from the newest
checkpoint and seals the first hole that is not damage. The walk notes damage and passes it.
`docs/formats/wal.md` proves that no slot behind the seal was acknowledged. All sealers find the
same end if stamps prove no damage. If a stamp becomes visible during the walks, the ends may
differ. The metadata log takes the first (`takeover`).

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
from collections.abc import AsyncIterator
from typing import NamedTuple

from tidelog.clock import Clock
from tidelog.concurrency import read_all
from tidelog.entropy import Entropy
from tidelog.errors import CorruptObject
from tidelog.identifiers import FIRST_SLOT, Incarnation, Slot
from tidelog.storage.object_store import Buffer, ByteRange, ObjectMeta, ObjectNotFound, ObjectStore
from tidelog.storage.sequence import Sequence, Taken
from tidelog.wal.format.object_format import (
    HEADER_BYTES,
    STAMPED_HEADER_BYTES,
    WAL_SUFFIX,
    ObjectHeader,
    ObjectKind,
    SlotStamps,
    decode_header,
    encode_header,
    identify,
    wal_key,
    wal_position,
    wal_prefix,
)
from tidelog.wal.write.checkpoint import newest_checkpoint


async def durable_end(store: ObjectStore, incarnation: Incarnation) -> Slot:
    """A slot below which all slots were durable, lost ones too (rule G2). Raises StoreError.

    It is at or above the end of all slots that were acknowledged before the call.
    """
    end = await newest_checkpoint(store, incarnation) or Slot(0)
    listed = {slot async for slot, _ in list_slots(store, incarnation, end)}
    while True:
        while end in listed:
            end = Slot(end + 1)
        proved = end
        if any(slot > end for slot in listed):
            proved = await proved_end(store, incarnation, end, end)
        # Slots below a newer checkpoint may have been deleted while they were listed.
        floor = await newest_checkpoint(store, incarnation) or Slot(0)
        if max(proved, floor) <= end:
            return end
        end = max(proved, floor)


async def proved_end(store: ObjectStore, incarnation: Incarnation, start: Slot, told: Slot) -> Slot:
    """The highest stamp: the writer had confirmed all slots below it. Raises StoreError.

    It is at least `told`, the stamp of a lease or a fence. Slots below `start` are not read.
    """
    found = await newest_stamps(store, incarnation, start)
    return told if found is None else max(told, found.stamps.durable_end)


class FoundStamps(NamedTuple):
    """A slot and its stamps."""

    slot: Slot
    stamps: SlotStamps


async def newest_stamps(
    store: ObjectStore, incarnation: Incarnation, start: Slot
) -> FoundStamps | None:
    """The stamps of the highest readable slot from `start` on. Raises StoreError.

    No other slot has higher stamps. None without such a slot, or if the first release wrote it.
    """
    listed = [
        slot
        async for slot, meta in list_slots(store, incarnation, start)
        if meta.size != HEADER_BYTES
    ]
    for slot in reversed(listed):
        key = wal_key(incarnation, slot)
        try:
            stored = await store.get(key, ByteRange(0, STAMPED_HEADER_BYTES))
            header = decode_header(key, stored.data)
        except (ObjectNotFound, CorruptObject):
            continue
        if (header.incarnation, header.slot) == (incarnation, slot):
            return None if header.stamps is None else FoundStamps(slot, header.stamps)
    return None


async def list_slots(
    store: ObjectStore, incarnation: Incarnation, start: int = 0
) -> AsyncIterator[tuple[Slot, ObjectMeta]]:
    """The slots from `start` on that have an object, also a seal, in ascending order."""
    after = wal_key(incarnation, Slot(start - 1)) if start > 0 else ""
    async for meta in store.list(wal_prefix(incarnation), after):
        position = wal_position(meta.key)
        if position is not None:
            yield position.slot, meta


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
    """The writer id in a slot's object; none if the object is damaged: it decides the slot too."""
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
        self._durable_end = told
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
        return await proved_end(self._store, self._incarnation, start, self._durable_end)

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
