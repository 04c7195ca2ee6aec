"""Runs work in a worker process, so that it does not share the interpreter's lock.

The process starts at once, so the first work does not wait for it. Both processes communicate
through a channel (`process_channel`), one call at a time. When the broker dies, the worker finds
the channel closed and ends. When the worker dies, pending calls and calls of its objects raise
WorkerLost. The next call starts a new worker.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import subprocess
import traceback
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Concatenate, Final, Generic, NamedTuple, ParamSpec, TypeVar

from tidelog.clock import Clock
from tidelog.errors import TidelogError
from tidelog.workers.memory_files import memory_file
from tidelog.workers.offload import RemoteObject, WorkerLost
from tidelog.workers.process_channel import STEP_BYTES, Channel, packed, size_of

logger = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")
R = TypeVar("R")

_END_SECONDS_MAX: Final = 10.0
_PAUSE_SECONDS: Final = 0.001
"""The resolution of the event loop's timers."""


class _Call(NamedTuple):
    """A call that the worker must run."""

    function: Callable[..., object]
    args: tuple[object, ...]
    kwargs: dict[str, object]
    on: int | None = None
    """The number of the placed object that is the function's first argument."""
    keep_as: int | None = None
    """The number under which the worker keeps the result."""


class _Drop(NamedTuple):
    """The number of an object that the worker must delete."""

    number: int


class ProcessOffload:
    """One worker process, which runs one call at a time.

    The event loop itself talks to it, in small steps. A thread would wait for the interpreter's
    lock about ten times per call, and the loop would wait for that thread.
    """

    def __init__(self, command: Sequence[str], clock: Clock) -> None:
        """`command` starts the worker. Its last arguments are two descriptors for `serve`."""
        self._command = list(command)
        self._clock = clock
        self._turn = asyncio.Lock()
        self._calls: set[asyncio.Task[Any]] = set()
        self._process: subprocess.Popen[bytes] | None = None
        self._channel: Channel | None = None
        self._numbers_given = 0
        self._placed: set[int] = set()
        """The numbers of the objects in the worker."""
        self._is_closed = False
        try:
            self._start()
        except WorkerLost as error:
            # The next call tries again, and raises if that fails.
            logger.warning("the worker process cannot be started", extra={"why": str(error)})

    async def run(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run the function in the worker. It, its arguments and its result must be picklable.

        Raises WorkerLost, and the function's exceptions.
        """
        result: T = await self._do(_Call(function, args, kwargs))
        return result

    async def place(
        self, factory: Callable[P, T], *args: P.args, **kwargs: P.kwargs
    ) -> RemoteObject[T]:
        """Create and keep an object in the worker. Raises as `run`."""
        self._numbers_given += 1
        number = self._numbers_given
        there: _PlacedThere[T] = _PlacedThere(self._do, self._begin, number)
        try:
            await self._do(_Call(factory, args, kwargs, keep_as=number))
        except asyncio.CancelledError:
            # The worker may have created the object, or may be creating it.
            there.release()
            raise
        return there

    async def close(self) -> None:
        """Wait a bounded time for running work, then end the worker.

        Calls that have not started raise WorkerLost.
        """
        self._is_closed = True
        if self._calls:
            await asyncio.wait(self._calls, timeout=_END_SECONDS_MAX)
        for call in self._calls:
            call.cancel()
        await asyncio.gather(*self._calls, return_exceptions=True)
        await asyncio.to_thread(self._end)

    async def _do(self, request: _Call) -> Any:
        # A cancelled caller must not cancel the exchange: its response must still be read.
        return await asyncio.shield(self._begin(request))

    def _begin(self, request: _Call | _Drop) -> asyncio.Task[Any]:
        call = asyncio.create_task(self._answer(request))
        self._calls.add(call)
        call.add_done_callback(self._calls.discard)
        return call

    async def _answer(self, request: _Call | _Drop) -> object:
        async with self._turn:
            if self._is_closed:
                raise WorkerLost("the worker process is shut down; the work did not start")
            if isinstance(request, _Drop):
                if request.number not in self._placed:
                    return None
                self._placed.remove(request.number)
                return await self._exchange(request)
            if request.on is None:
                await self._start_if_none()
            elif request.on not in self._placed:
                raise WorkerLost("the worker process with this object has ended; the work restarts")
            result = await self._exchange(request)
            if request.keep_as is not None:
                self._placed.add(request.keep_as)
            return result

    async def _exchange(self, request: _Call | _Drop) -> object:
        assert self._channel is not None
        parts = packed(request)
        # A large call costs the loop some tenths of a millisecond. The pauses separate that time
        # from the caller's own work before and after it.
        pause = _PAUSE_SECONDS if size_of(parts) >= STEP_BYTES else 0
        await self._clock.sleep(pause)
        try:
            for _ in self._channel.send(parts):
                await self._clock.sleep(0)
            await _readable(self._channel)
            is_done, result = self._channel.receive()
        except (OSError, EOFError) as error:
            self._close_channel()
            exit_code = await asyncio.to_thread(self._end)
            raise WorkerLost(
                f"the worker process ended with exit code {exit_code} ({error or 'no answer'})"
            ) from error
        except asyncio.CancelledError:
            # Otherwise the next call would read this call's response.
            self._close_channel()
            raise
        await self._clock.sleep(pause)
        if not is_done:
            assert isinstance(result, Exception)
            raise result
        return result

    async def _start_if_none(self) -> None:
        if self._channel is None or self._process is None or self._process.poll() is not None:
            await asyncio.to_thread(self._start)

    def _start(self) -> None:
        self._end()
        try:
            self._process, self._channel = self._started()
        except OSError as error:
            raise WorkerLost(f"no worker process can be started: {error}") from error

    def _started(self) -> tuple[subprocess.Popen[bytes], Channel]:
        with contextlib.ExitStack() as opened:
            memory = opened.enter_context(memory_file())
            ours, theirs = map(opened.enter_context, socket.socketpair())
            given = (theirs.fileno(), memory.fileno())
            # A process group of its own, so that a terminal's signals reach only the broker. Not a
            # session: Linux divides the cores between sessions first, whatever their niceness.
            process = subprocess.Popen(
                [*self._command, *map(str, given)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=given,
                process_group=0,
            )
            theirs.close()
            opened.pop_all()
        return process, Channel(ours, memory)

    def _close_channel(self) -> None:
        """Close the channel, so that the worker ends."""
        if self._channel is not None:
            self._channel.close()
            self._channel = None
        self._placed.clear()

    def _end(self) -> int | None:
        """End the worker; its exit code, or None if none was running."""
        self._close_channel()
        process, self._process = self._process, None
        if process is None:
            return None
        try:
            return process.wait(_END_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            logger.warning("the worker process does not end and is killed")
            process.kill()
            return process.wait()


async def _readable(channel: Channel) -> None:
    loop = asyncio.get_running_loop()
    is_there = loop.create_future()

    def tell() -> None:
        if not is_there.done():
            is_there.set_result(None)

    loop.add_reader(channel, tell)
    try:
        await is_there
    finally:
        loop.remove_reader(channel)


class _PlacedThere(Generic[T]):
    """An object in the worker process."""

    def __init__(
        self,
        do: Callable[[_Call], Coroutine[Any, Any, Any]],
        begin: Callable[[_Drop], asyncio.Task[Any]],
        number: int,
    ) -> None:
        self._do = do
        self._begin = begin
        self._number = number

    async def run(
        self, method: Callable[Concatenate[T, P], R], *args: P.args, **kwargs: P.kwargs
    ) -> R:
        """Call a method. Raises WorkerLost if the worker has ended since."""
        result: R = await self._do(_Call(method, args, kwargs, on=self._number))
        return result

    def release(self) -> None:
        self._begin(_Drop(self._number)).add_done_callback(_forget)


def _forget(drop: asyncio.Task[Any]) -> None:
    """Ignore the error of a drop: a worker that ended has no object to delete."""
    if not drop.cancelled():
        drop.exception()


def serve(channel: Channel) -> None:
    """The worker's loop: run calls until the other end closes."""
    placed: dict[int, object] = {}
    with contextlib.suppress(OSError, EOFError):
        while True:
            # No variable keeps a call's data while the loop waits for the next call.
            channel.give(_answer_to(channel.receive(), placed))


def _answer_to(request: _Call | _Drop, placed: dict[int, object]) -> list[memoryview]:
    try:
        return packed((True, _done(request, placed)))
    except Exception as error:  # noqa: BLE001 - it is the caller's, in the other process
        if not isinstance(error, TidelogError):
            error.add_note(f"in the worker process:\n{traceback.format_exc()}")
        return packed((False, error))


def _done(request: _Call | _Drop, placed: dict[int, object]) -> object:
    if isinstance(request, _Drop):
        del placed[request.number]
        return None
    first = () if request.on is None else (placed[request.on],)
    result = request.function(*first, *request.args, **request.kwargs)
    if request.keep_as is None:
        return result
    placed[request.keep_as] = result
    return None
