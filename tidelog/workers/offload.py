"""Runs CPU-bound work away from the event loop.

Production uses threads or a process (`process_offload`); a simulation runs the work inline.
"""

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
    """The worker process has ended. The work had no effect and may start again."""


class RemoteObject(Protocol[T_co]):
    """An object that lives in the worker. No other code has a reference to it."""

    async def run(
        self, method: Callable[Concatenate[T_co, P], R], *args: P.args, **kwargs: P.kwargs
    ) -> R:
        """Call a method in the worker, one call at a time, and return its result or raise its
        exception.

        WorkerLost: the object is gone.
        """
        ...

    def release(self) -> None:
        """Delete the object in the worker."""
        ...


class Offload(Protocol):
    """Runs a pure, CPU-bound function away from the event loop."""

    async def run(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """The function's result; its exceptions pass through.

        WorkerLost if the worker is another process that has ended.
        """
        ...

    async def place(
        self, factory: Callable[P, T], *args: P.args, **kwargs: P.kwargs
    ) -> RemoteObject[T]:
        """Create an object in the worker with `factory`. Raises as `run`."""
        ...


class ThreadOffload:
    """A small pool of worker threads."""

    def __init__(self, threads: int = 1, name: str = "tidelog-offload", niceness: int = 0) -> None:
        """`niceness` lowers the threads' priority when more threads run than there are cores.

        With any, a waking thread never preempts another one. This works on Linux alone; other
        systems ignore it for threads.
        """
        self._pool = ThreadPoolExecutor(
            threads, thread_name_prefix=name, initializer=lower_priority, initargs=(niceness,)
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
"""The number of Linux's system call, by machine; C libraries lack a function for it."""


def lower_priority(niceness: int) -> None:
    """Lower this thread's scheduling priority by `niceness`."""
    if not niceness or sys.platform != "linux":
        return
    thread = threading.get_native_id()
    try:
        nice = os.getpriority(os.PRIO_PROCESS, thread) + niceness
        os.setpriority(os.PRIO_PROCESS, thread, nice)
        # Each time the event loop releases the GIL, a waiting thread wakes up. It would preempt the
        # loop on its core until the system's next tick.
        os.sched_setscheduler(thread, os.SCHED_BATCH, os.sched_param(0))
        _request_long_slices(nice)
    except OSError as error:
        # A sandbox may forbid the calls, and musl has only the name of the second one. An error
        # here would break the pool for good.
        logger.warning("a worker thread cannot stand back", extra={"why": str(error)})


def _request_long_slices(nice: int) -> None:
    """Request long time slices for this thread (Linux 6.12, `sched_attr.sched_runtime`).

    A waking thread with ordinary, shorter slices then preempts this one at once, instead of waiting
    for the system's next tick.
    """
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
    """A remote object in this process."""

    def __init__(self, offload: Offload, it: T) -> None:
        self._offload = offload
        self._it = it

    async def run(
        self, method: Callable[Concatenate[T, P], R], *args: P.args, **kwargs: P.kwargs
    ) -> R:
        return await self._offload.run(method, self._it, *args, **kwargs)

    def release(self) -> None:
        """Do nothing: garbage collection deletes the object."""
