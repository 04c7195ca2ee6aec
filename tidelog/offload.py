"""Work that must not hold up the event loop: a thread or a process (`process_offload`) in
production, in the calling thread under simulation."""

from __future__ import annotations

import asyncio
import ctypes
import logging
import os
import platform
import struct
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Concatenate, Final, Generic, ParamSpec, Protocol, TypeVar

from tidelog.errors import TidelogError

logger = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
R = TypeVar("R")


class WorkerLost(TidelogError):
    """The process that was to do the work, or did it, has ended. Nothing has come of it; it can be
    begun again."""


class RemoteObject(Protocol[T_co]):
    """An object that lives where the work is done. Nobody has it elsewhere."""

    async def run(
        self, method: Callable[Concatenate[T_co, P], R], *args: P.args, **kwargs: P.kwargs
    ) -> R:
        """Its method's result, one call after the other; its exceptions pass through. WorkerLost:
        it is gone."""
        ...

    def let_go(self) -> None:
        """It is not needed any more."""
        ...


class Offload(Protocol):
    """Runs a pure, CPU-bound function away from the event loop."""

    async def run(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """The function's result; its exceptions pass through. WorkerLost where it is done in
        another process."""
        ...

    async def place(
        self, factory: Callable[P, T], *args: P.args, **kwargs: P.kwargs
    ) -> RemoteObject[T]:
        """What the factory makes, kept where the work is done. The same errors."""
        ...


class ThreadOffload:
    """A small pool of worker threads."""

    def __init__(self, threads: int = 1, name: str = "tidelog-offload", niceness: int = 0) -> None:
        """`niceness`: how far its threads stand back where more want to run than there are cores;
        with any, they never take a core from another thread just because they wake up. Linux alone
        has that for threads; elsewhere it changes nothing."""
        self._pool = ThreadPoolExecutor(
            threads, thread_name_prefix=name, initializer=stand_back, initargs=(niceness,)
        )

    async def run(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._pool, lambda: function(*args, **kwargs))

    async def place(
        self, factory: Callable[P, T], *args: P.args, **kwargs: P.kwargs
    ) -> RemoteObject[T]:
        return _PlacedHere(self, await self.run(factory, *args, **kwargs))

    def close(self) -> None:
        """Wait for running work and end the threads."""
        self._pool.shutdown(wait=True, cancel_futures=True)


_LONGEST_TURN_NANOSECONDS: Final = 100_000_000
_SCHED_SETATTR: Final = {"x86_64": 314, "aarch64": 274}
"""Linux's call of that name, by machine; C libraries have no function for it yet."""


def stand_back(niceness: int) -> None:
    """Have the system prefer others to this thread."""
    if not niceness or sys.platform != "linux":
        return
    thread = threading.get_native_id()
    try:
        nice = os.getpriority(os.PRIO_PROCESS, thread) + niceness
        os.setpriority(os.PRIO_PROCESS, thread, nice)
        # Each time that the event loop lets the interpreter go, a thread that waits for it wakes
        # up. It would take the loop's core and keep it until the system's next tick.
        os.sched_setscheduler(thread, os.SCHED_BATCH, os.sched_param(0))
        _take_long_turns(nice)
    except OSError as error:
        # Forbidden in a sandbox, or not there: musl has only the name of the second call. An error
        # here would be the end of all work that is ever given to this pool.
        logger.warning("a worker thread cannot stand back", extra={"why": str(error)})


def _take_long_turns(nice: int) -> None:
    """Who wakes up and takes shorter turns, as all do, has this thread's core at once, where it
    would wait for the system's next tick: Linux 6.12 and later, `sched_attr.sched_runtime`."""
    number = _SCHED_SETATTR.get(platform.machine())
    if number is None:
        return
    attributes = struct.pack(
        "=IIQiIQQQ", 48, os.SCHED_BATCH, 0, nice, 0, _LONGEST_TURN_NANOSECONDS, 0, 0
    )
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.syscall(number, 0, attributes, 0):
        raise OSError(ctypes.get_errno(), "sched_setattr")


class InlineOffload:
    """Runs the work at once in the calling task, so that a simulation stays in one thread."""

    async def run(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        return function(*args, **kwargs)

    async def place(
        self, factory: Callable[P, T], *args: P.args, **kwargs: P.kwargs
    ) -> RemoteObject[T]:
        return _PlacedHere(self, factory(*args, **kwargs))


class _PlacedHere(Generic[T]):
    """In this process."""

    def __init__(self, offload: Offload, it: T) -> None:
        self._offload = offload
        self._it = it

    async def run(
        self, method: Callable[Concatenate[T, P], R], *args: P.args, **kwargs: P.kwargs
    ) -> R:
        return await self._offload.run(method, self._it, *args, **kwargs)

    def let_go(self) -> None:
        """Python does it by itself."""
