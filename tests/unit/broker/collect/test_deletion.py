"""Due objects are deleted as fast as they become due, some at a time. A failed deletion is
repeated."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from tests.simulation.world.clock import SimulatedClock
from tests.simulation.world.loop import SimulatedLoop
from tidelog.broker.collect.deletion import (
    DELETES_A_SECOND_MAX,
    RETRY_SECONDS,
    CollectorMetrics,
    Deleter,
    DueObject,
)
from tidelog.broker.collect.wal_inventory import WalRuns
from tidelog.crash_points import NO_CRASH_POINTS
from tidelog.entropy import SeededEntropy
from tidelog.identifiers import BrokerId, Epoch, Incarnation, Slot
from tidelog.storage.object_store import DELETED_AT_ONCE_MAX
from tidelog.storage.stores.faulty import FaultyStore, StoreFault
from tidelog.storage.stores.memory import MemoryStore
from tidelog.storage.stores.metered import MeteredStore
from tidelog.wal.format.object_format import wal_key
from tidelog.wal.recover.slot_runs import SlotRun

ME = Incarnation(BrokerId(0), Epoch(1))
SPREAD_SECONDS = 60.0


class World:
    """A bucket and the deleter of its objects."""

    def __init__(self, loop: SimulatedLoop) -> None:
        self.clock = SimulatedClock(loop)
        self.truth = MemoryStore(self.clock)
        self.faulty = FaultyStore(self.truth, self.clock, SeededEntropy(1))
        self.store = MeteredStore(self.faulty, self.clock)
        self.metrics = CollectorMetrics()
        self.deleter = Deleter(
            self.store, self.clock, NO_CRASH_POINTS, self.metrics, SPREAD_SECONDS
        )
        self.put = 0

    async def write(self, slots: int) -> SlotRun:
        run = SlotRun(self.put, self.put + slots)
        for slot in range(*run):
            await self.truth.put(wal_key(ME, Slot(slot)), b"x")
        self.put = run.end
        return run

    async def left(self) -> int:
        return len([meta async for meta in self.truth.list("wal/")])


def tell(story: Callable[[World], Awaitable[None]]) -> None:
    async def main(loop: SimulatedLoop) -> None:
        world = World(loop)
        deleting = asyncio.create_task(world.deleter.run())
        await story(world)
        deleting.cancel()

    with SimulatedLoop(1) as loop:
        loop.run(main(loop), seconds_max=100_000)


@pytest.mark.parametrize("slots_a_second", [10, 630, 2000])
def test_the_deleter_keeps_up_with_slots_that_become_due(slots_a_second: int) -> None:
    async def story(world: World) -> None:
        for _ in range(10):
            run = await world.write(60 * slots_a_second)
            world.deleter.add_slots(ME, WalRuns([run], 100))
            await world.clock.sleep(60)
        # About as many slots wait as become due while the deleter spreads its deletions.
        assert world.metrics.waiting <= 1.1 * SPREAD_SECONDS * slots_a_second
        await world.clock.sleep(600)
        assert await world.left() == world.metrics.waiting == 0
        assert world.metrics.objects == {"wal": 600 * slots_a_second}
        assert world.metrics.bytes == {"wal": 60_000 * slots_a_second}

    tell(story)


def test_a_large_backlog_is_deleted_in_few_requests_and_not_at_once() -> None:
    async def story(world: World) -> None:
        slots = 100_000
        world.deleter.add_slots(ME, WalRuns([await world.write(slots)], 1))
        await world.clock.sleep(1)
        assert slots - await world.left() <= 2 * DELETES_A_SECOND_MAX
        await world.clock.sleep(600)
        assert await world.left() == 0
        requests = world.store.statistics.delete.requests
        assert slots / DELETED_AT_ONCE_MAX <= requests < slots / 40

    tell(story)


def test_a_failed_deletion_is_repeated_before_later_deletions() -> None:
    async def story(world: World) -> None:
        first = await world.write(5)
        world.faulty.plan("delete", StoreFault.REFUSED, StoreFault.ANSWER_LOST)
        world.deleter.add_slots(ME, WalRuns([first], 1))
        await world.clock.sleep(1)
        assert world.metrics.failures == 1
        assert world.deleter.waiting_slots == {ME: [first]}
        await world.truth.put("merged/0-1/0", b"x")
        world.deleter.add([DueObject("merged/0-1/0", 1)])
        await world.clock.sleep(3 * RETRY_SECONDS)
        assert world.metrics.failures == 2
        assert await world.left() == 0
        assert [meta.key async for meta in world.truth.list()] == []
        assert world.metrics.objects == {"wal": 5, "merged": 1}

    tell(story)
