"""Writers, rivals for the same rows among them, over a store that fails in every way at once."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

import hypothesis.strategies as st
from hypothesis import given

from tests.simulation.world.clock import SimulatedClock
from tests.simulation.world.loop import SimulatedLoop
from tests.unit.storage.segments import TOPIC_ID, advance, listed
from tidelog.entropy import SeededEntropy
from tidelog.storage.object_store import Buffer, Condition, ObjectStore, StoreError
from tidelog.storage.segment.segment import Segment, SegmentName
from tidelog.storage.sequence import AppendUndecided
from tidelog.storage.stores.faulty import FaultRates, FaultyStore
from tidelog.storage.stores.memory import MemoryStore
from tidelog.storage.stores.retrying import RetryingStore, StoreRetrySettings
from tidelog.storage.table.table_change import PartitionChange, decode_commit
from tidelog.storage.table.table_checkpoint import capture
from tidelog.storage.table.table_log import TableCommitted, TableLog
from tidelog.storage.table.table_state import TableState
from tidelog.workers.offload import InlineOffload

WRITERS, PARTITIONS, STEPS = 4, 2, 10
GRACE_SECONDS = 400.0
rate = st.sampled_from([0.0, 0.05, 0.3])
faults = st.builds(
    FaultRates,
    refused=rate,
    request_lost=rate,
    answer_lost=rate,
    late=rate,
    slow=rate,
    late_seconds_max=st.sampled_from([0.2, 5.0, 100.0]),
)


class Recording(MemoryStore):
    """Keeps the first body of each commit, also when it is deleted."""

    def __init__(self, clock: SimulatedClock) -> None:
        super().__init__(clock)
        self.history: dict[str, bytes] = {}

    async def put(
        self, key: str, data: Buffer | Sequence[Buffer], condition: Condition | None = None
    ) -> str:
        etag = await super().put(key, data, condition)
        if key.endswith(".json"):
            assert key not in self.history, "a number was used twice"
            self.history[key] = bytes((await self.get(key)).data)
        return etag


@dataclass
class Told:
    """The answers to the writers."""

    added: list[Segment] = field(default_factory=list)
    removed: list[SegmentName] = field(default_factory=list)
    refused: list[Segment] = field(default_factory=list)
    numbers: int = 0


@dataclass
class World:
    clock: SimulatedClock
    store: ObjectStore
    loop: SimulatedLoop
    told: Told = field(default_factory=Told)

    async def open(self, store: ObjectStore | None = None) -> TableLog:
        entropy = SeededEntropy(self.loop.random.random())
        return await TableLog.open(
            store or self.store,
            self.clock,
            entropy,
            InlineOffload(),
            TOPIC_ID,
            "topic",
            GRACE_SECONDS,
        )


async def write(world: World, writer: int) -> None:
    """Roll, compact and tidy up. After any failure go on, or start again."""
    log: TableLog | None = None
    for _ in range(STEPS):
        try:
            if log is None:
                log = await world.open()
            await step(world, log, writer % PARTITIONS)
        except StoreError:
            if world.loop.random.random() < 0.5:
                log = None
        await asyncio.sleep(world.loop.random.choice([0, 1, 30, 3 * GRACE_SECONDS]))


async def step(world: World, log: TableLog, partition: int) -> None:
    chance = world.loop.random.random()
    table = log.state.partition(partition)
    if chance < 0.15 and log.state.version >= 0:
        await log.write_checkpoint()
    elif chance < 0.25:
        await log.clean_up()
    elif chance < 0.4 and len(table.segments) > 1:
        first, second = (stored.segment.name for stored in table.segments[:2])
        merged = fresh(world, partition, first.base_offset, second.last_offset)
        change = PartitionChange(partition=partition, removed=(first, second), rewritten=(merged,))
        await commit(world, log, change)
    else:
        base = table.next_offset
        size = world.loop.random.randrange(1, 20)
        segments = [fresh(world, partition, base, base + size - 1)] if size % 4 else []
        await commit(world, log, advance(partition, base, base + size, *segments))


def fresh(world: World, partition: int, base: int, last: int) -> Segment:
    world.told.numbers += 1
    return listed(partition, base, last, world.told.numbers)


async def commit(world: World, log: TableLog, change: PartitionChange) -> None:
    segments = [*change.appended, *change.rewritten]
    try:
        result = await log.commit((change,))
    except AppendUndecided:
        return
    except StoreError:
        world.told.refused += segments
        raise
    if isinstance(result, TableCommitted):
        world.told.added += segments
        world.told.removed += change.removed
    else:
        world.told.refused += segments


@given(seed=st.integers(0, 2**32), rates=faults, retries=st.booleans())
def test_every_row_is_in_the_table_once_and_every_answer_is_true(
    seed: int, rates: FaultRates, retries: bool
) -> None:
    async def main(loop: SimulatedLoop) -> None:
        clock = SimulatedClock(loop)
        truth = Recording(clock)
        faulty = FaultyStore(truth, clock, SeededEntropy(seed), rates)
        store: ObjectStore = faulty
        if retries:
            store = RetryingStore(faulty, clock, SeededEntropy(seed), StoreRetrySettings())
        world = World(clock, store, loop)
        async with asyncio.TaskGroup() as tasks:
            for writer in range(WRITERS):
                tasks.create_task(write(world, writer))
        await faulty.settled()
        await check(world, truth)
        await faulty.close()

    with SimulatedLoop(seed) as loop:
        loop.run(main(loop), seconds_max=1e7)
        assert loop.unhandled == []


async def check(world: World, truth: Recording) -> None:
    log = await world.open(truth)
    replayed = TableState(TOPIC_ID)
    for version, (key, data) in enumerate(sorted(truth.history.items())):
        assert key == log.key(version)
        # Applying checks E1 to E3 against all of the history.
        replayed.apply(key, version, decode_commit(key, data, TOPIC_ID))
    found, expected = capture(log.state), capture(replayed)
    assert (found.version, found.next_offsets) == (expected.version, expected.next_offsets)
    assert found.segments == expected.segments
    present = {stored.segment.name for stored in found.segments}
    everything = {
        segment.name
        for key, data in truth.history.items()
        for change in decode_commit(key, data, TOPIC_ID).changes
        for segment in (*change.appended, *change.rewritten)
    }
    for segment in world.told.added:
        assert segment.name in everything
    for segment in world.told.refused:
        assert segment.name not in everything
    assert present.isdisjoint(world.told.removed)
