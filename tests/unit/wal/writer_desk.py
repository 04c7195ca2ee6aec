"""A WAL writer in virtual time, over a store that holds puts back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress

from tests.properties.wal.batches import EPOCH_0, METADATA, batch, incarnation, topic_partition
from tests.simulation.world.clock import SimulatedClock
from tests.simulation.world.loop import SimulatedLoop
from tests.unit.wal.gated_store import GatedStore
from tidelog.entropy import SeededEntropy
from tidelog.errors import TidelogError
from tidelog.identifiers import Slot
from tidelog.storage.object_store import ObjectStore
from tidelog.storage.stores.memory import MemoryStore
from tidelog.wal.format.object_format import wal_key
from tidelog.wal.format.slot_index import check_body
from tidelog.wal.settings import WalSettings
from tidelog.wal.write.slot_entries import BatchEntry
from tidelog.wal.write.writer import DurableSlot, WalWriter
from tidelog.workers.offload import InlineOffload

PARTITION = topic_partition(0)


class Desk:
    """A writer, its store, and the slots that became durable."""

    def __init__(
        self,
        loop: SimulatedLoop,
        settings: WalSettings | None = None,
        wrap: Callable[[MemoryStore, SimulatedClock], ObjectStore] | None = None,
    ) -> None:
        self.clock = SimulatedClock(loop)
        self.bucket = MemoryStore(self.clock)
        self.gate = GatedStore(self.bucket)
        self.durable: list[DurableSlot] = []
        self.next_offset = 0
        self.writer = WalWriter(
            self.gate if wrap is None else wrap(self.bucket, self.clock),
            self.clock,
            SeededEntropy(1),
            InlineOffload(),
            incarnation(),
            settings or WalSettings(),
            self.durable.append,
            lambda: METADATA,
        )

    def add(self, size: int = 100) -> Slot:
        """One batch of about this size."""
        data, head = batch(content=bytes(size))
        self.next_offset += 1
        return self.writer.add(BatchEntry(PARTITION, EPOCH_0, data, head, self.next_offset - 1))

    def key(self, slot: int) -> str:
        return wal_key(incarnation(), Slot(slot))

    async def offsets(self, slot: int) -> list[int]:
        """The base offsets in a slot's object."""
        stored = await self.bucket.get(self.key(slot))
        return [e.base_offset for e in check_body(self.key(slot), stored.data).entries()]

    async def tick(self, seconds: float = 0.001) -> None:
        """Let all ready tasks run, and let this much time pass."""
        await self.clock.sleep(seconds)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[asyncio.Task[None]]:
        """The writer runs until it is closed at the end, or has ended itself."""
        run = asyncio.create_task(self.writer.run())
        yield run
        self.gate.open()
        with suppress(TidelogError):
            await self.writer.close()
        with suppress(TidelogError, asyncio.CancelledError):
            await run


def story(
    tell: Callable[[Desk], Awaitable[None]],
    settings: WalSettings | None = None,
    wrap: Callable[[MemoryStore, SimulatedClock], ObjectStore] | None = None,
) -> Desk:
    """Run a story in virtual time."""
    with SimulatedLoop(1) as loop:
        desk = Desk(loop, settings, wrap)

        async def told() -> None:
            await tell(desk)

        loop.run(told(), seconds_max=1_000)
    return desk
