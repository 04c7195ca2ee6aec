"""Simulated operating system processes: they die at any await, and stall for any time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from tests.simulation.world.clock import SimulatedClock
from tests.simulation.world.loop import SimulatedLoop
from tests.simulation.world.owners import Owner, SimulatedTask
from tidelog.entropy import SeededEntropy


@dataclass(frozen=True, slots=True)
class Exit:
    """How a process ended: killed from outside, or its main coroutine returned or raised."""

    killed: bool
    error: BaseException | None = None

    def __str__(self) -> str:
        if self.killed:
            return "killed"
        return "ended" if self.error is None else f"failed: {self.error!r}"


class SimulatedProcess(Owner):
    """A group of tasks with a host, a clock and entropy of its own.

    Everything that its code starts belongs to the process, by context variable. `kill` is SIGKILL:
    none of its code runs again, and no handler or finally block has an effect. `pause` is SIGSTOP:
    its callbacks are held back, time and the rest of the world go on.
    """

    def __init__(
        self,
        loop: SimulatedLoop,
        name: str,
        host: str,
        pid: int = 1,
        clock_offset_ms: int = 0,
        clock_rate: float = 1.0,
    ) -> None:
        super().__init__(loop, name)
        self.host = host
        self.pid = pid
        self.started_at = loop.time()
        self.clock = SimulatedClock(loop, clock_offset_ms, clock_rate)
        self.entropy = SeededEntropy(f"{name} {loop.random.getrandbits(64)}")
        self.exit: Exit | None = None
        self._exited: asyncio.Future[Exit] = loop.create_future()
        self._at_term: list[Callable[[], object]] = []
        self._at_death: list[Callable[[], object]] = []
        self._main: asyncio.Task[object] | None = None

    def start(self, main: Callable[[], Coroutine[Any, Any, object]]) -> None:
        """Run `main()` inside the process; the process ends when it does."""
        context = self.context.copy()
        task = context.run(lambda: self.loop.create_task(main(), name=f"{self.name} main"))
        self._main = task
        task.add_done_callback(self._main_done, context=self.loop.system_context)
        self.loop.trace.record(self.loop.time(), f"process {self.name} starts on {self.host}")

    def spawn(self, coroutine: Coroutine[Any, Any, Any], name: str) -> asyncio.Task[Any]:
        """A further task of this process, started from outside."""
        context = self.context.copy()
        return context.run(lambda: self.loop.create_task(coroutine, name=f"{self.name} {name}"))

    def kill(self) -> None:
        """End the process at once, at its present await. A dead process stays dead."""
        self._end(Exit(killed=True))

    def kill_after_steps(self, steps: int) -> None:
        """Kill the process after this many more callbacks, so between any two awaits."""
        self.dies_at_step = self.steps + max(1, steps)

    def die(self) -> None:
        """See Owner."""
        self.kill()

    def terminate(self) -> None:
        """SIGTERM: call the callback that the program registered with `at_term`, inside the
        process."""
        if self.alive:
            self.loop.trace.record(self.loop.time(), f"process {self.name} is asked to end")
            for callback in self._at_term:
                self.loop.call_soon(callback, context=self.context.copy())

    def at_term(self, callback: Callable[[], object]) -> None:
        """The program's reaction to a request to end."""
        self._at_term.append(callback)

    def pause(self) -> None:
        """Hold back all its callbacks."""
        if self.alive and not self.paused:
            self.paused = True
            self.loop.trace.record(self.loop.time(), f"process {self.name} is paused")

    def resume(self) -> None:
        """Let the process go on. The world may have changed meanwhile."""
        if self.alive and self.paused:
            self.paused = False
            self.loop.trace.record(self.loop.time(), f"process {self.name} goes on")
            self.loop.release(self)

    def at_death(self, callback: Callable[[], object]) -> None:
        """Call this, as the simulation, when the process ends in any way."""
        self._at_death.append(callback)

    async def exited(self) -> Exit:
        """Wait until the process has ended."""
        return await asyncio.shield(self._exited)

    def _main_done(self, task: asyncio.Task[object]) -> None:
        error = asyncio.CancelledError() if task.cancelled() else task.exception()
        self._end(Exit(killed=False, error=error))

    def _end(self, how: Exit) -> None:
        if not self.alive:
            return
        self.alive = False
        self.paused = False
        self.exit = how
        # Keep the coroutines alive, so that their finally blocks do not run before they are buried.
        tasks = list(self.tasks.values())
        self.held.clear()
        self.loop.trace.record(self.loop.time(), f"process {self.name} {how}")
        for callback in self._at_death:
            callback()
        self._at_death.clear()
        # Close it later, as its own code may be on the stack right now.
        self.loop.call_system(0.0, self._bury, tasks)
        self._exited.set_result(how)

    def _bury(self, tasks: list[SimulatedTask]) -> None:
        self.context.copy().run(self.loop.bury_all, tasks)
