"""Proves the end of a WAL that is not retired, by its writer's stamps (rules C10, G2).

A stamp is the number of slots that a writer had confirmed. Each slot, the lease and the fence have
one. A missing slot below a stamp is not the end. It is damage, unless a newer checkpoint replaced
it and a collector deleted it. So an observer of a hole looks in this order: the slot, the stamps,
the slot again, the newest checkpoint. In another order a slot that lands or is deleted meanwhile
looks like damage (`tests/models/wal_end.py`).
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import NamedTuple

from tidelog.errors import CorruptObject
from tidelog.identifiers import Incarnation, Slot
from tidelog.storage.object_store import ByteRange, ObjectMeta, ObjectNotFound, ObjectStore
from tidelog.wal.format.object_format import (
    HEADER_BYTES,
    STAMPED_HEADER_BYTES,
    SlotStamps,
    decode_header,
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
