"""When segments that no table lists are deleted, and tables of deleted topics."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from itertools import count
from uuid import UUID

import pytest

from tests.simulation.world.clock import SimulatedClock
from tests.simulation.world.loop import SimulatedLoop
from tests.unit.coordinator.cluster.samples import after, cluster, registered
from tests.unit.storage.segments import TOPIC_ID, advance, commit_of, listed
from tidelog.broker.collect import table_collector
from tidelog.broker.collect.deletion import CollectorMetrics, Deleter
from tidelog.broker.collect.mark_file import MarkFile
from tidelog.broker.collect.shares import SharedWork, is_responsible
from tidelog.broker.collect.table_collector import TableCollector
from tidelog.coordinator.cluster.records.topics import Topic
from tidelog.coordinator.cluster.state.state import ClusterState
from tidelog.crash_points import NO_CRASH_POINTS
from tidelog.entropy import SeededEntropy
from tidelog.identifiers import BrokerId, Epoch, Incarnation, LeaderEpoch, TopicId
from tidelog.storage.object_store import IfAbsent, PreconditionFailed
from tidelog.storage.segment.segment import Segment
from tidelog.storage.stores.memory import MemoryStore
from tidelog.storage.table.table_change import PartitionChange, encode_commit
from tidelog.storage.table.table_log import SegmentsTooOld, TableCommitted, TableLog, commit_key
from tidelog.storage.table.table_schema import FORMAT_PROPERTY, FORMAT_VERSION, metadata
from tidelog.wal.log.tenure import Tenure
from tidelog.workers.offload import InlineOffload

GRACE = 600.0
ME = Incarnation(BrokerId(1), Epoch(1))
TENURES = (Tenure(LeaderEpoch(0), ME, None),)


class Cluster:
    """The metadata log: its present state, and the state that this process has read."""

    def __init__(self) -> None:
        self.state = ClusterState()
        self.truth = ClusterState()

    async def refresh(self) -> ClusterState:
        self.state = self.truth
        return self.state

    def create(self, topic_id: TopicId) -> None:
        topic = Topic(topic_id, f"topic-{topic_id}", False, {}, (TENURES,))
        self.truth = replace(self.truth, topics={**self.truth.topics, topic_id: topic})

    def delete(self, topic_id: TopicId) -> None:
        topics = {key: topic for key, topic in self.truth.topics.items() if key != topic_id}
        deleted = {**self.truth.deleted, topic_id: 1}
        self.truth = replace(self.truth, topics=topics, deleted=deleted)


class World:
    """A bucket with one topic, and a collector."""

    def __init__(self, loop: SimulatedLoop) -> None:
        self.clock = SimulatedClock(loop)
        self.store = MemoryStore(self.clock)
        self.entropy = SeededEntropy(1)
        self.cluster = Cluster()
        self.cluster.create(TOPIC_ID)
        self.metrics = CollectorMetrics()
        self.deleter = Deleter(self.store, self.clock, NO_CRASH_POINTS, self.metrics, 1.0)
        self.collector = TableCollector(
            self.store,
            self.clock,
            self.entropy,
            InlineOffload(),
            self.cluster,
            ME,
            1800.0,
            GRACE,
            MarkFile(self.store, self.clock, InlineOffload(), ME.broker_id, GRACE),
            self.deleter,
            self.metrics,
        )

    async def open(self, topic_id: TopicId = TOPIC_ID) -> TableLog:
        return await TableLog.open(
            self.store, self.clock, self.entropy, InlineOffload(), topic_id, "flights", GRACE
        )

    async def put(self, segment: Segment, topic_id: TopicId = TOPIC_ID) -> float:
        """Store a segment. Returns the time at which the put began."""
        begun_at = self.clock.monotonic()
        await self.store.put(segment.key(topic_id), b"rows")
        return begun_at

    async def segments(self) -> list[str]:
        keys = [meta.key async for meta in self.store.list("topics/")]
        return [key.rpartition("/")[2][18:20] for key in keys if key.endswith(".parquet")]

    async def collect(self, passes: int = 1, seconds: float = 700.0) -> None:
        for _ in range(passes):
            await self.collector.collect()
            await self.deleter.drain()
            await self.clock.sleep(seconds)


def tell(story: Callable[[World], Awaitable[None]]) -> None:
    """Run a story in virtual time."""

    async def main(loop: SimulatedLoop) -> None:
        await story(World(loop))

    with SimulatedLoop(1) as loop:
        loop.run(main(loop), seconds_max=1e6)
        assert loop.unhandled == []


def segment(base: int, number: int = 1) -> Segment:
    return listed(0, base, base + 9, number)


async def commit(log: TableLog, each: Segment, begun_at: float | None = None) -> object:
    base, last = each.name.base_offset, each.name.last_offset
    return await log.commit((advance(0, base, last + 1, each),), begun_at)


def test_segments_of_the_table_stay() -> None:
    async def story(world: World) -> None:
        log = await world.open()
        for base in (0, 10, 20):
            assert await commit(log, segment(base), await world.put(segment(base)))
        await world.collect(passes=5)
        assert await world.segments() == ["00", "10", "20"]
        assert world.metrics.objects == {}

    tell(story)


def test_a_segment_that_was_removed_goes_after_the_grace() -> None:
    async def story(world: World) -> None:
        log = await world.open()
        for base in (0, 10):
            await commit(log, segment(base), await world.put(segment(base)))
        removed = PartitionChange(partition=0, removed=(segment(0).name,))
        assert await log.commit((removed,)) == TableCommitted(2)
        await world.collect(seconds=GRACE - 10)
        await world.collect(seconds=20)
        assert await world.segments() == ["00", "10"]
        await world.collect()
        assert await world.segments() == ["10"]
        assert world.metrics.objects == {"topics": 1}

    tell(story)


def test_a_topic_with_more_objects_than_one_look_takes_is_collected_to_its_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The first objects of a large topic stay for ever, and hide none of the later ones."""
    monkeypatch.setattr(table_collector, "TOPIC_OBJECTS_MAX", 3)

    async def story(world: World) -> None:
        log = await world.open()
        for base in (0, 10, 20, 30, 40):
            await commit(log, segment(base), await world.put(segment(base)))
        for base in (30, 40):
            removed = PartitionChange(partition=0, removed=(segment(base).name,))
            assert isinstance(await log.commit((removed,)), TableCommitted)
        await world.collect(passes=3)
        assert await world.segments() == ["00", "10", "20"]

    tell(story)


def test_a_segment_whose_commit_never_came_goes_when_the_table_has_gone_on() -> None:
    async def story(world: World) -> None:
        log = await world.open()
        await commit(log, segment(0), await world.put(segment(0)))
        await world.put(segment(10, number=2))
        await world.clock.sleep(10)
        # A commit of another process in time proves nothing: a stalled writer that read it may
        # still go on.
        await commit(log, segment(10), await world.put(segment(10)))
        await world.collect(passes=1)
        assert len(await world.segments()) == 3
        await commit(log, segment(20), await world.put(segment(20)))
        await world.collect(passes=2)
        assert await world.segments() == ["00", "10", "20"]
        assert log.state.version == (await world.open()).state.version, "no empty commit was due"

    tell(story)


def test_an_empty_commit_fences_writers_of_an_idle_table() -> None:
    async def story(world: World) -> None:
        log = await world.open()
        await commit(log, segment(0), await world.put(segment(0)))
        await world.put(segment(10))
        await world.collect(passes=2)
        assert (await world.open()).state.version == 1
        assert await world.segments() == ["00", "10"]
        await world.collect(passes=2)
        assert await world.segments() == ["00"]
        await world.collect(passes=4)
        assert (await world.open()).state.version == 1, "one empty commit is enough"
        assert await commit(log, segment(10, 7), await world.put(segment(10, 7))) == TableCommitted(
            2
        )

    tell(story)


def test_a_table_that_never_had_a_commit_is_looked_after_too() -> None:
    async def story(world: World) -> None:
        await world.put(segment(0))
        await world.collect(passes=4)
        assert await world.segments() == []
        log = await world.open()
        assert (log.state.version, log.state.partition(0).next_offset) == (0, 0)

    tell(story)


def test_a_writer_that_stalled_before_its_commit_is_told_to_write_again() -> None:
    async def story(world: World) -> None:
        log = await world.open()
        await commit(log, segment(0), await world.put(segment(0)))
        begun_at = await world.put(segment(10))
        await world.clock.sleep(GRACE / 2 + 1)
        with pytest.raises(SegmentsTooOld):
            await commit(log, segment(10), begun_at)
        assert await commit(log, segment(10, 2), await world.put(segment(10, 2))) == TableCommitted(
            1
        )

    tell(story)


def test_a_writer_that_stalled_within_its_commit_finds_its_number_taken() -> None:
    """The writer had checked its clock already. The segment is deleted, and no table ever lists
    it."""

    async def story(world: World) -> None:
        log = await world.open()
        await commit(log, segment(0), await world.put(segment(0)))
        begun_at = await world.put(segment(10))
        late = encode_commit(commit_of(advance(0, 10, 20, segment(10))))
        await world.collect(passes=4)
        assert await world.segments() == ["00"]
        with pytest.raises(PreconditionFailed):
            await world.store.put(log.key(1), late, IfAbsent())
        # The writer reads the entry that took the number, and checks its clock again.
        with pytest.raises(SegmentsTooOld):
            await commit(log, segment(10), begun_at)
        assert (await world.open()).state.partition(0).next_offset == 10

    tell(story)


def test_the_table_of_a_deleted_topic_goes_whole() -> None:
    async def story(world: World) -> None:
        other = UUID(int=5)
        world.cluster.create(other)
        for topic_id in (TOPIC_ID, other):
            log = await world.open(topic_id)
            await commit(log, segment(0), await world.put(segment(0), topic_id))
            await log.write_checkpoint()
        world.cluster.delete(other)
        await world.collect(passes=3)
        left = [meta.key async for meta in world.store.list("topics/")]
        assert left
        assert all(str(TOPIC_ID) in key for key in left)
        assert world.metrics.objects == {"topics": 4}

    tell(story)


def test_a_topic_that_the_collector_does_not_know_yet_keeps_its_segments() -> None:
    async def story(world: World) -> None:
        await world.cluster.refresh()
        new = UUID(int=5)
        world.cluster.create(new)
        log = await world.open(new)
        await commit(log, segment(0), await world.put(segment(0), new))
        await world.collect(passes=3)
        assert len(await world.segments()) == 1

    tell(story)


def test_an_unreadable_table_keeps_all_its_segments() -> None:
    async def story(world: World) -> None:
        log = await world.open()
        for base in (0, 10):
            await commit(log, segment(base), await world.put(segment(base)))
        await log.commit((PartitionChange(partition=0, removed=(segment(0).name,)),))
        await world.store.put(log.key(1), b"something else")
        await world.collect(passes=3)
        assert await world.segments() == ["00", "10"]
        assert world.metrics.failures == 3

    tell(story)


def test_a_table_of_a_newer_format_is_left_alone_and_the_others_are_collected() -> None:
    async def story(world: World) -> None:
        newer = UUID(int=5)
        world.cluster.create(newer)
        described = metadata(newer, "newer", 0)
        described["configuration"] = {FORMAT_PROPERTY: str(FORMAT_VERSION + 1)}
        first = replace(commit_of(advance(0, 0, 10, segment(0))), metadata=described)
        await world.store.put(commit_key(newer, 0), encode_commit(first))
        await world.put(segment(20), newer)
        log = await world.open()
        await commit(log, segment(0), await world.put(segment(0)))
        await log.commit((PartitionChange(partition=0, removed=(segment(0).name,)),))
        await world.collect(passes=3)
        assert await world.segments() == ["20"]
        assert world.metrics.failures == 3

    tell(story)


def test_a_broker_whose_tables_another_one_collects_counts_no_superfluous_segments() -> None:
    async def story(world: World) -> None:
        alone = replace(cluster(1), topics=world.cluster.truth.topics)
        shared = (after(alone, None, registered(number)) for number in count(2))
        world.cluster.state = world.cluster.truth = alone
        await world.put(segment(0))
        collecting = asyncio.create_task(world.collector.run())
        await world.clock.sleep(100)
        assert world.metrics.marked == {"topics": 1}
        world.cluster.state = world.cluster.truth = next(
            state for state in shared if not is_responsible(state, ME, SharedWork.TABLES)
        )
        await world.clock.sleep(3600)
        assert world.metrics.marked == {"topics": 0}
        collecting.cancel()

    tell(story)
