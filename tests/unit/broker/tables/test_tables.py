"""A broker's open tables: which calls open a table, the errors of callers, and cleaning."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import cast
from uuid import UUID

import pytest

from tests.simulation.world.clock import SimulatedClock
from tests.simulation.world.loop import SimulatedLoop
from tests.unit.broker.rolled import KillAt, Killed
from tests.unit.broker.stored_log import settle
from tests.unit.storage.segments import TOPIC_ID, advance, listed
from tidelog.broker.tables import tables as module
from tidelog.broker.tables.segment_ages import SegmentAges, SegmentAgingStore
from tidelog.broker.tables.tables import NoTable, Tables
from tidelog.coordinator.cluster.records.records import TopicDeleted
from tidelog.coordinator.cluster.records.topics import Topic
from tidelog.coordinator.cluster.state.state import ClusterState
from tidelog.crash_points import NO_CRASH_POINTS, CrashPoint, CrashPoints
from tidelog.entropy import SeededEntropy
from tidelog.errors import CorruptObject
from tidelog.identifiers import TopicId
from tidelog.storage.object_store import StoreError
from tidelog.storage.stores.faulty import FaultRates, FaultyStore, StoreFault
from tidelog.storage.stores.memory import MemoryStore
from tidelog.storage.stores.metered import MeteredStore
from tidelog.storage.table.table_change import PartitionChange
from tidelog.storage.table.table_log import CHECKPOINT_COMMITS, SegmentsTooOld, TableCommitted
from tidelog.storage.table.table_state import CommitRefusal
from tidelog.workers.offload import InlineOffload

OTHER_ID = UUID(int=77)
INTERNAL_ID = UUID(int=78)
GRACE_SECONDS = 600.0


class World:
    """A bucket, the topics of its cluster, and brokers' tables in it."""

    def __init__(self, loop: SimulatedLoop) -> None:
        self.clock = SimulatedClock(loop)
        self.truth = MeteredStore(MemoryStore(self.clock), self.clock)
        self.entropy = SeededEntropy(1)
        self.faulty = FaultyStore(self.truth, self.clock, self.entropy, FaultRates())
        self.topics = {
            topic_id: Topic(topic_id, name, name.startswith("__"), {}, ())
            for topic_id, name in (
                (TOPIC_ID, "flights"),
                (OTHER_ID, "alerts"),
                (INTERNAL_ID, "__consumer_offsets"),
            )
        }

    def tables(
        self,
        segments_held_max: int = module.SEGMENTS_HELD_MAX,
        crash_points: CrashPoints = NO_CRASH_POINTS,
    ) -> Tables:
        state = cast(ClusterState, SimpleNamespace(topics=self.topics))
        return Tables(
            lambda: state,
            self.faulty,
            self.clock,
            self.entropy,
            InlineOffload(),
            GRACE_SECONDS,
            crash_points,
            segments_held_max=segments_held_max,
        )

    async def keys(self, topic_id: TopicId = TOPIC_ID) -> list[str]:
        prefix = f"topics/{topic_id}/_delta_log/"
        return [meta.key.removeprefix(prefix) async for meta in self.truth.list(prefix)]


def tell(story: Callable[[World], Awaitable[None]]) -> None:
    async def main(loop: SimulatedLoop) -> None:
        await story(World(loop))

    with SimulatedLoop(1) as loop:
        loop.run(main(loop), seconds_max=1e6)
        assert loop.unhandled == []


async def grow(tables: Tables, count: int, topic_id: TopicId = TOPIC_ID) -> None:
    for _ in range(count):
        base = (await tables.open(topic_id)).partition(0).next_offset
        change = advance(0, base, base + 10, listed(0, base, base + 9, base))
        assert isinstance(await tables.commit(topic_id, (change,)), TableCommitted)


def test_a_table_is_read_once_for_many_callers() -> None:
    async def story(world: World) -> None:
        await grow(world.tables(), 3)
        tables = world.tables()
        assert tables.get(TOPIC_ID) is None
        before = world.truth.statistics.get.requests
        states = await asyncio.gather(*(tables.open(TOPIC_ID) for _ in range(5)))
        once = world.truth.statistics.get.requests - before
        assert all(state is tables.get(TOPIC_ID) for state in states)
        await tables.open(TOPIC_ID)
        assert world.truth.statistics.get.requests - before == once
        assert states[0].partition(0).next_offset == 30

    tell(story)


def test_a_cancelled_waiter_does_not_end_the_opening_for_other_waiters() -> None:
    async def story(world: World) -> None:
        tables = world.tables()
        world.faulty.plan("get", StoreFault.SLOW)
        impatient = asyncio.create_task(tables.open(TOPIC_ID))
        await settle()
        patient = asyncio.create_task(tables.open(TOPIC_ID))
        await settle()
        impatient.cancel()
        assert (await patient).version == -1
        with pytest.raises(asyncio.CancelledError):
            await impatient

    tell(story)


def test_a_table_is_opened_again_while_a_commit_hangs() -> None:
    """The hanging commit is refused later, like a commit of another broker."""

    async def story(world: World) -> None:
        tables = world.tables()
        before = await tables.open(TOPIC_ID)
        world.faulty.plan("put", StoreFault.SLOW)
        late = asyncio.create_task(tables.commit(TOPIC_ID, (advance(0, 0, 5, listed(0, 0, 4)),)))
        await settle()
        await grow(world.tables(), 2)
        state = await tables.refresh_or_reopen(TOPIC_ID)
        assert state is tables.get(TOPIC_ID)
        assert state is not before
        assert state.partition(0).next_offset == 20
        assert await late == CommitRefusal(0, "the table ends at offset 20, not at 0")

    tell(story)


def test_a_table_is_not_opened_again_while_reads_are_slow() -> None:
    async def story(world: World) -> None:
        tables = world.tables()
        before = await tables.open(TOPIC_ID)
        await grow(world.tables(), 2)
        world.faulty.plan("get", StoreFault.SLOW)
        began = world.clock.monotonic()
        assert await tables.refresh_or_reopen(TOPIC_ID) is before
        assert world.clock.monotonic() - began >= module.PATIENCE_SECONDS
        assert before.partition(0).next_offset == 20

    tell(story)


def test_commits_to_one_topic_come_one_after_the_other() -> None:
    async def story(world: World) -> None:
        tables = world.tables()
        changes = [advance(number, 0, 10, listed(number, 0, 9, number)) for number in range(8)]
        results = await asyncio.gather(*(tables.commit(TOPIC_ID, (each,)) for each in changes))
        assert sorted(result.version for result in results) == list(range(8))

    tell(story)


def test_a_refused_commit_learns_the_table_of_another_broker() -> None:
    """Rules E1 and E2 refuse the commit."""

    async def story(world: World) -> None:
        old, new = world.tables(), world.tables()
        await old.open(TOPIC_ID)
        await grow(new, 2)
        late = (advance(0, 0, 15, listed(0, 0, 14, 99)),)
        refused = await old.commit(TOPIC_ID, late)
        assert refused == CommitRefusal(0, "the table ends at offset 20, not at 0")
        state = old.get(TOPIC_ID)
        assert state is not None
        assert state.partition(0).next_offset == 20
        await grow(old, 1)
        assert (await new.refresh(TOPIC_ID)).partition(0).next_offset == 30

    tell(story)


def test_a_store_that_fails_is_asked_again_by_the_next_caller() -> None:
    async def story(world: World) -> None:
        await grow(world.tables(), 1)
        tables = world.tables()
        world.faulty.plan("get", StoreFault.REFUSED)
        with pytest.raises(StoreError):
            await tables.open(TOPIC_ID)
        assert tables.get(TOPIC_ID) is None
        assert (await tables.open(TOPIC_ID)).partition(0).next_offset == 10

    tell(story)


def test_a_corrupt_table_is_not_read_with_each_request_and_not_given_up_for_ever() -> None:
    async def story(world: World) -> None:
        await grow(world.tables(), 1)
        key = f"topics/{TOPIC_ID}/_delta_log/{0:020d}.json"
        right = (await world.truth.get(key)).data
        await world.truth.put(key, bytes(right).replace(b"flights", b"fljghts"))
        tables = world.tables()
        with pytest.raises(CorruptObject, match=key):
            await tables.open(TOPIC_ID)
        before = world.truth.statistics.get.requests
        with pytest.raises(CorruptObject, match=key):
            await tables.open(TOPIC_ID)
        assert world.truth.statistics.get.requests == before
        assert (await tables.open(OTHER_ID)).version == -1
        await world.truth.put(key, right)
        await world.clock.sleep(module.CORRUPT_SECONDS)
        assert (await tables.open(TOPIC_ID)).partition(0).next_offset == 10

    tell(story)


def test_the_error_of_a_corrupt_table_does_not_grow_with_each_request() -> None:
    async def story(world: World) -> None:
        await grow(world.tables(), 1)
        key = f"topics/{TOPIC_ID}/_delta_log/{0:020d}.json"
        await world.truth.put(key, b"nothing of a table")
        tables = world.tables()
        depths = []
        for _ in range(5):
            with pytest.raises(CorruptObject) as raised:
                await tables.open(TOPIC_ID)
            depths.append(len(raised.traceback))
        assert len(set(depths[1:])) == 1

    tell(story)


def test_a_topic_that_is_gone_has_no_table_and_internal_ones_never_have() -> None:
    async def story(world: World) -> None:
        tables = world.tables()
        await grow(tables, 1)
        del world.topics[TOPIC_ID]
        tables.follow([TopicDeleted(TOPIC_ID)])
        assert tables.get(TOPIC_ID) is None
        with pytest.raises(NoTable, match="no longer exists"):
            await tables.commit(TOPIC_ID, (advance(0, 10, 20),))
        with pytest.raises(NoTable, match="__consumer_offsets"):
            await tables.open(INTERNAL_ID)
        assert len(tables) == 0

    tell(story)


def test_tables_long_unused_are_let_go_and_read_again() -> None:
    async def story(world: World) -> None:
        await grow(world.tables(), 6)
        await grow(world.tables(), 6, OTHER_ID)
        tables = world.tables(segments_held_max=10)
        await tables.open(TOPIC_ID)
        await tables.open(OTHER_ID)
        assert tables.get(TOPIC_ID) is None
        assert tables.get(OTHER_ID) is not None
        assert (await tables.open(TOPIC_ID)).segment_count == 6
        assert tables.get(OTHER_ID) is None

    tell(story)


def test_a_checkpoint_is_written_when_it_is_due_and_makes_older_entries_go_after_the_grace() -> (
    None
):
    async def story(world: World) -> None:
        tables = world.tables()
        running = asyncio.create_task(tables.run())
        await grow(tables, CHECKPOINT_COMMITS)
        await world.clock.sleep(1)
        newest = f"{CHECKPOINT_COMMITS - 1:020d}"
        assert f"{newest}.checkpoint.parquet" in await world.keys()
        assert len(await world.keys()) == CHECKPOINT_COMMITS + 2
        await world.clock.sleep(GRACE_SECONDS)
        await grow(tables, CHECKPOINT_COMMITS)
        await world.clock.sleep(1)
        # The next pass learns that the first version is old enough, and keeps the later ones.
        assert (await world.keys())[:2] == [f"{newest}.checkpoint.parquet", f"{newest}.json"]
        assert len(await world.keys()) == CHECKPOINT_COMMITS + 4
        assert (await world.tables().open(TOPIC_ID)).segment_count == 2 * CHECKPOINT_COMMITS
        running.cancel()

    tell(story)


def test_a_table_log_stays_short_though_each_process_writes_one_checkpoint() -> None:
    async def story(world: World) -> None:
        for _ in range(6):
            tables = world.tables()
            await grow(tables, CHECKPOINT_COMMITS - 5)
            await world.clock.sleep(2 * GRACE_SECONDS)
            await tables.maintain_due()
        assert len(await world.keys()) < 3 * CHECKPOINT_COMMITS

    tell(story)


def test_a_table_log_stays_short_though_its_table_is_closed_again_and_again() -> None:
    async def story(world: World) -> None:
        tables = world.tables(segments_held_max=1)
        for _ in range(6 * CHECKPOINT_COMMITS):
            for topic_id in (TOPIC_ID, OTHER_ID):
                await grow(tables, 1, topic_id)
                await tables.maintain_due()
            await world.clock.sleep(GRACE_SECONDS / 10)
        assert len(await world.keys()) < 3 * CHECKPOINT_COMMITS

    tell(story)


def test_a_death_behind_a_checkpoint_leaves_a_table_as_it_was() -> None:
    async def story(world: World) -> None:
        tables = world.tables(crash_points=KillAt(CrashPoint.TABLE_CHECKPOINTED))
        await grow(tables, CHECKPOINT_COMMITS)
        with pytest.raises(Killed):
            await tables.run()
        successor = world.tables()
        assert (await successor.open(TOPIC_ID)).segment_count == CHECKPOINT_COMMITS
        await grow(successor, 1)

    tell(story)


def test_a_checkpoint_that_fails_is_written_after_the_next_commit() -> None:
    async def story(world: World) -> None:
        tables = world.tables()
        await grow(tables, CHECKPOINT_COMMITS)
        world.faulty.plan("put", StoreFault.REFUSED)
        running = asyncio.create_task(tables.run())
        await world.clock.sleep(1)
        assert "_last_checkpoint" not in await world.keys()
        await grow(tables, 1)
        await world.clock.sleep(1)
        assert "_last_checkpoint" in await world.keys()
        running.cancel()

    tell(story)


def test_no_segment_is_committed_that_is_too_old_or_was_not_put_here() -> None:
    """A collector may have taken the segment for superfluous."""

    async def story(world: World) -> None:
        ages = SegmentAges(GRACE_SECONDS)
        store = SegmentAgingStore(world.truth, world.clock, ages)
        tables = Tables(
            lambda: cast(ClusterState, SimpleNamespace(topics=world.topics)),
            store,
            world.clock,
            world.entropy,
            InlineOffload(),
            GRACE_SECONDS,
            ages=ages,
        )
        young, old, foreign = (listed(0, 0, 9, number) for number in range(3))
        await store.put(old.key(TOPIC_ID), b"rows")
        await world.clock.sleep(GRACE_SECONDS / 2 + 1)
        await store.put(young.key(TOPIC_ID), b"rows")
        for refused in (old, foreign):
            with pytest.raises(SegmentsTooOld, match="Write them again"):
                await tables.commit(TOPIC_ID, (advance(0, 0, 10, refused),))
        committed = await tables.commit(TOPIC_ID, (advance(0, 0, 10, young),))
        assert isinstance(committed, TableCommitted)
        await world.clock.sleep(GRACE_SECONDS)
        # A change that adds no segment is never too old.
        removal = PartitionChange(partition=0, removed=(young.name,))
        assert isinstance(await tables.commit(TOPIC_ID, (removal,)), TableCommitted)

    tell(story)
