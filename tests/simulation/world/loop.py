"""A virtual-time event loop: one thread, a seeded order, and time that jumps to the next timer."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import heapq
import random
import sys
import warnings
from asyncio import events
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator
from contextvars import Context
from types import TracebackType
from typing import Any, NoReturn, TypeVar
from weakref import WeakValueDictionary

from tests.simulation.world.owners import (
    OWNER,
    Handle,
    Owner,
    SimulatedFuture,
    SimulatedTask,
    Tasks,
    TimerHandle,
    bury,
    close_coroutines,
    describe,
)
from tests.simulation.world.patches import Patch, patched
from tests.simulation.world.trace import Trace

T = TypeVar("T")

START_SECONDS = 1000.0
"""Virtual time does not begin at 0, so that no code can mistake a time for "never"."""
STEP_SECONDS = 2e-6
"""The virtual time that one callback takes: time moves while code runs."""
_STEPS_AT_ONCE_MAX = 200_000


class Deadlock(AssertionError):
    """No callback is ready, no timer is set, and the main task is not done."""


class DeadlineExceeded(AssertionError):
    """The main task was not done at the virtual deadline."""


class Livelock(AssertionError):
    """Callbacks make each other ready without end; time never gets to the next timer."""


class SimulatedLoop(asyncio.AbstractEventLoop):
    """Runs callbacks in a seeded order; never waits, never starts a thread, never opens a socket.

    Callbacks that are ready together run in shuffled order, each once before any that they make
    ready; when nothing is ready, time jumps to the next timer. Use it as a context manager: leaving
    it buries every task that is left, so that nothing of the simulation runs or warns later.
    """

    def __init__(self, seed: int | str, trace: Trace | None = None) -> None:
        self.trace = trace if trace is not None else Trace()
        self.random = random.Random(f"loop {seed}")
        self.steps = 0
        self.unhandled: list[str] = []
        self.owners: list[Owner] = []
        self.system_context = contextvars.copy_context()
        self.system_context.run(OWNER.set, None)
        self._now = START_SECONDS
        self._ready: list[Handle | TimerHandle] = []
        self._timers: list[tuple[float, int, TimerHandle]] = []
        self._numbers = 0
        self._tasks: Tasks = WeakValueDictionary()
        self._stopping = False
        self._closed = False
        self._burying = False
        self._closing = False
        self._collecting = False
        self._running = False
        self._advanced_at_step = 0
        self._deadline: float | None = None
        self._current: Owner | None = None

    # --- running ---

    def __enter__(self) -> SimulatedLoop:
        # Cyclic garbage is collected at moments that differ between runs, and runs finalizers.
        self._collecting = gc.isenabled()
        gc.disable()
        gc.freeze()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def run(self, main: Coroutine[Any, Any, T], seconds_max: float | None = None) -> T:
        """Run `main` outside all processes. DeadlineExceeded after this many virtual seconds."""
        self._deadline = None if seconds_max is None else self._now + seconds_max
        result: T = self.run_until_complete(main)
        return result

    def run_until_complete(self, future: Any) -> Any:
        """See AbstractEventLoop. Deadlock if the future can never be done."""
        if asyncio.iscoroutine(future):
            future = self.system_context.copy().run(self.create_task, future, name="main")
        future.add_done_callback(self._main_done, context=self.system_context)
        try:
            self.run_forever()
        finally:
            future.remove_done_callback(self._main_done)
        if not future.done():
            raise RuntimeError("the simulation was stopped before its main task was done")
        return future.result()

    def run_forever(self) -> None:
        """Run until stop() is called, no callback can ever run again, or the deadline."""
        self._check_open()
        if self._running or events._get_running_loop() is not None:
            raise RuntimeError("an event loop is running already")
        hooks = sys.get_asyncgen_hooks()
        try:
            self._running = True
            sys.set_asyncgen_hooks(finalizer=self._finalize_generator)
            events._set_running_loop(self)
            with patched(self._patches()):
                self._run_batches()
        finally:
            self._stopping = False
            self._running = False
            events._set_running_loop(None)
            sys.set_asyncgen_hooks(*hooks)

    def _patches(self) -> list[Patch]:
        """asyncio's own functions ask the operating system for the process id each time."""
        found = [(place, "get_running_loop", lambda: self) for place in (asyncio, events)]
        return [*found, (events, "_get_running_loop", lambda: self)]

    def _run_batches(self) -> None:
        timers = self._timers
        while not self._stopping:
            if not self._ready:
                self._advance()
            elif self.steps - self._advanced_at_step > _STEPS_AT_ONCE_MAX:
                raise Livelock(f"{_STEPS_AT_ONCE_MAX} steps at once:\n{self.describe_tasks()}")
            batch, self._ready = self._ready, []
            now = self._now
            while timers and timers[0][0] <= now:
                batch.append(heapq.heappop(timers)[2])
            if len(batch) > 1:
                self.random.shuffle(batch)
            for handle in batch:
                if not handle._cancelled:
                    self._run_handle(handle)
            self._current = None

    def _run_handle(self, handle: Handle | TimerHandle) -> None:
        owner = handle.owner
        if owner is not None:
            if not owner.alive:
                return
            if owner.paused:
                owner.held.append(handle)
                return
            owner.steps += 1
        self.steps += 1
        self._now += STEP_SECONDS
        self._current = owner
        try:
            handle._context.run(handle._callback, *handle._args)
        except (SystemExit, KeyboardInterrupt):
            raise
        except BaseException as error:  # noqa: BLE001 - as asyncio's own loops do
            message = f"a callback failed: {handle!r}"
            self.call_exception_handler({"message": message, "exception": error, "handle": handle})
        if owner is not None and owner.steps == owner.dies_at_step and owner.alive:
            self._current = None
            owner.die()

    def _advance(self) -> None:
        timers = self._timers
        while timers and timers[0][2]._cancelled:
            heapq.heappop(timers)
        if not timers:
            raise Deadlock(f"every task waits and no timer is set:\n{self.describe_tasks()}")
        when = timers[0][0]
        if self._deadline is not None and when > self._deadline:
            raise DeadlineExceeded(
                f"not done at virtual time {self._deadline:.3f}:\n{self.describe_tasks()}"
            )
        if when > self._now:
            self._now = when
        self._advanced_at_step = self.steps

    def _main_done(self, future: asyncio.Future[Any]) -> None:
        self.stop()

    def stop(self) -> None:
        """End run_forever after the callbacks that are ready now."""
        self._stopping = True

    def is_running(self) -> bool:
        return self._running

    def is_closed(self) -> bool:
        return self._closed

    def close(self) -> None:
        """Bury all remaining tasks: no code of this simulation runs afterwards."""
        if self._closed:
            return
        if self._running:
            raise RuntimeError("a running loop cannot be closed")
        hooks = sys.get_asyncgen_hooks()
        sys.set_asyncgen_hooks(finalizer=self._finalize_generator)
        events._set_running_loop(self)
        try:
            self._closing = self._burying = True
            for owner in self.owners:
                owner.alive = False
                self.bury_all(list(owner.tasks.values()))
                owner.held.clear()
            self.bury_all(list(self._tasks.values()))
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", "coroutine .* was never awaited")
                self._ready.clear()
                self._timers.clear()
                close_coroutines()
                gc.collect()
                gc.unfreeze()
        finally:
            self._closed = True
            events._set_running_loop(None)
            sys.set_asyncgen_hooks(*hooks)
            if self._collecting:
                gc.enable()

    async def shutdown_asyncgens(self) -> None:
        """Nothing to do: close() buries the generators with the tasks."""

    async def shutdown_default_executor(self, timeout: float | None = None) -> None:
        """Nothing to do: there are no threads."""

    # --- time and callbacks ---

    def time(self) -> float:
        """Virtual seconds."""
        return self._now

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        if context is None:
            context = contextvars.copy_context()
        handle = Handle(callback, args, self, context)
        owner = handle.owner
        if self._closing or (owner is not None and not owner.alive):
            handle.cancel()
        else:
            self._ready.append(handle)
        return handle

    call_soon_threadsafe = call_soon  # type: ignore[assignment]

    def call_later(  # type: ignore[override]
        self,
        delay: float,
        callback: Callable[..., object],
        *args: Any,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        return self.call_at(self._now + delay, callback, *args, context=context)

    def call_at(  # type: ignore[override]
        self,
        when: float,
        callback: Callable[..., object],
        *args: Any,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        if context is None:
            context = contextvars.copy_context()
        handle = TimerHandle(when, callback, args, self, context)
        owner = handle.owner
        if self._closing or (owner is not None and not owner.alive):
            handle.cancel()
        else:
            heapq.heappush(self._timers, (when, self.next_number(), handle))
        return handle

    def call_system(
        self, delay: float, callback: Callable[..., object], *args: Any
    ) -> asyncio.TimerHandle:
        """call_later for the simulation itself: the callback runs even if the caller dies."""
        when = self._now + delay
        handle = TimerHandle(when, callback, args, self, self.system_context)
        if self._closing:
            handle.cancel()
        else:
            heapq.heappush(self._timers, (when, self.next_number(), handle))
        return handle

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """Called by TimerHandle.cancel; the heap drops it when it is met."""

    def next_number(self) -> int:
        """1, 2, 3, ...: numbers for the tasks, futures and timers of one run."""
        self._numbers += 1
        return self._numbers

    def release(self, owner: Owner) -> None:
        """Make ready the callbacks that were held back while the owner was paused."""
        self._ready.extend(owner.held)  # type: ignore[arg-type]
        owner.held.clear()

    # --- tasks ---

    def create_future(self) -> asyncio.Future[Any]:
        return SimulatedFuture(loop=self)

    def create_task(  # type: ignore[override]
        self,
        coro: Coroutine[Any, Any, T] | Generator[Any, None, T],
        *,
        name: str | None = None,
        context: Context | None = None,
    ) -> asyncio.Task[T]:
        self._check_open()
        task = SimulatedTask(coro, loop=self, name=name, context=context)
        if self._closing or (task.owner is not None and not task.owner.alive):
            bury(task)
        (self._tasks if task.owner is None else task.owner.tasks)[task._number] = task
        return task

    def set_task_factory(self, factory: Any) -> NoReturn:
        raise NotImplementedError("the simulation makes the tasks itself")

    def get_task_factory(self) -> None:
        return None

    def describe_tasks(self, owner: Owner | None = None) -> str:
        """The unfinished tasks, all or one owner's, with the places at which they wait."""
        pending = [task for task in asyncio.all_tasks(self) if not task.done()]
        if owner is not None:
            pending = [task for task in pending if getattr(task, "owner", None) is owner]
        pending.sort(key=hash)
        return "\n".join(f"  {describe(task)}" for task in pending)

    def bury_all(self, tasks: list[SimulatedTask]) -> None:
        """Close the coroutines of tasks that never run again.

        Otherwise the garbage collector would close them at any time and run their finally blocks.
        Here these run while their calls have no effect.
        """
        before, self._burying = self._burying, True
        with warnings.catch_warnings():
            # A coroutine that was an argument of one that never began.
            warnings.filterwarnings("ignore", "coroutine .* was never awaited")
            for task in tasks:
                bury(task)
        self._burying = before

    def _finalize_generator(self, generator: AsyncGenerator[Any, Any]) -> None:
        if self._burying or not self._running:
            return
        if self._current is None or self._current.alive:
            self.create_task(generator.aclose(), name="aclose")

    # --- errors ---

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Collect errors that production code would only log. Any such error fails the
        simulation."""
        subject = context.get("task") or context.get("future") or context.get("handle")
        owner = getattr(subject, "owner", None)
        if self._burying or self._closed or (owner is not None and not owner.alive):
            return
        error = context.get("exception")
        self.unhandled.append(f"{context.get('message')}: {error!r} in {subject!r}")

    def default_exception_handler(self, context: dict[str, Any]) -> None:
        self.call_exception_handler(context)

    def set_exception_handler(self, handler: Any) -> NoReturn:
        raise NotImplementedError("the simulation collects unhandled errors itself")

    def get_exception_handler(self) -> None:
        return None

    def get_debug(self) -> bool:
        return False

    def set_debug(self, enabled: bool) -> None:
        """Ignored: the simulation has its own trace."""

    def run_in_executor(  # type: ignore[override]
        self, executor: Any, function: Any, *args: Any
    ) -> NoReturn:
        raise RuntimeError("threads are not simulated: use the Offload that was injected")

    def _check_open(self) -> None:
        if self._closed:
            raise RuntimeError("this simulation is over")
