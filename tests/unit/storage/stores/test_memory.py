"""The store in memory forgets deleted objects, even while it is listed."""

from __future__ import annotations

import asyncio

from tidelog.clock import SystemClock
from tidelog.storage.object_store import DELETED_AT_ONCE_MAX
from tidelog.storage.stores.memory import MemoryStore


def test_a_listing_goes_on_though_most_objects_are_deleted_meanwhile() -> None:
    async def story() -> None:
        store = MemoryStore(SystemClock())
        names = [f"wal/{number:05d}" for number in range(6000)]
        for name in names:
            await store.put(name, b"x")
        found = []
        async for meta in store.list("wal/"):
            found.append(meta.key)
            if len(found) == 1500:
                for first in range(0, 5000, DELETED_AT_ONCE_MAX):
                    await store.delete(*names[first : first + DELETED_AT_ONCE_MAX])
                await store.put(names[10], b"again")
        assert found == [*names[:1500], *names[5000:]]
        assert len(store._keys) <= 2 * 1001 + 1000, "the store keeps no names of deleted objects"
        assert [meta.key async for meta in store.list()] == [names[10], *names[5000:]]

    asyncio.run(story())
