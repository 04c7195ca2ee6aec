"""Work that must not hold up the event loop: a thread in production, inline under simulation."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, Protocol, TypeVar

logger = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")


class Offload(Protocol):
    """Runs a pure, CPU-bound function away from the event loop."""

    async def run(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """The function's result; its exceptions pass through."""
        ...


class ThreadOffload:
    """A small pool of worker threads."""

    def __init__(self, threads: int = 1, name: str = "tidelog-offload", niceness: int = 0) -> None:
        """`niceness`: how far its threads stand back where more want to run than there are cores;
        with any, they never take a core from another thread just because they wake up. Linux alone
        has that for threads; elsewhere it changes nothing."""
        self._pool = ThreadPoolExecutor(
            threads, thread_name_prefix=name, initializer=_stand_back, initargs=(niceness,)
        )

    async def run(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._pool, lambda: function(*args, **kwargs))

    def close(self) -> None:
        """Wait for running work and end the threads."""
        self._pool.shutdown(wait=True, cancel_futures=True)


def _stand_back(niceness: int) -> None:
    """Have the system prefer others to this thread."""
    if not niceness or sys.platform != "linux":
        return
    thread = threading.get_native_id()
    try:
        before = os.getpriority(os.PRIO_PROCESS, thread)
        os.setpriority(os.PRIO_PROCESS, thread, before + niceness)
        # Each time that the event loop lets the interpreter go, a thread that waits for it wakes
        # up. It would take the loop's core and keep it until the system's next tick.
        os.sched_setscheduler(thread, os.SCHED_BATCH, os.sched_param(0))
    except OSError as error:
        # Forbidden in a sandbox, or not there: musl has only the name of the second call. An error
        # here would be the end of all work that is ever given to this pool.
        logger.warning("a worker thread cannot stand back", extra={"why": str(error)})


class InlineOffload:
    """Runs the work at once in the calling task, so that a simulation stays in one thread."""

    async def run(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        return function(*args, **kwargs)
