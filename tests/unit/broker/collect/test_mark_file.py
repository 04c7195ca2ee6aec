"""Observed ages are kept from process to process. Times that no process observed do not count."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from tests.simulation.world.clock import SimulatedClock
from tests.simulation.world.loop import SimulatedLoop
from tidelog.broker.collect.mark_file import MarkFile, mark_key
from tidelog.identifiers import BrokerId, Epoch, Incarnation
from tidelog.storage.sightings import Sightings
from tidelog.storage.stores.memory import MemoryStore
from tidelog.storage.stores.metered import MeteredStore
from tidelog.wal.recover.slot_runs import SlotRun
from tidelog.workers.offload import InlineOffload

GRACE = 600.0
ID = BrokerId(7)
DEAD = Incarnation(ID, Epoch(3))
SLOTS = {DEAD: [SlotRun(0, 100)]}


class World:
    """A bucket, and processes of one broker id."""

    def __init__(self, loop: SimulatedLoop) -> None:
        self.clock = SimulatedClock(loop)
        self.store = MeteredStore(MemoryStore(self.clock), self.clock)

    async def process(self) -> MarkFile:
        marks = MarkFile(self.store, self.clock, InlineOffload(), ID, GRACE)
        await marks.load()
        return marks

    @property
    def puts(self) -> int:
        return self.store.statistics.put.requests


def tell(story: Callable[[World], Awaitable[None]]) -> None:
    async def main(loop: SimulatedLoop) -> None:
        await story(World(loop))

    with SimulatedLoop(1) as loop:
        loop.run(main(loop), seconds_max=1_000_000)


def test_short_lives_together_see_a_snapshot_for_the_grace() -> None:
    """Otherwise a bucket whose brokers never live for the grace would keep its whole metadata
    log."""

    async def story(world: World) -> None:
        lives = 0
        while True:
            lives += 1
            seen: Sightings[str] = Sightings()
            seen.look(["new", "old"] if lives > 3 else ["old"], world.clock.monotonic())
            marks = MarkFile(world.store, world.clock, InlineOffload(), ID, GRACE, seen)
            await marks.load()
            marks.forgotten.update(["epoch 3"], world.clock.monotonic())
            await world.clock.sleep(GRACE / 4 - 1)
            await marks.store({})
            if seen.seen_for(GRACE, world.clock.monotonic()):
                break
            # A pause in which no process looks does not count.
            await world.clock.sleep(10 * GRACE)
        assert lives == 5
        assert seen.seen_for(GRACE, world.clock.monotonic()) == ["old"]
        due = marks.forgotten.update(["epoch 3"], world.clock.monotonic())
        assert due == ["epoch 3"]

    tell(story)


def test_short_lives_together_observe_the_grace() -> None:
    async def story(world: World) -> None:
        lives = 0
        due: list[str] = []
        while not due:
            lives += 1
            marks = await world.process()
            for _ in range(5):
                slots = marks.slots.update(SLOTS, world.clock.monotonic())
                due = marks.objects.update(["merged/0"], world.clock.monotonic())
                assert bool(slots) == bool(due)
                await marks.store({})
                await world.clock.sleep(20)
            # The process is killed, and loses its observations since it last stored its marks.
            await world.clock.sleep(10_000)
        # Each process counts four intervals of 20 s.
        assert lives == 8

    tell(story)


def test_unobserved_time_does_not_count() -> None:
    async def story(world: World) -> None:
        marks = await world.process()
        marks.slots.update(SLOTS, world.clock.monotonic())
        await marks.store({})
        await world.clock.sleep(100_000)
        marks = await world.process()
        assert marks.slots.update(SLOTS, world.clock.monotonic()) == {}

    tell(story)


def test_a_mark_that_a_pass_does_not_confirm_ends() -> None:
    async def story(world: World) -> None:
        marks = await world.process()
        marks.slots.update(SLOTS, world.clock.monotonic())
        await world.clock.sleep(GRACE + 1)
        await marks.store({})
        marks = await world.process()
        now = world.clock.monotonic()
        assert marks.slots.update({DEAD: [SlotRun(0, 50)]}, now) == {DEAD: [SlotRun(0, 50)]}
        assert marks.slots.update(SLOTS, now) == {DEAD: [SlotRun(0, 50)]}

    tell(story)


def test_slots_under_deletion_are_stored_as_due() -> None:
    async def story(world: World) -> None:
        marks = await world.process()
        marks.slots.update({DEAD: [SlotRun(50, 60)]}, world.clock.monotonic())
        await marks.store({DEAD: [SlotRun(0, 20), SlotRun(30, 50)]})
        marks = await world.process()
        now = world.clock.monotonic()
        assert marks.slots.update(SLOTS, now) == {DEAD: [SlotRun(0, 20), SlotRun(30, 50)]}

    tell(story)


def test_an_old_process_that_writes_late_tells_nothing_wrong() -> None:
    """The late write drops a part of the successor's observations. So some slots are observed once
    more, and none is deleted sooner."""

    async def story(world: World) -> None:
        old = await world.process()
        old.slots.update(SLOTS, world.clock.monotonic())
        await world.clock.sleep(100)
        successor = await world.process()
        successor.slots.update({DEAD: [SlotRun(0, 200)]}, world.clock.monotonic())
        await world.clock.sleep(400)
        await successor.store({})
        await old.store({})
        last = await world.process()
        now = world.clock.monotonic()
        [(run, age)] = last.slots.ages(now)[DEAD]
        assert (run, round(age)) == (SlotRun(0, 100), 500)
        assert last.slots.update({DEAD: [SlotRun(0, 200)]}, now) == {}
        await world.clock.sleep(101)
        assert last.slots.update({DEAD: [SlotRun(0, 200)]}, now + 101) == SLOTS

    tell(story)


def test_unchanged_marks_are_not_written_again() -> None:
    async def story(world: World) -> None:
        marks = await world.process()
        for _ in range(3):
            await marks.store({})
        assert world.puts == 0
        marks.objects.update(["merged/0"], world.clock.monotonic())
        await marks.store({})
        marks.objects.update([], world.clock.monotonic())
        for _ in range(3):
            await marks.store({})
        assert world.puts == 2
        assert (await world.process()).objects.ages(0.0) == {}

    tell(story)


@pytest.mark.parametrize("damage", [b"", b"{}", b"\x00" * 100, b"cut"])
def test_a_file_that_cannot_be_read_costs_a_grace(
    damage: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    async def story(world: World) -> None:
        marks = await world.process()
        marks.slots.update(SLOTS, world.clock.monotonic())
        await world.clock.sleep(GRACE + 1)
        await marks.store({})
        stored = bytes((await world.store.get(mark_key(ID))).data)
        await world.store.put(mark_key(ID), stored[:-20] if damage == b"cut" else damage)
        marks = await world.process()
        assert "marks are unreadable" in caplog.text
        assert marks.slots.update(SLOTS, world.clock.monotonic()) == {}
        await marks.store({})
        await asyncio.sleep(0)
        assert len((await world.process()).slots) == 100

    tell(story)
