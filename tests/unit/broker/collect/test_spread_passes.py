"""A pass of the collector is spread over its interval, and ends in its time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from tests.unit.broker.collect.collected_wal import values, world
from tests.unit.broker.collections import checkpoint, forget_memory
from tests.unit.broker.one_broker import TOPIC, OneBroker, batch, run
from tidelog.clock import SystemClock
from tidelog.wal.format.merged_object import MergedObject
from tidelog.wal.roll.merge_plan import MergePlan


class SleptClock(SystemClock):
    """A clock on which every sleep ends at once, at its time."""

    def __init__(self) -> None:
        self.slept: list[float] = []

    def monotonic(self) -> float:
        return 1000 + sum(self.slept)

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        await asyncio.sleep(0)


@pytest.fixture
def _as_slow_as_they_may_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidelog.broker.collect.merger.OBJECTS_A_SECOND_MIN", 1e-9)


@asynccontextmanager
async def spreading(clock: SleptClock, seconds: float) -> AsyncIterator[OneBroker]:
    """A broker with a topic. By this clock, its merges may take as long as `seconds`."""
    async with world(wal_objects_max=2).broker(politely=False) as one:
        await one.create_topic(retention_ms="-1")
        merger = one.broker.maintenance.merger
        merger._clock, merger._spread_seconds = clock, seconds
        merger._checkpointed_at = clock.monotonic()
        yield one


@pytest.mark.usefixtures("_as_slow_as_they_may_be")
@pytest.mark.parametrize("interval_seconds", [0, 40])
def test_a_pass_is_spread_over_its_interval_behind_a_checkpoint(
    monkeypatch: pytest.MonkeyPatch, interval_seconds: int
) -> None:
    """30 s for 24 objects, half of which are old by the checkpoint with which the pass begins."""
    monkeypatch.setattr("tidelog.broker.collect.merger.INDEXES_AT_ONCE_MAX", 1)
    clock = SleptClock()

    async def story() -> None:
        async with spreading(clock, 3 / 4 * interval_seconds) as one:
            merger = one.broker.maintenance.merger
            for number in range(12):
                await one.produce(batch(b"%d" % number))
            await checkpoint(one)
            for number in range(12, 24):
                await one.produce(batch(b"%d" % number))
            await merger.maintain()
            log = one.broker.writes.partitions.named(TOPIC, 0).log
            assert sum(clock.slept) == pytest.approx(30 if interval_seconds else 0)
            assert len(set(log.extents.keys)) == 1
            forget_memory(one)
            assert await values(one) == [b"%d" % number for number in range(24)]

    run(story)


@pytest.mark.usefixtures("_as_slow_as_they_may_be")
def test_a_pass_ends_in_its_time_though_objects_become_old_all_the_while(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The pass speeds up, and leaves the last objects to the next pass. Each of its three merges
    takes 6 objects, and 5 s in which 12 more become old. The first merges 6 of 12, and also takes
    half of the 30 s. The second merges 6 of 18, in a third of the 10 s that are left. The third has
    the rest."""
    monkeypatch.setattr("tidelog.broker.collect.merger.MERGE_SOURCES_MAX", 6)
    monkeypatch.setattr("tidelog.broker.collect.merger.INDEXES_AT_ONCE_MAX", 1)
    clock = SleptClock()

    async def story() -> None:
        async with spreading(clock, 30.0) as one:
            merger = one.broker.maintenance.merger
            store_merged = merger._store_merged

            async def twelve_become_old() -> None:
                for _ in range(12):
                    await one.produce(batch(b"x"))
                await checkpoint(one)

            async def meanwhile(plan: MergePlan, number: int) -> MergedObject | None:
                await clock.sleep(5.0)
                await twelve_become_old()
                return await store_merged(plan, number)

            monkeypatch.setattr(merger, "_store_merged", meanwhile)
            await twelve_become_old()
            await merger.maintain()
            assert merger.metrics.merges == 3
            assert 30 < sum(clock.slept) < 35

    run(story)
