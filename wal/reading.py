"""Many reads at once, but not too many."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

A = TypeVar("A")
T = TypeVar("T")


async def read_all(
    read: Callable[[A], Awaitable[T]], items: Iterable[A], at_once: asyncio.Semaphore
) -> list[T]:
    """What `read` gives for each item, in their order, under a limit that callers may share.

    The first error ends all and is raised as itself.
    """

    async def one(item: A) -> T:
        async with at_once:
            return await read(item)

    try:
        async with asyncio.TaskGroup() as tasks:
            begun = [tasks.create_task(one(item)) for item in items]
    except BaseExceptionGroup as group:
        # Callers handle a store's errors, not groups of them; the first says enough.
        raise group.exceptions[0] from None
    return [task.result() for task in begun]
