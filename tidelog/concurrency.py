"""Runs coroutines together, all at once or a few at a time: all results, or the first error.

And remembers the loop that runs them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from functools import cached_property
from typing import Any, TypeVar

A = TypeVar("A")
T = TypeVar("T")


class OfOneLoop:
    """A part that serves within one event loop."""

    @cached_property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The loop that ran at the first question: each costs a system call until Python 3.12."""
        return asyncio.get_running_loop()


async def all_results(coroutines: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """The results, in the order of the coroutines.

    The first error cancels the other coroutines, waits for their end, and is raised as itself. A
    cancellation of the caller always raises CancelledError, even if a coroutine fails at the same
    moment. `asyncio.gather` and task groups would raise the error instead. A task that continues
    after errors would then never end, nor would its process.
    """
    begun = [asyncio.create_task(coroutine) for coroutine in coroutines]
    if not begun:
        return []
    try:
        await asyncio.wait(begun, return_when=asyncio.FIRST_EXCEPTION)
        for task in begun:
            if task.done() and (error := task.exception()) is not None:
                raise error
    except (Exception, asyncio.CancelledError):
        for task in begun:
            task.cancel()
        await asyncio.gather(*begun, return_exceptions=True)
        raise
    return [task.result() for task in begun]


async def read_all(
    read: Callable[[A], Awaitable[T]], items: Iterable[A], at_once: asyncio.Semaphore
) -> list[T]:
    """The result of `read` for each item, in order, under a limit that callers may share.

    The first error ends all and is raised as itself (`all_results`).
    """

    async def one(item: A) -> T:
        async with at_once:
            return await read(item)

    return await all_results(one(item) for item in items)
