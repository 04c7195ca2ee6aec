"""`tidelog server` on a filesystem store that takes its time: each get, head and page of a listing
is answered BENCHMARK_GET_MS later, as a distant S3 would."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator

from tidelog.cli import main
from tidelog.storage.filesystem import FilesystemStore
from tidelog.storage.object_store import ByteRange, ObjectMeta, StoredObject, Suffix

_SECONDS = int(os.environ["BENCHMARK_GET_MS"]) / 1000
_PAGE_ENTRIES = 1000

_get, _head, _list = FilesystemStore.get, FilesystemStore.head, FilesystemStore.list


async def _late_get(
    self: FilesystemStore, key: str, byte_range: ByteRange | Suffix | None = None
) -> StoredObject:
    await asyncio.sleep(_SECONDS)
    return await _get(self, key, byte_range)


async def _late_head(self: FilesystemStore, key: str) -> ObjectMeta:
    await asyncio.sleep(_SECONDS)
    return await _head(self, key)


async def _late_list(
    self: FilesystemStore, prefix: str = "", start_after: str = ""
) -> AsyncIterator[ObjectMeta]:
    await asyncio.sleep(_SECONDS)
    number = 0
    async for meta in _list(self, prefix, start_after):
        number += 1
        if number % _PAGE_ENTRIES == 0:
            await asyncio.sleep(_SECONDS)
        yield meta


if __name__ == "__main__":
    FilesystemStore.get = _late_get  # type: ignore[method-assign]
    FilesystemStore.head = _late_head  # type: ignore[method-assign]
    FilesystemStore.list = _late_list  # type: ignore[method-assign,assignment]
    main()
