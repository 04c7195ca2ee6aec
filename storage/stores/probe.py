"""A start-up check that the store keeps the promises on which Tidelog's safety rests."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from contextlib import suppress
from typing import TypeVar

from tidelog.entropy import Entropy
from tidelog.storage.object_store import (
    AccessDenied,
    ByteRange,
    IfAbsent,
    IfMatch,
    ObjectNotFound,
    ObjectStore,
    PreconditionFailed,
    StoreError,
    StoreFull,
    StoreMisconfigured,
    StoreNotApplied,
    StoreOutcomeUnknown,
    Suffix,
)

T = TypeVar("T")

PROBE_PREFIX = "probe/"
_ATTEMPTS_MAX = 3
_CLEAN_UP_SECONDS_MAX = 1.0
_FIRST = b"tidelog probe: first"
_SECOND = b"tidelog probe: second, longer"
_REMEDY = (
    "Tidelog needs a store with If-None-Match and If-Match on PUT that reads and lists its own"
    " writes, such as AWS S3, MinIO or SeaweedFS"
)


async def probe(store: ObjectStore, entropy: Entropy) -> None:
    """Write, overwrite, read, list and delete an object below `probe/`, and leave nothing there.

    StoreMisconfigured names the broken promise or the missing bucket. AccessDenied names the
    missing permission. After repeated transient faults the last one is raised.
    """
    for attempt in range(_ATTEMPTS_MAX):
        key = f"{PROBE_PREFIX}{entropy.uuid().hex}"
        try:
            await _Probe(store, key).run()
        except StoreOutcomeUnknown:
            # The content of this key is now unknown, so the next attempt uses another key.
            if attempt + 1 == _ATTEMPTS_MAX:
                raise
        except StoreFull as error:
            raise StoreFull(store.url, error.why) from error
        except StoreNotApplied as error:
            why = f"{error.why}; nothing was stored. Check the address, and whether the store runs"
            raise StoreNotApplied(store.url, why) from error
        else:
            return


class _Probe:
    def __init__(self, store: ObjectStore, key: str) -> None:
        self._store = store
        self._key = key

    async def run(self) -> None:
        try:
            await self._conditions()
            await self._reads()
            await self._deletes()
        except StoreNotApplied:
            # A store that does not answer a put will not answer a delete.
            raise
        except BaseException:
            await self._clean_up()
            raise

    async def _clean_up(self) -> None:
        """Delete the object if the store answers soon.

        Otherwise a broker that is told to stop would wait for the store. The collector deletes an
        object that stays.
        """
        with suppress(StoreError, TimeoutError):
            async with asyncio.timeout(_CLEAN_UP_SECONDS_MAX):
                await self._store.delete(self._key)

    async def _conditions(self) -> None:
        store, key = self._store, self._key
        first = await self._allowed("write", store.put(key, _FIRST, IfAbsent()))
        if await self._applied(_SECOND, IfAbsent()):
            raise self._broken("put-if-absent: a second create of the same key succeeded")
        if await self._applied(_SECOND, IfMatch("0" * len(first))):
            raise self._broken("put-if-match: an overwrite with another version's ETag succeeded")
        stored = await self._allowed("read", store.get(key))
        if stored.data != _FIRST:
            raise self._broken("read-after-write: the object read is not the one just written")
        if stored.etag != first:
            raise self._broken("versions: PUT and GET give different ETags for the same object")
        if not await self._applied(_SECOND, IfMatch(first)):
            raise self._broken("put-if-match: an overwrite with the current ETag is refused")
        if await self._applied(_FIRST, IfMatch(first)):
            raise self._broken("put-if-match: an overwrite with a stale ETag succeeded")

    async def _reads(self) -> None:
        store, key = self._store, self._key
        if (await store.get(key)).data != _SECOND:
            raise self._broken("read-after-write: an overwritten object still reads as before")
        if (await store.get(key, ByteRange(8, 5))).data != _SECOND[8:13]:
            raise self._broken("range reads: other bytes than those asked for")
        if (await store.get(key, Suffix(6))).data != _SECOND[-6:]:
            raise self._broken("suffix reads: other bytes than the last ones")
        if await self._listed() != [(key, len(_SECOND))]:
            raise self._broken("list-after-write: the object just written is not listed")

    async def _deletes(self) -> None:
        # Two keys, one of them absent, as garbage collection sends them.
        await self._allowed("delete", self._store.delete(self._key, f"{self._key}-absent"))
        with suppress(ObjectNotFound):
            await self._store.get(self._key)
            raise self._broken("read-after-delete: a deleted object can still be read")
        if await self._listed():
            raise self._broken("list-after-delete: a deleted object is still listed")

    async def _listed(self) -> list[tuple[str, int]]:
        try:
            return [(meta.key, meta.size) async for meta in self._store.list(self._key)]
        except AccessDenied as error:
            raise self._denied("list", error) from error

    async def _applied(self, data: bytes, condition: IfAbsent | IfMatch) -> bool:
        try:
            await self._store.put(self._key, data, condition)
        except PreconditionFailed:
            return False
        return True

    async def _allowed(self, what: str, request: Awaitable[T]) -> T:
        try:
            return await request
        except AccessDenied as error:
            raise self._denied(what, error) from error

    def _denied(self, what: str, error: AccessDenied) -> AccessDenied:
        return AccessDenied(
            self._store.url, f"the store does not let Tidelog {what} objects: {error.why}"
        )

    def _broken(self, promise: str) -> StoreMisconfigured:
        return StoreMisconfigured(self._store.url, f"the store breaks {promise}. {_REMEDY}")
