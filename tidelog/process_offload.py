"""Work in a process of its own, so that not even the interpreter's lock is shared with it.

The process is started at once, so that the first work does not wait for it. Both sides speak
through a channel (`process_channel`), one call at a time. When the broker dies, the process finds
the channel's end and ends too. When the process dies, whoever waits for it gets WorkerLost, and so
does whoever has placed something in it; the next call starts another.
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
from tidelog.memory_files import memory_file
from tidelog.offload import RemoteObject, WorkerLost
from tidelog.process_channel import STEP_BYTES, Channel, packed, size_of

logger = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")
R = TypeVar("R")

_END_SECONDS_MAX: Final = 10.0
_PAUSE_SECONDS: Final = 0.001
"""The shortest that the event loop's timers know."""


class _Call(NamedTuple):
    """What the process is to do."""

    function: Callable[..., object]
    args: tuple[object, ...]
    kwargs: dict[str, object]
    on: int | None = None
    """The placed object that is the function's first argument."""
    keep_as: int | None = None
    """Place the result under this number."""


class _Drop(NamedTuple):
    """What the process need not keep any more."""

    number: int


class ProcessOffload:
    """One process, which does one thing after the other.

    The event loop itself speaks with it, a little at a time. A thread that did would wait for the
    interpreter's lock some ten times for each call, and the loop for that thread.
    """

    def __init__(self, command: Sequence[str], clock: Clock) -> None:
        """`command`: what to start; it is given the numbers of two file descriptors as last
        arguments, for `serve`."""
        self._command = list(command)
        self._clock = clock
        self._turn = asyncio.Lock()
        self._calls: set[asyncio.Task[Any]] = set()
        self._process: subprocess.Popen[bytes] | None = None
        self._channel: Channel | None = None
        self._numbers_given = 0
        self._placed: set[int] = set()
        """What the process has, by number."""
        self._is_closed = False
        try:
            self._start()
        except WorkerLost as error:
            # Whoever has work for it will be told, should it fail again.
            logger.warning("a working process cannot be started", extra={"why": str(error)})

    async def run(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """The function, its arguments and its result are pickled. WorkerLost."""
        result: T = await self._do(_Call(function, args, kwargs))
        return result

    async def place(
        self, factory: Callable[P, T], *args: P.args, **kwargs: P.kwargs
    ) -> RemoteObject[T]:
        """Made and kept in the process. WorkerLost."""
        self._numbers_given += 1
        number = self._numbers_given
        there: _PlacedThere[T] = _PlacedThere(self._do, self._begin, number)
        try:
            await self._do(_Call(factory, args, kwargs, keep_as=number))
        except asyncio.CancelledError:
            # It may have been made, or be made now.
            there.let_go()
            raise
        return there

    async def close(self) -> None:
        """Wait for running work, but not for ever, and end the process; what waits for its turn
        gets WorkerLost."""
        self._is_closed = True
        if self._calls:
            await asyncio.wait(self._calls, timeout=_END_SECONDS_MAX)
        for call in self._calls:
            call.cancel()
        await asyncio.gather(*self._calls, return_exceptions=True)
        await asyncio.to_thread(self._end)

    async def _do(self, request: _Call) -> Any:
        # Whoever does not wait any more leaves the answer to be read.
        return await asyncio.shield(self._begin(request))

    def _begin(self, request: _Call | _Drop) -> asyncio.Task[Any]:
        call = asyncio.create_task(self._answer(request))
        self._calls.add(call)
        call.add_done_callback(self._calls.discard)
        return call

    async def _answer(self, request: _Call | _Drop) -> object:
        async with self._turn:
            if self._is_closed:
                raise WorkerLost("the process that was to do the work is not needed any more")
            if isinstance(request, _Drop):
                if request.number not in self._placed:
                    return None
                self._placed.remove(request.number)
                return await self._exchange(request)
            if request.on is None:
                await self._start_if_none()
            elif request.on not in self._placed:
                raise WorkerLost("the process that had this work has ended; it begins anew")
            result = await self._exchange(request)
            if request.keep_as is not None:
                self._placed.add(request.keep_as)
            return result

    async def _exchange(self, request: _Call | _Drop) -> object:
        assert self._channel is not None
        parts = packed(request)
        # What a large piece of work costs the loop, some tenths of a millisecond, does not come in
        # one go, nor right behind what the caller has done or before what it does next.
        pause = _PAUSE_SECONDS if size_of(parts) >= STEP_BYTES else 0
        await self._clock.sleep(pause)
        try:
            for _ in self._channel.send(parts):
                await self._clock.sleep(0)
            await _readable(self._channel)
            is_done, result = self._channel.receive()
        except (OSError, EOFError) as error:
            self._hang_up()
            exit_code = await asyncio.to_thread(self._end)
            raise WorkerLost(
                f"the process that was working has ended with exit code {exit_code}"
                f" ({error or 'no answer'})"
            ) from error
        except asyncio.CancelledError:
            # The answer would be taken for the next call's.
            self._hang_up()
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
            raise WorkerLost(f"no process can be started: {error}") from error

    def _started(self) -> tuple[subprocess.Popen[bytes], Channel]:
        with contextlib.ExitStack() as opened:
            memory = opened.enter_context(memory_file())
            ours, theirs = map(opened.enter_context, socket.socketpair())
            given = (theirs.fileno(), memory.fileno())
            # Of a group of its own: what is typed at a terminal is for the broker. Not of a
            # session: Linux shares cores between sessions first, whatever their niceness.
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

    def _hang_up(self) -> None:
        """The process will find that nobody speaks with it, and end."""
        if self._channel is not None:
            self._channel.close()
            self._channel = None
        self._placed.clear()

    def _end(self) -> int | None:
        """Its exit code; None if there was none."""
        self._hang_up()
        process, self._process = self._process, None
        if process is None:
            return None
        try:
            return process.wait(_END_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            logger.warning("a working process does not end and is killed")
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
    """In the process."""

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
        """WorkerLost where the process has ended since."""
        result: R = await self._do(_Call(method, args, kwargs, on=self._number))
        return result

    def let_go(self) -> None:
        self._begin(_Drop(self._number)).add_done_callback(_forget)


def _forget(drop: asyncio.Task[Any]) -> None:
    """Where the process has ended there is nothing to let go."""
    if not drop.cancelled():
        drop.exception()


def serve(channel: Channel) -> None:
    """The process's side: do what is asked until the other side has gone."""
    placed: dict[int, object] = {}
    with contextlib.suppress(OSError, EOFError):
        while True:
            # Nothing of a call is held while the next one is waited for.
            channel.give(_answer_to(channel.receive(), placed))


def _answer_to(request: _Call | _Drop, placed: dict[int, object]) -> list[memoryview]:
    try:
        return packed((True, _done(request, placed)))
    except Exception as error:  # noqa: BLE001 - it is the caller's, in the other process
        if not isinstance(error, TidelogError):
            error.add_note(f"in the working process:\n{traceback.format_exc()}")
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
