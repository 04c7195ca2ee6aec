"""Simulated processes: killed between any two awaits, stalled and woken, never half alive."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from tests.simulation.world.loop import START_SECONDS, Deadlock, SimulatedLoop
from tests.simulation.world.process import SimulatedProcess


def test_no_code_of_a_killed_process_has_an_effect() -> None:
    seen: list[str] = []
    created: list[asyncio.Task[None]] = []

    async def helper() -> None:
        try:
            await asyncio.sleep(100)
        finally:
            asyncio.get_running_loop().call_soon(seen.append, "callback of the dead")
            created.append(asyncio.create_task(main()))

    async def main() -> None:
        tasks = [asyncio.create_task(helper()) for _ in range(3)]
        try:
            while True:
                await asyncio.sleep(1)
                seen.append("tick")
        except asyncio.CancelledError:
            seen.append("cancelled")
        finally:
            del tasks

    async def simulation(loop: SimulatedLoop) -> None:
        process = SimulatedProcess(loop, "victim", "host")
        process.start(main)
        await asyncio.sleep(3.5)
        process.kill()
        exit_ = await process.exited()
        assert exit_.killed
        await asyncio.sleep(200)

    with SimulatedLoop(1) as loop:
        loop.run(simulation(loop))
        assert loop.unhandled == []
    assert seen == ["tick"] * 3


@pytest.mark.parametrize("steps", range(1, 9))
def test_a_process_dies_between_any_two_awaits(steps: int) -> None:
    seen: list[int] = []

    async def main() -> None:
        for number in range(8):
            seen.append(number)
            await asyncio.sleep(0)

    async def simulation(loop: SimulatedLoop) -> None:
        process = SimulatedProcess(loop, "victim", "host")
        process.kill_after_steps(steps)
        process.start(main)
        await process.exited()
        await asyncio.sleep(1)

    with SimulatedLoop(1) as loop:
        loop.run(simulation(loop))
    assert seen == list(range(steps))


def test_a_task_that_never_began_is_buried_without_a_warning() -> None:
    async def main() -> None:
        tasks = [asyncio.create_task(asyncio.sleep(1)) for _ in range(3)]
        await asyncio.wait(tasks)

    async def simulation(loop: SimulatedLoop) -> None:
        for steps in (1, 2, 3):
            process = SimulatedProcess(loop, f"victim-{steps}", "host")
            process.kill_after_steps(steps)
            process.start(main)
            assert (await process.exited()).killed

    with SimulatedLoop(1) as loop:
        loop.run(simulation(loop))
        assert loop.unhandled == []


def test_a_process_can_be_asked_to_end() -> None:
    seen: list[str] = []

    async def simulation(loop: SimulatedLoop) -> None:
        process = SimulatedProcess(loop, "polite", "host")
        asked = asyncio.Event()

        async def main() -> None:
            process.at_term(asked.set)
            await asked.wait()
            await asyncio.sleep(1)
            seen.append("cleaned up")

        process.start(main)
        await asyncio.sleep(1)
        process.terminate()
        exit_ = await process.exited()
        assert not exit_.killed
        assert exit_.error is None

    with SimulatedLoop(1) as loop:
        loop.run(simulation(loop))
    assert seen == ["cleaned up"]


def test_a_never_awaited_coroutine_is_closed_without_a_warning() -> None:
    kept: list[object] = []

    async def main() -> None:
        kept.append(asyncio.sleep(1))
        await asyncio.Event().wait()

    async def simulation(loop: SimulatedLoop) -> None:
        process = SimulatedProcess(loop, "victim", "host")
        process.start(main)
        await asyncio.sleep(1)

    with SimulatedLoop(1) as loop:
        loop.run(simulation(loop))
    kept.clear()


def test_a_generator_of_a_dead_process_is_not_finished() -> None:
    seen: list[str] = []

    async def numbers() -> AsyncIterator[int]:
        try:
            yield 1
            yield 2
        finally:
            await asyncio.sleep(0)
            seen.append("finished")

    async def main() -> None:
        async for _ in numbers():
            await asyncio.sleep(100)

    async def simulation(loop: SimulatedLoop) -> None:
        process = SimulatedProcess(loop, "victim", "host")
        process.start(main)
        await asyncio.sleep(1)
        process.kill()
        await asyncio.sleep(200)

    with SimulatedLoop(1) as loop:
        loop.run(simulation(loop))
    assert seen == []


def test_a_paused_process_wakes_up_in_a_later_world() -> None:
    seen: list[float] = []

    async def main() -> None:
        while True:
            await asyncio.sleep(1)
            seen.append(round(asyncio.get_running_loop().time() - START_SECONDS, 1))

    async def simulation(loop: SimulatedLoop) -> None:
        process = SimulatedProcess(loop, "stalled", "host")
        process.start(main)
        await asyncio.sleep(2.5)
        process.pause()
        await asyncio.sleep(30)
        assert len(seen) == 2
        process.resume()
        await asyncio.sleep(1.2)
        process.kill()

    with SimulatedLoop(1) as loop:
        loop.run(simulation(loop))
    # The overdue timer fires once, at once. Then the clock is right again.
    assert seen == [1.0, 2.0, 32.5, 33.5]


def test_a_process_ends_with_its_main_coroutine_and_takes_its_tasks_along() -> None:
    seen: list[str] = []

    async def background() -> None:
        await asyncio.sleep(5)
        seen.append("outlived")

    async def main() -> None:
        task = asyncio.create_task(background())
        await asyncio.sleep(1)
        del task
        raise ValueError("fenced")

    async def simulation(loop: SimulatedLoop) -> None:
        process = SimulatedProcess(loop, "failing", "host")
        process.start(main)
        exit_ = await process.exited()
        assert not exit_.killed
        assert isinstance(exit_.error, ValueError)
        await asyncio.sleep(10)

    with SimulatedLoop(1) as loop:
        loop.run(simulation(loop))
        assert loop.unhandled == []
    assert seen == []


def test_a_paused_process_alone_is_a_deadlock() -> None:
    async def simulation(loop: SimulatedLoop) -> None:
        process = SimulatedProcess(loop, "stalled", "host")
        process.start(lambda: asyncio.sleep(1))
        process.pause()
        await process.exited()

    with SimulatedLoop(1) as loop, pytest.raises(Deadlock, match="stalled main"):
        loop.run(simulation(loop))
