"""Shared timers: every callback runs in time, in order and once, and no entry is left behind."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from tests.simulation.world.loop import START_SECONDS, SimulatedLoop
from tidelog.broker.fairness.deadlines import Deadline, Deadlines

Story = Callable[["Waits"], Awaitable[None]]


class Waits:
    """Deadlines, and the callbacks with their times, in virtual time."""

    def __init__(self) -> None:
        self.deadlines = Deadlines()
        self.called: list[tuple[str, float]] = []

    def add(self, name: str, seconds: float) -> Deadline:
        return self.deadlines.add(seconds, lambda: self.note(name))

    def note(self, name: str) -> None:
        self.called.append((name, round(asyncio.get_running_loop().time() - START_SECONDS, 3)))


def run(story: Story) -> list[tuple[str, float]]:
    async def main() -> list[tuple[str, float]]:
        waits = Waits()
        await story(waits)
        return waits.called

    with SimulatedLoop(1) as loop:
        called = loop.run(main())
        assert loop.unhandled == []
        return called


def test_each_runs_out_at_its_own_time() -> None:
    async def story(waits: Waits) -> None:
        waits.add("slow", 5.0)
        waits.add("first", 2.0)
        await asyncio.sleep(1)
        waits.add("second", 2.0)
        await asyncio.sleep(9)
        assert len(waits.deadlines) == 0

    assert run(story) == [("first", 2.0), ("second", 3.0), ("slow", 5.0)]


def test_cancelled_deadlines_are_not_called_and_the_others_are() -> None:
    async def story(waits: Waits) -> None:
        one, _, three = (waits.add(name, 2.0) for name in ("one", "two", "three"))
        one.cancel()
        await asyncio.sleep(1)
        waits.add("four", 2.0)
        three.cancel()
        three.cancel()
        await asyncio.sleep(3)
        one.cancel()

    assert run(story) == [("two", 2.0), ("four", 3.0)]


def test_waits_that_are_over_leave_no_timer_and_no_memory() -> None:
    async def story(waits: Waits) -> None:
        for milliseconds in range(1, 1001):
            waits.add("never", 1000 + milliseconds).cancel()
            assert not waits.deadlines._lines
        waits.add("again", 2.0).cancel()
        waits.add("again", 2.0)
        await asyncio.sleep(2000)

    assert run(story) == [("again", 2.0)]


def test_a_failing_callback_does_not_stop_other_callbacks() -> None:
    async def main() -> list[tuple[str, float]]:
        waits = Waits()

        def fail() -> None:
            raise ValueError("late")

        waits.deadlines.add(1.0, fail)
        waits.add("other", 1.0)
        await asyncio.sleep(2)
        return waits.called

    with SimulatedLoop(1) as loop:
        assert loop.run(main()) == [("other", 1.0)]
        assert len(loop.unhandled) == 1
