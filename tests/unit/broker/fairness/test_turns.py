"""Clients with many waiting requests are served by turns."""

from __future__ import annotations

import asyncio

import pytest

from tidelog.broker.fairness.turns import COSTLY, PASS_MAX, PASS_MIN, Turns
from tidelog.clock import SystemClock


class SteppedClock(SystemClock):
    """A clock that stands still until a test moves it."""

    now = 1000.0

    def monotonic(self) -> float:
        return self.now


class Asker:
    """A client that records in `begun` its begun requests and the time of each."""

    def __init__(
        self,
        name: str,
        waiting: int,
        begun: list[str],
        clock: SteppedClock,
        *,
        counts: int = 1,
        seconds: float = 0.0,
    ) -> None:
        self.name = name
        self.waiting = waiting
        self._begun = begun
        self._clock = clock
        self._counts = counts
        self._seconds = seconds

    @property
    def waits(self) -> bool:
        return self.waiting > 0

    def take_turn(self) -> int:
        self.waiting -= 1
        self._begun.append(self.name)
        self._clock.now += self._seconds
        return self._counts


async def passes(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


def test_clients_go_on_one_after_the_other() -> None:
    async def story() -> None:
        clock, begun = SteppedClock(), list[str]()
        turns = Turns(clock)
        for name in "abc":
            turns.join(Asker(name, 3, begun, clock))
        assert begun == []
        await passes(3)
        assert begun == list("abcabcabc")

    asyncio.run(story())


def test_a_client_that_has_nothing_to_begin_does_not_wait_and_one_that_leaves_has_no_turn() -> None:
    async def story() -> None:
        clock, begun = SteppedClock(), list[str]()
        turns = Turns(clock)
        idle, gone = Asker("idle", 0, begun, clock), Asker("gone", 5, begun, clock)
        turns.join(idle)
        turns.join(gone)
        assert idle not in turns
        assert gone in turns
        turns.leave(gone)
        await passes(9)
        assert begun == []

    asyncio.run(story())


def test_a_pass_begins_so_much_and_the_next_one_comes_when_that_is_done() -> None:
    async def story() -> None:
        clock, begun = SteppedClock(), list[str]()
        turns = Turns(clock)
        turns.join(Asker("a", 1000, begun, clock))
        await passes(2)
        assert len(begun) == PASS_MAX
        await passes(3)
        assert len(begun) == 2 * PASS_MAX

    asyncio.run(story())


def test_slow_passes_become_smaller_and_quick_ones_larger_again() -> None:
    async def story() -> None:
        clock, begun = SteppedClock(), list[str]()
        turns = Turns(clock)
        asker = Asker("a", 10_000, begun, clock, seconds=0.001)
        turns.join(asker)
        await passes(30)
        before = len(begun)
        await passes(3)
        assert len(begun) - before == PASS_MIN
        asker._seconds = 0.0
        await passes(30)
        before = len(begun)
        await passes(3)
        assert len(begun) - before == PASS_MAX

    asyncio.run(story())


def test_behind_costly_requests_that_took_long_others_get_as_much_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def story() -> None:
        clock, begun = SteppedClock(), list[str]()
        turns = Turns(clock)
        loop, pauses = asyncio.get_running_loop(), list[float]()

        def call_later(seconds: float, call: object, *_: object) -> asyncio.Handle:
            pauses.append(round(seconds, 3))
            return loop.call_soon(call)

        monkeypatch.setattr(loop, "call_later", call_later)
        turns.join(Asker("a", 7, begun, clock, counts=COSTLY, seconds=0.02))
        await passes(100)
        # The slices have four requests, two, and one, behind which no pause is needed.
        assert pauses == [0.08, 0.04]
        assert len(begun) == 7

    asyncio.run(story())
