"""A store that holds puts back until a test lets them go."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence

from tidelog.storage.object_store import (
    Buffer,
    ByteRange,
    Condition,
    ObjectMeta,
    StoredObject,
    Suffix,
)
from tidelog.storage.stores.memory import MemoryStore


class GatedStore:
    """`waiting`: the keys whose puts are held back, in the order in which they were sent."""

    def __init__(self, store: MemoryStore) -> None:
        self._store = store
        self._gates: dict[str, asyncio.Event] = {}
        self.is_open = False
        self._held: str | None = None

    @property
    def url(self) -> str:
        return self._store.url

    @property
    def waiting(self) -> list[str]:
        return [key for key, gate in self._gates.items() if not gate.is_set()]

    def release(self, key: str) -> None:
        """Let one put go through."""
        self._gates[key].set()

    def hold(self, part: str) -> None:
        """Hold back puts of keys with this part, from now on."""
        self._held = part

    def open(self) -> None:
        """Let all puts go through, from now on."""
        self.is_open = True
        self._held = None
        for gate in self._gates.values():
            gate.set()

    async def get(self, key: str, byte_range: ByteRange | Suffix | None = None) -> StoredObject:
        return await self._store.get(key, byte_range)

    async def head(self, key: str) -> ObjectMeta:
        return await self._store.head(key)

    async def put(
        self, key: str, data: Buffer | Sequence[Buffer], condition: Condition | None = None
    ) -> str:
        if not self.is_open or (self._held is not None and self._held in key):
            gate = self._gates.setdefault(key, asyncio.Event())
            await gate.wait()
        return await self._store.put(key, data, condition)

    def list(self, prefix: str = "", start_after: str = "") -> AsyncIterator[ObjectMeta]:
        return self._store.list(prefix, start_after)

    async def delete(self, *keys: str) -> None:
        await self._store.delete(*keys)

    async def close(self) -> None:
        await self._store.close()
