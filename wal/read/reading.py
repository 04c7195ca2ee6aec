"""Many reads at once, but not too many."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator
from typing import Protocol, TypeVar

from tidelog.concurrency import all_results


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

    The first error ends all and is raised as itself (`all_results`).
    """

    async def one(item: A) -> T:
        async with at_once:
            return await read(item)

    return await all_results(one(item) for item in items)


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
