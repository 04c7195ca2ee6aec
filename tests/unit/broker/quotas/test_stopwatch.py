"""The time that the event loop is busy with a request."""

from __future__ import annotations

import asyncio

import pytest

from tidelog.broker.quotas.stopwatch import Stopwatch
from tidelog.clock import SystemClock


class Ticking(SystemClock):
    """A clock that the test moves."""

    now = 0.0

    def monotonic(self) -> float:
        return self.now


def test_steps_count_and_waits_between_them_do_not() -> None:
    clock = Ticking()
    watch = Stopwatch(clock)

    async def work() -> str:
        clock.now += 1
        await asyncio.sleep(0)
        clock.now += 2
        return "done"

    async def main() -> None:
        async def elsewhere() -> None:
            clock.now += 100

        other = asyncio.create_task(elsewhere())
        assert await watch.timed(work()) == "done"
        await other

    asyncio.run(main())
    assert watch.seconds == 3


def test_a_future_is_awaited_and_a_call_counts() -> None:
    clock = Ticking()
    watch = Stopwatch(clock)

    def call(by: int) -> int:
        clock.now += by
        return by

    async def main() -> None:
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().call_soon(future.set_result, 5)
        assert await watch.timed(future) == 5
        assert watch.call(call, 7) == 7

    asyncio.run(main())
    assert watch.seconds == 7


def test_errors_and_cancellation_reach_the_work() -> None:
    watch = Stopwatch(SystemClock())
    seen: list[str] = []

    async def fails() -> None:
        await asyncio.sleep(0)
        raise ValueError("no")

    async def waits() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            seen.append("cancelled")
            raise

    async def main() -> None:
        with pytest.raises(ValueError, match="no"):
            await watch.timed(fails())

        async def outer() -> None:
            await watch.timed(waits())

        task = asyncio.create_task(outer())
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert seen == ["cancelled"]
