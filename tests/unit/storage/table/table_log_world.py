"""A bucket with one table, opened by several processes, each with a clock of its own."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from tests.simulation.world.clock import SimulatedClock
from tests.simulation.world.loop import SimulatedLoop
from tests.unit.storage.segments import TOPIC_ID, advance, listed
from tidelog.entropy import SeededEntropy
from tidelog.storage.object_store import ByteRange, StoredObject, StoreNotApplied, Suffix
from tidelog.storage.stores.faulty import FaultRates, FaultyStore
from tidelog.storage.stores.memory import MemoryStore
from tidelog.storage.stores.metered import MeteredStore
from tidelog.storage.table.table_checkpoint import capture
from tidelog.storage.table.table_log import DELETE_GRACE_SECONDS, TableCommitted, TableLog
from tidelog.storage.table.table_state import TableState
from tidelog.workers.offload import InlineOffload


class World:
    """A bucket and processes that read and change one topic's table in it."""

    def __init__(self, loop: SimulatedLoop) -> None:
        self.loop = loop
        self.clock = SimulatedClock(loop)
        self.truth = MeteredStore(MemoryStore(self.clock), self.clock)
        self.entropy = SeededEntropy(1)

    async def open(
        self, store: FaultyStore | None = None, grace_seconds: float = DELETE_GRACE_SECONDS
    ) -> TableLog:
        return await TableLog.open(
            store or self.truth,
            self.clock,
            self.entropy,
            InlineOffload(),
            TOPIC_ID,
            "flights",
            grace_seconds,
        )

    def faulty(self, rates: FaultRates | None = None) -> FaultyStore:
        return FaultyStore(self.truth, self.clock, self.entropy, rates or FaultRates())

    def gets(self) -> int:
        return self.truth.statistics.get.requests

    async def keys(self) -> list[str]:
        return [meta.key.rpartition("/")[2] async for meta in self.truth.list("topics/")]


def tell(story: Callable[[World], Awaitable[None]], seconds_max: float = 1e6) -> None:
    """Run a story in virtual time. No task of it may be left over or fail unseen."""

    async def main(loop: SimulatedLoop) -> None:
        await story(World(loop))

    with SimulatedLoop(1) as loop:
        loop.run(main(loop), seconds_max=seconds_max)
        assert loop.unhandled == []


async def grow(log: TableLog, count: int, partition: int = 0, size: int = 10) -> None:
    """Commit segments at the end of a partition, one after the other."""
    for _ in range(count):
        base = log.state.partition(partition).next_offset
        segment = listed(partition, base, base + size - 1, base)
        result = await log.commit((advance(partition, base, base + size, segment),))
        assert isinstance(result, TableCommitted)


def contents(state: TableState) -> tuple[object, ...]:
    """All parts of a state, for comparison."""
    found = capture(state)
    return (found.version, found.metadata, found.next_offsets, found.segments, found.removed)


class Refusing(FaultyStore):
    """A store that refuses all requests while a test says so."""

    mute = False

    async def get(self, key: str, byte_range: ByteRange | Suffix | None = None) -> StoredObject:
        if self.mute:
            raise StoreNotApplied(key, "mute")
        return await super().get(key, byte_range)
