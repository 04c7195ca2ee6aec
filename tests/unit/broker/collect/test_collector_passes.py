"""The cost of the collector's passes, and their continuation from process to process."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable

from tests.simulation.growth import GrowingBucket, Load
from tests.simulation.world.clock import SimulatedClock
from tests.simulation.world.loop import SimulatedLoop
from tidelog.broker.collect.mark_file import mark_key
from tidelog.identifiers import BrokerId
from tidelog.storage.object_store import ByteRange, ObjectMeta, StoredObject, Suffix
from tidelog.storage.stores.memory import MemoryStore

HOUR = 3600.0


class Counted(MemoryStore):
    """Counts requests, except those for leases and for the metadata log."""

    def __init__(self, clock: SimulatedClock) -> None:
        super().__init__(clock)
        self.counts: Counter[str] = Counter()

    async def get(self, key: str, byte_range: ByteRange | Suffix | None = None) -> StoredObject:
        self._count("get", key)
        return await super().get(key, byte_range)

    async def list(self, prefix: str = "", start_after: str = "") -> AsyncIterator[ObjectMeta]:
        self._count("list", prefix)
        async for meta in super().list(prefix, start_after):
            yield meta

    async def delete(self, *keys: str) -> None:
        self._count("delete", keys[0])
        await super().delete(*keys)

    def _count(self, operation: str, key: str) -> None:
        if not key.startswith("cluster/"):
            self.counts[f"{operation} {key.partition('/')[0]}"] += 1


class World(GrowingBucket):
    """Production's settings and times."""

    def __init__(self, loop: SimulatedLoop, load: Load) -> None:
        super().__init__(loop, load)
        self.clock = self._clock
        self.store: Counted = Counted(self._clock)


def tell(load: Load, story: Callable[[World], Awaitable[None]]) -> None:
    with SimulatedLoop(1) as loop:
        loop.run(story(World(loop, load)), seconds_max=100_000)


def test_an_idle_broker_asks_for_next_to_nothing() -> None:
    """In two hours there are four passes, and four over tables. Each lists every folder and reads
    the objects that it needs."""

    async def story(world: World) -> None:
        async def count() -> Counter[str]:
            await world.clock.sleep(2 * HOUR)
            world.store.counts.clear()
            await world.clock.sleep(2 * HOUR - 60)
            return Counter(world.store.counts)

        counting = asyncio.create_task(count())
        await world.live(4 * HOUR)
        counts = await counting
        assert 0 < sum(counts.values()) <= 80, counts
        assert counts["list wal"] == counts["delete wal"] == 0

    tell(Load(slots_a_second=20, hours=4, slots_max=2000), story)


def test_a_wal_of_tens_of_thousands_of_slots_is_not_listed_by_its_writer() -> None:
    async def story(world: World) -> None:
        await world.live(0.5 * HOUR)
        counts = world.store.counts
        # One listing before the registration, and the others in the first pass.
        assert counts["list wal"] <= 3
        assert sum(counts[f"list {folder}"] for folder in ("merged", "checkpoint")) <= 150
        deleted = world.growth.slots - len([k for k in world.store._objects if k.startswith("wal")])
        assert deleted > 0.4 * world.growth.slots
        # Deletions take several slots at a time, and more if more are due.
        assert counts["delete wal"] < deleted / 5

    tell(Load(slots_a_second=20, hours=1), story)


def test_marks_outlive_their_process() -> None:
    """No process lives for the grace. Objects of the first process are deleted nevertheless."""

    async def story(world: World) -> None:
        for _ in range(4):
            await world.live(480)
        written = world.growth.slots
        with_marks = len(world.store._objects)
        assert with_marks < 0.75 * written
        await world.store.delete(mark_key(BrokerId(0)))
        await world.live(480)
        assert len(world.store._objects) >= with_marks + 0.9 * (world.growth.slots - written)

    tell(Load(slots_a_second=10, hours=1), story)
