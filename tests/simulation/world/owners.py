"""Owners of callbacks: simulated processes, and the tasks, futures and handles that belong to
one."""

from __future__ import annotations

import asyncio
import contextvars
import gc
from collections.abc import Callable
from contextvars import Context, ContextVar
from types import CoroutineType
from typing import TYPE_CHECKING, Any, TypeAlias, cast
from weakref import WeakValueDictionary

if TYPE_CHECKING:
    from tests.simulation.world.loop import SimulatedLoop


class Owner:
    """The owner of callbacks. The loop drops the callbacks of dead owners, and holds back those of
    paused ones."""

    def __init__(self, loop: SimulatedLoop, name: str) -> None:
        self.loop = loop
        self.name = name
        self.alive = True
        self.paused = False
        self.held: list[asyncio.Handle] = []
        self.steps = 0
        self.dies_at_step = -1
        self.tasks: Tasks = WeakValueDictionary()
        self.context = contextvars.copy_context()
        self.context.run(OWNER.set, self)
        loop.owners.append(self)

    def die(self) -> None:
        """Called by the loop when `steps` has reached `dies_at_step`."""
        self.alive = False


OWNER: ContextVar[Owner | None] = ContextVar("simulation_owner", default=None)
"""The simulated process whose code is running; None for the simulation itself."""


class Handle(asyncio.Handle):
    """A handle like asyncio's, without the debugging that asks the loop each time."""

    __slots__ = ("owner",)
    _repr = None
    _source_traceback = None

    def __init__(
        self,
        callback: Callable[..., object],
        arguments: tuple[Any, ...],
        loop: SimulatedLoop,
        context: Context,
    ) -> None:
        self._callback = callback
        self._args = arguments
        self._loop = loop
        self._context = context
        self._cancelled = False
        self.owner: Owner | None = context.get(OWNER)


class TimerHandle(asyncio.TimerHandle):
    """A timer's handle."""

    __slots__ = ("owner",)
    _repr = None
    _source_traceback = None

    def __init__(
        self,
        when: float,
        callback: Callable[..., object],
        arguments: tuple[Any, ...],
        loop: SimulatedLoop,
        context: Context,
    ) -> None:
        self._callback = callback
        self._args = arguments
        self._loop = loop
        self._context = context
        self._cancelled = False
        self._when = when
        self._scheduled = True
        self.owner: Owner | None = context.get(OWNER)


class SimulatedTask(asyncio.Task[Any]):
    """A task whose hash is its number, so that sets of tasks are iterated alike in every run."""

    def __init__(self, coro: Any, *, loop: SimulatedLoop, name: str | None, context: Any) -> None:
        self._number = loop.next_number()
        self.owner = OWNER.get() if context is None else context.get(OWNER)
        super().__init__(coro, loop=loop, name=name or f"task-{self._number}", context=context)

    def __hash__(self) -> int:
        return self._number

    __eq__ = object.__eq__


Tasks: TypeAlias = WeakValueDictionary[int, SimulatedTask]


class SimulatedFuture(asyncio.Future[Any]):
    """A future whose hash is a number, for the same reason."""

    _number = 0

    def __init__(self, *, loop: SimulatedLoop) -> None:
        super().__init__(loop=loop)
        self.owner = OWNER.get()

    def __hash__(self) -> int:
        if self._number == 0:
            self._number = cast("SimulatedLoop", self.get_loop()).next_number()
        return self._number

    __eq__ = object.__eq__


def describe(task: asyncio.Task[Any]) -> str:
    """The task's name, and the chain of coroutines down to its present await."""
    places = []
    awaited: Any = task.get_coro()
    while awaited is not None:
        frame = getattr(awaited, "cr_frame", None) or getattr(awaited, "ag_frame", None)
        if frame is not None:
            code = frame.f_code
            place = code.co_filename.rpartition("/")[2]
            places.append(f"{code.co_qualname} ({place}:{frame.f_lineno})")
        awaited = getattr(awaited, "cr_await", None) or getattr(awaited, "ag_await", None)
    return f"{task.get_name()}: {' > '.join(places) or 'not started'}"


CLEANUP_AWAITS_MAX = 100


class Buried(BaseException):
    """Ends a coroutine that never runs again."""


def bury(task: SimulatedTask) -> None:
    """Close a task's coroutine for good; its finally blocks run now, not when it is collected."""
    task._log_destroy_pending = False  # type: ignore[attr-defined]
    coroutine = task.get_coro()
    if not task.done() and isinstance(coroutine, CoroutineType):
        _close(coroutine)


def _close(coroutine: CoroutineType[Any, Any, Any]) -> None:
    """End a coroutine, and each await of its cleanup.

    `close` would detach an inner coroutine whose cleanup awaits, and the garbage collector would
    close that one later.
    """
    for _ in range(CLEANUP_AWAITS_MAX):
        try:
            coroutine.throw(Buried())
        except BaseException:  # noqa: BLE001 - what the dead raise is of no consequence
            return
    coroutine.close()


def close_coroutines() -> None:
    """Close coroutines that no task ever awaited. Some of them outlive the loop, and would warn
    later. The collector does not look at objects from before the simulation, since they are
    frozen."""
    for found in gc.get_objects():
        if isinstance(found, CoroutineType) and not found.cr_running:
            _close(found)
