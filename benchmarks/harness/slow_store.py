"""`tidelog server` on a slow store in memory or on a filesystem, like a distant S3.

Each get, head and page of a listing takes BENCHMARK_GET_MS longer, each put and delete
BENCHMARK_PUT_MS longer.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

from tidelog.cli import main
from tidelog.storage.object_store import ObjectMeta
from tidelog.storage.stores.filesystem import FilesystemStore
from tidelog.storage.stores.memory import MemoryStore

_GET_SECONDS = int(os.environ.get("BENCHMARK_GET_MS", "0")) / 1000
_PUT_SECONDS = int(os.environ.get("BENCHMARK_PUT_MS", "0")) / 1000
_PAGE_ENTRIES = 1000
_SECONDS = {
    "get": _GET_SECONDS,
    "head": _GET_SECONDS,
    "put": _PUT_SECONDS,
    "delete": _PUT_SECONDS,
}


def slow_down(store: type[FilesystemStore | MemoryStore]) -> None:
    """Delay all requests to these stores from now on."""
    for name, seconds in _SECONDS.items():
        setattr(store, name, _late(getattr(store, name), seconds))
    listed = store.list

    async def late_list(self: Any, prefix: str = "", start_after: str = "") -> AsyncIterator[Any]:
        await asyncio.sleep(_GET_SECONDS)
        number = 0
        meta: ObjectMeta
        async for meta in listed(self, prefix, start_after):
            number += 1
            if number % _PAGE_ENTRIES == 0:
                await asyncio.sleep(_GET_SECONDS)
            yield meta

    store.list = late_list  # type: ignore[method-assign,assignment]


def _late(request: Callable[..., Coroutine[Any, Any, Any]], seconds: float) -> Any:
    async def late(*arguments: Any, **options: Any) -> Any:
        # A put is stored when its request arrives, and acknowledged after that.
        await asyncio.sleep(seconds / 2)
        answer = await request(*arguments, **options)
        await asyncio.sleep(seconds / 2)
        return answer

    return late


if __name__ == "__main__":
    slow_down(FilesystemStore)
    slow_down(MemoryStore)
    main()
