"""Reads at once return all results or raise the first error. A cancelled task ends."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from tidelog.concurrency import read_all
from tidelog.storage.object_store import StoreNotApplied

FAILS, HANGS = "fails", "hangs"


def run(story: Callable[[], Awaitable[None]]) -> None:
    async def main() -> None:
        await story()

    asyncio.run(main())


class World:
    """Items that fail, hang or are read. Records which of them were begun and ended."""

    def __init__(self) -> None:
        self.failing = asyncio.Event()
        self.both_begun = asyncio.Event()
        self.begun: list[str] = []
        self.ended: list[str] = []

    async def read(self, item: str) -> str:
        self.begun.append(item)
        if len(self.begun) == 2:
            self.both_begun.set()
        try:
            if item == FAILS:
                await self.failing.wait()
                raise StoreNotApplied(item, "503")
            if item == HANGS:
                await asyncio.Event().wait()
            return item.upper()
        finally:
            self.ended.append(item)

    def read_all(self, *items: str) -> asyncio.Task[list[str]]:
        return asyncio.create_task(read_all(self.read, items, asyncio.Semaphore(8)))


def test_results_come_in_the_order_of_the_items() -> None:
    async def story() -> None:
        assert await World().read_all("a", "b", "c") == ["A", "B", "C"]
        assert await World().read_all() == []

    run(story)


def test_the_first_error_ends_the_others_and_is_raised_as_itself() -> None:
    async def story() -> None:
        world = World()
        reading = world.read_all(HANGS, FAILS, "a")
        world.failing.set()
        with pytest.raises(StoreNotApplied, match="503"):
            await reading
        assert sorted(world.ended) == sorted(world.begun)

    run(story)


def test_a_caller_cancelled_while_a_read_fails_is_cancelled() -> None:
    """Otherwise a loop that continues after errors would never end."""

    async def story() -> None:
        world = World()
        reading = world.read_all(FAILS, HANGS)
        await world.both_begun.wait()
        world.failing.set()
        # One step after the read fails, and one before the failure is noticed.
        asyncio.get_running_loop().call_soon(reading.cancel)
        await asyncio.wait({reading})
        assert reading.cancelled()
        assert sorted(world.ended) == [FAILS, HANGS]

    run(story)
