"""Bounds the time that a caller waits for a store."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Sequence
from typing import TypeVar

from tidelog.storage.object_store import (
    Buffer,
    ByteRange,
    Condition,
    ObjectMeta,
    ObjectStore,
    StoredObject,
    StoreError,
    StoreNotApplied,
    StoreOutcomeUnknown,
    Suffix,
)

T = TypeVar("T")


class TimeoutStore:
    """Another store, whose answers may take at most `seconds` (each entry, for a listing).

    A late read raises StoreNotApplied. A late put or delete raises StoreOutcomeUnknown: the store
    may still apply it.
    """

    def __init__(self, store: ObjectStore, seconds: float) -> None:
        self._store = store
        self._seconds = seconds

    @property
    def url(self) -> str:
        return self._store.url

    async def get(self, key: str, byte_range: ByteRange | Suffix | None = None) -> StoredObject:
        return await self._bounded(self._store.get(key, byte_range), key, StoreNotApplied)

    async def head(self, key: str) -> ObjectMeta:
        return await self._bounded(self._store.head(key), key, StoreNotApplied)

    async def put(
        self, key: str, data: Buffer | Sequence[Buffer], condition: Condition | None = None
    ) -> str:
        sent = self._store.put(key, data, condition)
        return await self._bounded(sent, key, StoreOutcomeUnknown)

    async def list(self, prefix: str = "", start_after: str = "") -> AsyncIterator[ObjectMeta]:
        entries = aiter(self._store.list(prefix, start_after))
        while True:
            try:
                meta = await self._bounded(anext(entries), prefix, StoreNotApplied)
            except StopAsyncIteration:
                return
            yield meta

    async def delete(self, *keys: str) -> None:
        await self._bounded(self._store.delete(*keys), keys[0], StoreOutcomeUnknown)

    async def close(self) -> None:
        await self._store.close()

    async def _bounded(self, sent: Awaitable[T], key: str, late: type[StoreError]) -> T:
        try:
            async with asyncio.timeout(self._seconds):
                return await sent
        except TimeoutError:
            raise late(key, f"no answer within {self._seconds:g} s") from None
