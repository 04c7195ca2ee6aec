"""Which slots of a WAL there are, by listing: no object is read."""

from __future__ import annotations

from collections.abc import AsyncIterator

from tidelog.identifiers import Incarnation, Slot
from tidelog.storage.object_store import ObjectMeta, ObjectStore
from tidelog.wal.checkpoint import newest_checkpoint
from tidelog.wal.object_format import wal_key, wal_position, wal_prefix


async def list_slots(
    store: ObjectStore, incarnation: Incarnation, start: int = 0
) -> AsyncIterator[tuple[Slot, ObjectMeta]]:
    """The slots from `start` on in which anything lies, ascending; seals too."""
    after = wal_key(incarnation, Slot(start - 1)) if start > 0 else ""
    async for meta in store.list(wal_prefix(incarnation), after):
        position = wal_position(meta.key)
        if position is not None:
            yield position.slot, meta


async def durable_end(store: ObjectStore, incarnation: Incarnation) -> Slot:
    """A slot below which all were durable when this returns, and at or above the end of all that
    was acknowledged when it was called (rule G2)."""
    end = await newest_checkpoint(store, incarnation) or Slot(0)
    async for slot, _ in list_slots(store, incarnation, end):
        if slot != end:
            break
        end = Slot(slot + 1)
    # Slots below a newer checkpoint may have been deleted while they were listed.
    return max(end, await newest_checkpoint(store, incarnation) or Slot(0))
