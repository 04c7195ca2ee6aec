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
import queue
import socket
import subprocess
import threading
import traceback
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import Future
from typing import Any, Concatenate, Final, Generic, NamedTuple, ParamSpec, TypeVar

from tidelog.errors import TidelogError
from tidelog.offload import Placed, WorkerLost
from tidelog.process_channel import Channel, packed, shared_memory

logger = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")
R = TypeVar("R")

_END_SECONDS_MAX: Final = 10.0


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


class _Job(NamedTuple):
    request: _Call | _Drop
    future: Future[Any]


class ProcessOffload:
    """One process, which does one thing after the other."""

    def __init__(self, command: Sequence[str]) -> None:
        """`command`: what to start; it is given the numbers of two file descriptors as last
        arguments, for `serve`."""
        self._command = list(command)
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._process: subprocess.Popen[bytes] | None = None
        self._channel: Channel | None = None
        self._numbers_given = 0
        self._placed: set[int] = set()
        """What the process has, by number."""
        self._is_closing = False
        self._thread = threading.Thread(target=self._work, name="tidelog-process", daemon=True)
        self._thread.start()

    async def run(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """The function, its arguments and its result are pickled. WorkerLost."""
        result: T = await self._do(_Call(function, args, kwargs))
        return result

    async def place(self, factory: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> Placed[T]:
        """Made and kept in the process. WorkerLost."""
        self._numbers_given += 1
        number = self._numbers_given
        there: _PlacedThere[T] = _PlacedThere(self._do, self._submit, number)
        try:
            await self._do(_Call(factory, args, kwargs, keep_as=number))
        except asyncio.CancelledError:
            # It may have been made, or be made now.
            there.let_go()
            raise
        return there

    def close(self) -> None:
        """Wait for running work and end the process."""
        self._is_closing = True
        self._jobs.put(None)
        self._thread.join()

    async def _do(self, request: _Call) -> Any:
        return await asyncio.wrap_future(self._submit(request))

    def _submit(self, request: _Call | _Drop) -> Future[Any]:
        job = _Job(request, Future())
        self._jobs.put(job)
        return job.future

    def _work(self) -> None:
        """The thread's life. All below runs in it alone. It does not stand back: where somebody
        else had its core while it has the interpreter's lock, the event loop would wait too."""
        try:
            self._start_if_none()
        except WorkerLost as error:
            # Whoever has work for it will be told, should it fail again.
            logger.warning("a working process cannot be started", extra={"why": str(error)})
        while (job := self._jobs.get()) is not None:
            if self._is_closing:
                job.future.cancel()
            if not job.future.set_running_or_notify_cancel():
                continue
            try:
                job.future.set_result(self._answer(job.request))
            except Exception as error:  # noqa: BLE001 - it is the caller's
                job.future.set_exception(error)
            # Else the last job's buffers would be held until the next one comes.
            del job
        self._end()

    def _answer(self, request: _Call | _Drop) -> object:
        if isinstance(request, _Drop):
            if request.number not in self._placed:
                return None
            self._placed.remove(request.number)
            return self._exchange(request)
        if request.on is None:
            self._start_if_none()
        elif request.on not in self._placed:
            raise WorkerLost("the process that had this work has ended; it begins anew")
        result = self._exchange(request)
        if request.keep_as is not None:
            self._placed.add(request.keep_as)
        return result

    def _exchange(self, request: _Call | _Drop) -> object:
        assert self._channel is not None
        parts = packed(request)
        try:
            self._channel.send(parts)
            is_done, result = self._channel.receive()
        except (OSError, EOFError) as error:
            exit_code = self._end()
            raise WorkerLost(
                f"the process that was working has ended with exit code {exit_code}"
                f" ({error or 'no answer'})"
            ) from error
        if not is_done:
            assert isinstance(result, Exception)
            raise result
        return result

    def _start_if_none(self) -> None:
        if self._process is not None and self._process.poll() is None:
            return
        self._end()
        try:
            self._process, self._channel = self._started()
        except OSError as error:
            raise WorkerLost(f"no process can be started: {error}") from error

    def _started(self) -> tuple[subprocess.Popen[bytes], Channel]:
        with contextlib.ExitStack() as opened:
            memory = opened.enter_context(shared_memory())
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

    def _end(self) -> int | None:
        """Its exit code; None if there was none."""
        process, self._process = self._process, None
        if self._channel is not None:
            self._channel.close()
            self._channel = None
        self._placed.clear()
        if process is None:
            return None
        try:
            return process.wait(_END_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            logger.warning("a working process does not end and is killed")
            process.kill()
            return process.wait()


class _PlacedThere(Generic[T]):
    """In the process."""

    def __init__(
        self,
        do: Callable[[_Call], Coroutine[Any, Any, Any]],
        submit: Callable[[_Drop], Future[Any]],
        number: int,
    ) -> None:
        self._do = do
        self._submit = submit
        self._number = number

    async def run(
        self, method: Callable[Concatenate[T, P], R], *args: P.args, **kwargs: P.kwargs
    ) -> R:
        """WorkerLost where the process has ended since."""
        result: R = await self._do(_Call(method, args, kwargs, on=self._number))
        return result

    def let_go(self) -> None:
        self._submit(_Drop(self._number))


def serve(channel: Channel) -> None:
    """The process's side: do what is asked until the other side has gone."""
    placed: dict[int, object] = {}
    with contextlib.suppress(OSError, EOFError):
        while True:
            # Nothing of a call is held while the next one is waited for.
            channel.send(_answer_to(channel.receive(), placed))


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
