"""Lists the slots of a WAL without reading objects."""

from __future__ import annotations

from collections.abc import AsyncIterator

from tidelog.identifiers import Incarnation, Slot
from tidelog.storage.object_store import ObjectMeta, ObjectStore
from tidelog.wal.format.object_format import wal_key, wal_position, wal_prefix


async def list_slots(
    store: ObjectStore, incarnation: Incarnation, start: int = 0
) -> AsyncIterator[tuple[Slot, ObjectMeta]]:
    """The slots from `start` on that have an object, also a seal, in ascending order."""
    after = wal_key(incarnation, Slot(start - 1)) if start > 0 else ""
    async for meta in store.list(wal_prefix(incarnation), after):
        position = wal_position(meta.key)
        if position is not None:
            yield position.slot, meta
