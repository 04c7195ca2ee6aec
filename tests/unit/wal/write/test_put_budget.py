"""The WAL's budget of PUTs: how long small slots wait, and which slots do not wait."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest

from tests.unit.wal.writer_desk import Desk, story
from tidelog.wal.settings import WalSettings
from tidelog.wal.write.group_commit import PutBudget

TEN_A_SECOND = WalSettings(linger_ms=5, object_bytes_max=1_000, puts_a_second_max=10)


def spent_as_soon_as_may_be(budget: PutBudget, start: float, seconds: float) -> list[float]:
    """The times of PUTs, if there is always a slot to put."""
    now, times = start, []
    while now < start + seconds:
        now += budget.seconds_to_wait(now)
        budget.spend(now)
        times.append(now)
    return times


def test_saved_puts_go_at_once_and_the_others_at_equal_intervals() -> None:
    times = spent_as_soon_as_may_be(PutBudget(10), 1000.0, 2.0)
    assert times[:10] == pytest.approx([1000.0] * 10)
    gaps = [later - earlier for earlier, later in pairwise(times[9:])]
    assert gaps == pytest.approx([0.1] * len(gaps))


def test_no_more_is_saved_than_a_second_gives() -> None:
    budget = PutBudget(10)
    spent_as_soon_as_may_be(budget, 1000.0, 1.0)
    times = spent_as_soon_as_may_be(budget, 5000.0, 0.05)
    assert times == pytest.approx([5000.0] * 10 + [5000.1])


@pytest.mark.parametrize("puts_a_second", [1, 3, 10, 200])
def test_no_put_waits_longer_than_an_interval_and_the_average_is_kept(puts_a_second: int) -> None:
    drawn = random.Random(puts_a_second)
    budget, now, puts = PutBudget(puts_a_second), 50.0, 0
    while now < 150.0:
        now += drawn.choice((0.0, 0.001, 0.3 / puts_a_second))
        wait = budget.seconds_to_wait(now)
        assert wait <= 1 / puts_a_second + 1e-9
        now += wait
        budget.spend(now)
        puts += 1
    # The quiet second before has saved puts for one more second.
    assert puts <= (now - 50.0) * puts_a_second + puts_a_second + 1


def test_an_overdrawn_budget_waits_one_interval_and_no_longer() -> None:
    budget = PutBudget(10)
    for _ in range(1_000):
        budget.spend(1000.0)
    assert budget.seconds_to_wait(1000.0) == pytest.approx(0.1)


def test_puts_without_a_limit_do_not_wait() -> None:
    budget = PutBudget(0)
    for _ in range(1_000):
        assert budget.seconds_to_wait(1000.0) == 0
        budget.spend(1000.0)


def test_a_slot_that_waits_for_its_turn_is_filled_on() -> None:
    async def tell(desk: Desk) -> None:
        desk.gate.open()
        async with desk.running():
            for _ in range(10):
                desk.add()
                await desk.writer.flush()
            slots = []
            for _ in range(5):
                slots.append(desk.add(10))
                await desk.tick(0.015)
            # The eleventh PUT of this second waits for a tenth of a second.
            assert len(desk.durable) == 10
            assert slots == [10] * 5
            await desk.writer.durable(slots[-1])
            assert len(await desk.offsets(10)) == 5

    story(tell, TEN_A_SECOND)


def test_a_full_slot_does_not_wait_and_is_paid_for() -> None:
    async def tell(desk: Desk) -> None:
        desk.gate.open()
        async with desk.running():
            started = desk.clock.monotonic()
            for _ in range(30):
                slot = desk.add(1_000)
                await desk.writer.durable(slot)
            assert desk.clock.monotonic() - started < 0.01
            small = desk.add(10)
            await desk.writer.durable(small)
            waited = desk.clock.monotonic() - started
            assert 0.09 < waited < 0.11

    story(tell, TEN_A_SECOND)


def test_a_broker_that_stops_leaves_no_timer_behind() -> None:
    async def tell(desk: Desk) -> None:
        desk.gate.open()
        async with desk.running() as run:
            for _ in range(10):
                desk.add()
                await desk.writer.flush()
            desk.add()
            await desk.tick(0.01)
            run.cancel()
            await desk.tick(1.0)
            assert len(desk.durable) == 10

    story(tell, TEN_A_SECOND)
