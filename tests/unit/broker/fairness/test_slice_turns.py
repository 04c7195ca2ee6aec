"""Long work takes turns on the event loop, in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Generator

from tests.simulation.world.loop import SimulatedLoop
from tidelog.broker.fairness.turns import REST_SECONDS_MAX, SliceTurns

Story = Callable[[SliceTurns], Awaitable[None]]


def run(story: Story) -> None:
    async def main() -> None:
        await story(SliceTurns())

    with SimulatedLoop(1) as loop:
        loop.run(main())
        assert loop.unhandled == []


def test_slices_of_several_requests_take_turns() -> None:
    async def story(turns: SliceTurns) -> None:
        slices: list[str] = []

        async def work(name: str) -> None:
            for _ in range(5):
                await turns.next()
                slices.append(name)

        await asyncio.gather(*(work(name) for name in "abc"))
        rounds = [set(slices[begin : begin + 3]) for begin in range(0, 15, 3)]
        assert rounds == [set("abc")] * 5

    run(story)


def test_ready_callbacks_run_between_two_slices() -> None:
    async def story(turns: SliceTurns) -> None:
        order: list[str] = []

        async def other() -> None:
            while len(order) < 20:
                order.append("other")
                await asyncio.sleep(0)

        async def work() -> None:
            for _ in range(5):
                await turns.next()
                order.append("slice")

        await asyncio.gather(other(), work())
        assert "slice slice" not in " ".join(order)

    run(story)


def test_work_rests_for_as_long_as_it_ran() -> None:
    async def story(turns: SliceTurns) -> None:
        loop = asyncio.get_running_loop()
        worked = rested = 0.0
        await turns.next()
        for _ in range(10):
            begun = loop.time()
            for _ in range(1000):
                # A callback takes virtual time only if the loop goes round.
                loop.call_soon(lambda: None)
            await asyncio.sleep(0)
            ended = loop.time()
            await turns.next()
            worked += ended - begun
            rested += loop.time() - ended
        assert worked > 0
        assert worked * 0.9 <= rested <= worked * 3
        assert rested <= 10 * (REST_SECONDS_MAX + worked / 10)

    run(story)


def test_a_cancelled_turn_holds_up_no_other() -> None:
    async def story(turns: SliceTurns) -> None:
        gone = [asyncio.ensure_future(turns.next()) for _ in range(3)]
        left = asyncio.ensure_future(turns.next())
        await asyncio.sleep(0)
        for each in gone:
            each.cancel()
        await left
        await turns.next()

    run(story)


def test_items_are_given_a_slice_at_a_time() -> None:
    async def story(turns: SliceTurns) -> None:
        paused: list[int] = []
        given: list[int] = []
        original = turns.next

        async def watched() -> None:
            paused.append(len(given))
            await original()

        turns.next = watched  # type: ignore[method-assign]
        async for each in turns.over(range(10), 4):
            given.append(each)  # noqa: PERF401 - `watched` looks at it meanwhile
        assert (given, paused) == (list(range(10)), [4, 8])
        for count, pauses in ((3, 0), (4, 1), (9, 2)):
            paused.clear()
            assert await turns.list_of(range(count), 4) == list(range(count))
            assert len(paused) == pauses
        paused.clear()
        assert await turns.counted("abca") == {"a": 2, "b": 1, "c": 1}
        assert not paused
        assert (await turns.counted(str(n % 3) for n in range(9000)))["0"] == 3000
        assert len(paused) == 4

    run(story)


def test_a_generator_is_gone_through_step_by_step() -> None:
    async def story(turns: SliceTurns) -> None:
        def steps(count: int) -> Generator[None, None, str]:
            for _ in range(count):
                yield
            return "done"

        assert await turns.through(steps(0)) == "done"
        assert await turns.through(steps(3)) == "done"

    run(story)
