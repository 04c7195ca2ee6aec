"""A store in a directory of a local file system: durable, and safe between processes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from typing import ParamSpec, TypeVar

from tidelog.clock import Clock
from tidelog.entropy import Entropy
from tidelog.storage.object_store import (
    Buffer,
    ByteRange,
    Condition,
    IfAbsent,
    ObjectMeta,
    StoredObject,
    Suffix,
    pieces,
    validate_key,
    validate_prefix,
)
from tidelog.storage.stores.directory import Directory, Stamp

P = ParamSpec("P")
T = TypeVar("T")

_PAGE_ENTRIES = 1000
_NANOSECONDS_PER_MS = 1_000_000


def _next_page(found: Iterator[ObjectMeta]) -> list[ObjectMeta]:
    return list(islice(found, _PAGE_ENTRIES))


class FilesystemStore:
    """Objects as files below `root`. `Directory` has the file calls and why they are safe.

    The file calls block, so they run in `threads` threads of this store: at most that many puts
    wait for the disk at once. A call whose task is cancelled runs to its end in its thread, so the
    outcome of a cancelled put is unknown.

    The first put creates the root. Until then the store is empty.
    """

    def __init__(self, root: Path | str, clock: Clock, entropy: Entropy, threads: int = 16) -> None:
        self._root = Path(root).absolute()
        self._clock = clock
        self._entropy = entropy
        self._directory = Directory(self._root)
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="tidelog-filesystem")

    @property
    def url(self) -> str:
        return self._root.as_uri()

    async def get(self, key: str, byte_range: ByteRange | Suffix | None = None) -> StoredObject:
        return await self._run(self._directory.read, validate_key(key), byte_range)

    async def head(self, key: str) -> ObjectMeta:
        return await self._run(self._directory.stat, validate_key(key))

    async def put(
        self, key: str, data: Buffer | Sequence[Buffer], condition: Condition | None = None
    ) -> str:
        validate_key(key)
        if isinstance(condition, IfAbsent):
            return await self._run(self._directory.create, key, pieces(data), self._stamp())
        return await self._run(self._directory.replace, key, pieces(data), self._stamp(), condition)

    async def list(self, prefix: str = "", start_after: str = "") -> AsyncIterator[ObjectMeta]:
        found = self._directory.walk(validate_prefix(prefix), start_after)
        while page := await self._run(_next_page, found):
            for meta in page:
                yield meta

    async def delete(self, *keys: str) -> None:
        found = list(map(validate_key, keys))
        await self._run(self._directory.remove, found, self._stamp().time_ns)

    async def close(self) -> None:
        """Finish the running calls and end the threads."""
        await asyncio.to_thread(self._pool.shutdown, wait=True)

    async def _run(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._pool, lambda: function(*args, **kwargs))

    def _stamp(self) -> Stamp:
        fraction = int(self._entropy.uniform(0, _NANOSECONDS_PER_MS - 1))
        return Stamp(
            name=self._entropy.uuid().hex,
            time_ns=self._clock.time_ms() * _NANOSECONDS_PER_MS + fraction,
        )
