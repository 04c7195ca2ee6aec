"""Many reads at once, but not too many."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator
from typing import Protocol, TypeVar


class Stored(Protocol):
    """Something that takes up bytes of an object."""

    @property
    def length(self) -> int:
        """How many."""
        ...


A = TypeVar("A")
T = TypeVar("T")
S = TypeVar("S", bound=Stored)


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


def windows(found: Iterable[S], bytes_max: int) -> Iterator[list[S]]:
    """Runs of a bounded size, as much as may be in memory at a time; one alone may be larger."""
    window: list[S] = []
    size = 0
    for each in found:
        if window and size + each.length > bytes_max:
            yield window
            window, size = [], 0
        window.append(each)
        size += each.length
    if window:
        yield window
