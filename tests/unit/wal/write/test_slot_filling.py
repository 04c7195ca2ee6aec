"""The open slot wakes the uploading task when there is something to upload, and not otherwise."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from tests.properties.wal.batches import EPOCH_0
from tests.simulation.world.clock import SimulatedClock
from tests.simulation.world.loop import SimulatedLoop
from tests.unit.wal.writer_desk import PARTITION
from tidelog.wal.settings import WalSettings
from tidelog.wal.write.slot_entries import LogStartEntry
from tidelog.wal.write.slot_filling import SlotFilling


class Filling:
    """An open slot, and how often it woke the uploading task."""

    def __init__(self, loop: SimulatedLoop) -> None:
        self.wakes = 0
        self.slots = SlotFilling(WalSettings(), SimulatedClock(loop), self._wake)

    def _wake(self) -> None:
        self.wakes += 1

    def add(self, *, is_idle: bool) -> None:
        self.slots.buffer_for(0, is_idle=is_idle).add(LogStartEntry(PARTITION, EPOCH_0, 1))
        self.slots.added()


def story(tell: Callable[[Filling], Awaitable[None]]) -> None:
    with SimulatedLoop(1) as loop:

        async def told() -> None:
            await tell(Filling(loop))

        loop.run(told(), seconds_max=10)


def test_the_first_entry_wakes_the_task_and_taking_the_slot_does_not() -> None:
    async def tell(filling: Filling) -> None:
        filling.add(is_idle=True)
        filling.add(is_idle=True)
        assert filling.wakes == 1
        assert filling.slots.may_go(0, is_idle=True)
        slot, buffer = filling.slots.take()
        assert (slot, buffer.is_empty) == (0, False)
        await asyncio.sleep(1)
        assert filling.wakes == 1

    story(tell)


def test_a_delay_wakes_the_task_at_its_end_if_a_slot_waits() -> None:
    async def tell(filling: Filling) -> None:
        filling.slots.delay(answered=2, waiting=0, put_seconds=0.01)
        await asyncio.sleep(1)
        assert filling.wakes == 0
        filling.slots.delay(answered=2, waiting=0, put_seconds=0.01)
        filling.add(is_idle=True)
        begun = filling.wakes
        await asyncio.sleep(1)
        assert filling.wakes == begun + 1

    story(tell)
