"""Where a WAL that is not retired ends, proved by its writer's stamps (rules C10, G2).

A writer says in each slot, in its lease and with its fence how many slots it had confirmed: its
stamps. A slot below a stamp that is missing is no end: it is damage, unless a newer checkpoint has
made the slot superfluous and a collector has deleted it. Therefore an observer that meets a hole
looks in this order: the slot; the stamps; the slot again, then the newest checkpoint. In another
order a slot that lands meanwhile, or is deleted below a newer checkpoint, looks like damage
(`tests/models/wal_end.py`).
"""

from __future__ import annotations

from typing import NamedTuple

from tidelog.errors import CorruptObject
from tidelog.identifiers import Incarnation, Slot
from tidelog.storage.object_store import ByteRange, ObjectNotFound, ObjectStore
from tidelog.wal.format.object_format import (
    HEADER_BYTES,
    STAMPED_HEADER_BYTES,
    SlotStamps,
    decode_header,
    wal_key,
)
from tidelog.wal.recover.wal_listing import list_slots
from tidelog.wal.write.checkpoint import newest_checkpoint


async def durable_end(store: ObjectStore, incarnation: Incarnation) -> Slot:
    """A slot below which all were durable when this returns, and at or above the end of all that
    was acknowledged when it was called (rule G2). Slots that are lost since count. Raises
    StoreError."""
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
    """A slot below which the writer had confirmed all slots, as far as stamps tell: at least
    `told` (by a lease or a fence). `start`: slots below are not looked at. Raises StoreError."""
    found = await newest_stamps(store, incarnation, start)
    return told if found is None else max(told, found.stamps.durable_end)


class FoundStamps(NamedTuple):
    """A slot and what it is stamped with."""

    slot: Slot
    stamps: SlotStamps


async def newest_stamps(
    store: ObjectStore, incarnation: Incarnation, start: Slot
) -> FoundStamps | None:
    """Of the highest slot from `start` on that holds readable data: no other slot has higher
    stamps. None if there is none, or if it is of the first release. Raises StoreError."""
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
