"""The virtual-time loop: order from the seed, time that jumps, errors that name the waiting
tasks."""

from __future__ import annotations

import asyncio

import pytest

from tests.simulation.world.clock import SimulatedClock
from tests.simulation.world.interpreters import printed
from tests.simulation.world.loop import (
    START_SECONDS,
    DeadlineExceeded,
    Deadlock,
    Livelock,
    SimulatedLoop,
)


async def _jobs_in_sets(loop: SimulatedLoop) -> None:
    """Work that would differ between runs if hashes, addresses or real time mattered."""
    waiting: set[asyncio.Task[None]] = set()

    async def job(number: int) -> None:
        async with asyncio.timeout(0.9):
            await asyncio.sleep(loop.random.random())
        loop.trace.record(loop.time(), f"job {number}")

    for number in range(60):
        waiting.add(asyncio.ensure_future(job(number)))
    for task in waiting:
        loop.trace.record(loop.time(), f"listed {task.get_name()}")
        if loop.random.random() < 0.2:
            task.cancel()
    done, _ = await asyncio.wait(waiting)
    for task in done:
        loop.trace.record(loop.time(), f"done {task.get_name()} {task.cancelled()}")
        if not task.cancelled():
            task.exception()


def trace_of(seed: int) -> str:
    """The digest of one run of the jobs above."""
    with SimulatedLoop(seed) as loop:
        loop.run(_jobs_in_sets(loop))
        return loop.trace.digest()


def test_a_seed_gives_the_same_trace_and_another_seed_another() -> None:
    assert trace_of(7) == trace_of(7)
    assert trace_of(7) != trace_of(8)


def test_the_trace_does_not_depend_on_the_interpreter_s_hash_seed() -> None:
    code = "from tests.simulation.world.test_loop import trace_of; print(trace_of(7))"
    traces = printed(code, "0", "1", "random")
    assert traces == {trace_of(7) + "\n"}


def test_time_jumps_to_the_next_timer() -> None:
    async def main() -> float:
        loop = asyncio.get_running_loop()
        await asyncio.sleep(3600)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(86400):
                await asyncio.Event().wait()
        return loop.time()

    with SimulatedLoop(1) as loop:
        assert loop.run(main()) == pytest.approx(START_SECONDS + 3600 + 86400, abs=0.01)
        assert loop.steps < 20


def test_callbacks_that_are_ready_together_run_in_every_order() -> None:
    def order(seed: int) -> tuple[int, ...]:
        seen: list[int] = []

        async def main() -> None:
            async with asyncio.TaskGroup() as tasks:
                for number in range(3):
                    tasks.create_task(_append(seen, number))

        with SimulatedLoop(seed) as loop:
            loop.run(main())
        return tuple(seen)

    assert len({order(seed) for seed in range(60)}) == 6


async def _append(seen: list[int], number: int) -> None:
    seen.append(number)


def test_a_deadlock_names_the_tasks_and_where_they_wait() -> None:
    async def wait_for_ever(event: asyncio.Event) -> None:
        await event.wait()

    async def main() -> None:
        event = asyncio.Event()
        task = asyncio.create_task(wait_for_ever(event), name="forgotten")
        await task

    place = r"forgotten: .*wait_for_ever \(test_loop.py:\d+\)"
    with SimulatedLoop(1) as loop, pytest.raises(Deadlock, match=place):
        loop.run(main())


def test_a_run_that_does_not_end_meets_its_deadline() -> None:
    async def main() -> None:
        while True:  # noqa: ASYNC110
            await asyncio.sleep(10)

    with SimulatedLoop(1) as loop:
        with pytest.raises(DeadlineExceeded, match=r"main: .*main"):
            loop.run(main(), seconds_max=100)
        assert loop.time() <= START_SECONDS + 100


def test_a_busy_loop_is_found() -> None:
    async def main() -> None:
        while True:  # noqa: ASYNC110
            await asyncio.sleep(0)

    with SimulatedLoop(1) as loop, pytest.raises(Livelock, match=r"main: .*main"):
        loop.run(main())


def test_threads_are_refused() -> None:
    async def main() -> None:
        await asyncio.to_thread(print)

    with SimulatedLoop(1) as loop, pytest.raises(RuntimeError, match="threads are not simulated"):
        loop.run(main())


def test_an_unretrieved_error_is_collected() -> None:
    async def fail() -> None:
        raise ValueError("unnoticed")

    async def main() -> None:
        task = asyncio.create_task(fail())
        await asyncio.sleep(1)
        del task
        asyncio.get_running_loop().call_soon(int, "not a number")
        await asyncio.sleep(1)

    with SimulatedLoop(1) as loop:
        loop.run(main())
        assert len(loop.unhandled) == 2
        assert "never retrieved: ValueError('unnoticed')" in loop.unhandled[0]
        assert "not a number" in loop.unhandled[1]


def test_clocks_are_skewed_in_offset_and_rate() -> None:
    async def main() -> tuple[float, int]:
        before = fast.monotonic(), late.time_ms() - right.time_ms()
        await fast.sleep(10)
        return fast.monotonic() - before[0], before[1]

    with SimulatedLoop(1) as loop:
        right = SimulatedClock(loop)
        late = SimulatedClock(loop, offset_ms=-5000)
        fast = SimulatedClock(loop, rate=1.25)
        elapsed, difference_ms = loop.run(main())
        assert elapsed == pytest.approx(10, abs=0.001)
        assert loop.time() - START_SECONDS == pytest.approx(8, abs=0.001)
        assert difference_ms == -5000


def test_a_wrong_rate_counts_from_the_beginning() -> None:
    with SimulatedLoop(1) as loop:
        right, fast = SimulatedClock(loop), SimulatedClock(loop, rate=1.25)
        assert fast.time_ms() == right.time_ms()
        loop.run(right.sleep(8))
        assert fast.time_ms() - right.time_ms() == pytest.approx(2000, abs=2)


def test_an_unfinished_generator_is_closed_while_the_loop_runs() -> None:
    closed: list[str] = []

    async def numbers():  # type: ignore[no-untyped-def]
        try:
            yield 1
        finally:
            await asyncio.sleep(0.1)
            closed.append("closed")

    async def main() -> None:
        async for _ in numbers():
            break
        await asyncio.sleep(1)

    with SimulatedLoop(1) as loop:
        loop.run(main())
    assert closed == ["closed"]
