"""Coroutines that run together: the results of all, or the first error."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable
from typing import Any, TypeVar

T = TypeVar("T")


async def all_results(coroutines: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """The results, in the order of the coroutines. The first error cancels the others, waits for
    their end, and is raised as itself.

    Whoever is cancelled is cancelled, also where something fails just then. `asyncio.gather` and
    task groups raise the error in its place; then a task that goes on after errors never ends, nor
    does the process that waits for it.
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
