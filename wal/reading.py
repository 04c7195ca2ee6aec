"""Many reads at once, but not too many."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

from tidelog.gathering import all_results

A = TypeVar("A")
T = TypeVar("T")


async def read_all(
    read: Callable[[A], Awaitable[T]], items: Iterable[A], at_once: asyncio.Semaphore
) -> list[T]:
    """What `read` gives for each item, in their order, under a limit that callers may share.

    The first error ends all and is raised as itself (`all_results`).
    """

    async def one(item: A) -> T:
        async with at_once:
            return await read(item)

    return await all_results(one(item) for item in items)
