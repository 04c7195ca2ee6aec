"""A bucket for Spark's synchronous calls: one store and one event loop, in one thread."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine, Iterator
from types import TracebackType
from typing import Any, TypeVar

from tidelog.bucket.views.bucket import Bucket
from tidelog.clock import Clock, SystemClock
from tidelog.entropy import SystemEntropy
from tidelog.storage.object_store import ObjectStore
from tidelog.storage.stores.location import open_reader
from tidelog.storage.stores.metered import StoreStatistics
from tidelog.workers.offload import InlineOffload, Offload

T = TypeVar("T")


class Session:
    """An open store. Create it in the process that uses it."""

    def __init__(self, store_url: str, *, remembers: bool = False) -> None:
        """`remembers`: see `Bucket.unread`."""
        self.clock: Clock = SystemClock()
        entropy = SystemEntropy()
        # Spark runs a task per core, so threads would only compete with them.
        self.offload: Offload = InlineOffload()
        self.statistics = StoreStatistics()
        self.store: ObjectStore = open_reader(
            store_url, self.clock, entropy, statistics=self.statistics
        )
        self.bucket = Bucket.unread(
            self.store, self.clock, entropy, self.offload, remembers=remembers
        )
        self._runner = asyncio.Runner()

    def run(self, use: Coroutine[Any, Any, T]) -> T:
        return self._runner.run(use)

    def iterate(self, found: AsyncIterator[T]) -> Iterator[T]:
        """The items of an asynchronous iterator, as a synchronous one."""

        async def following() -> T | None:
            return await anext(found, None)

        while (each := self.run(following())) is not None:
            yield each

    def close(self) -> None:
        self.run(self.store.close())
        self._runner.close()

    def __enter__(self) -> Session:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()
