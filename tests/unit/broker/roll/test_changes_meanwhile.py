"""A partition or its table changes while it is rolled."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import ParamSpec, TypeVar

import pytest

from tests.unit.broker.one_broker import World, batch, run, until
from tests.unit.broker.rolled import flush, hosted, offsets, open_table, world
from tests.unit.storage.segments import advance
from tests.unit.wal.gated_store import GatedStore
from tidelog.broker.partitions.partitions import PartitionError
from tidelog.broker.roll import segment_builder
from tidelog.broker.tables.table_source import missing_extent
from tidelog.clock import SystemClock
from tidelog.identifiers import Offset
from tidelog.storage.object_store import ByteRange, StoredObject, Suffix
from tidelog.storage.stores.memory import MemoryStore
from tidelog.storage.superseded import Superseded
from tidelog.workers.offload import InlineOffload, RemoteObject

P = ParamSpec("P")
T = TypeVar("T")


class InterruptedStore(MemoryStore):
    """Runs a change when a WAL object is read for the first time from now on."""

    meanwhile: Callable[[], Awaitable[object]] | None = None

    async def get(self, key: str, byte_range: ByteRange | Suffix | None = None) -> StoredObject:
        stored = await super().get(key, byte_range)
        if key.startswith("wal/") and self.meanwhile is not None:
            meanwhile, self.meanwhile = self.meanwhile, None
            await meanwhile()
        return stored


class InterruptedPlace(InlineOffload):
    """Runs a change while the next roll begins in the process that makes segments."""

    meanwhile: Callable[[], Awaitable[object]] | None = None

    async def place(
        self, factory: Callable[P, T], *args: P.args, **kwargs: P.kwargs
    ) -> RemoteObject[T]:
        if self.meanwhile is not None:
            meanwhile, self.meanwhile = self.meanwhile, None
            await meanwhile()
        return await super().place(factory, *args, **kwargs)


def deleted_meanwhile(
    here: World, interrupted: InterruptedStore | InterruptedPlace, log_start: int, left: list[int]
) -> None:
    """While twelve records are rolled, those below `log_start` are deleted. The table then has the
    records of `left`."""

    async def story() -> None:
        async with here.broker() as one:
            topic_id = await one.create_topic()
            for _ in range(3):
                await one.produce(batch(b"a", b"b", b"c", b"d"))
            appender, partition = one.broker.writes.appender, hosted(one)
            interrupted.meanwhile = lambda: appender.delete_records(partition, Offset(log_start))
            await flush(one)
            assert interrupted.meanwhile is None
            assert (partition.log.log_start, partition.log.table_next) == (log_start, 12)
            assert await offsets(here.store, topic_id) == left
            await one.produce(batch(b"e"))
            assert [each.offset for each in await one.read_all()] == list(range(log_start, 13))

    run(story)


@pytest.mark.parametrize(
    ("log_start", "left"), [(9, [0, 1, 2, 3, 8, 9, 10, 11]), (12, [0, 1, 2, 3])]
)
def test_records_that_are_deleted_while_they_are_rolled_do_not_stop_the_roll(
    monkeypatch: pytest.MonkeyPatch, log_start: int, left: list[int]
) -> None:
    """Records rolled before the deletion lie below the log start, so no reader sees them."""
    bounds = segment_builder.SegmentBounds(piece_bytes_max=1)
    monkeypatch.setattr("tidelog.broker.clean.table_path.SegmentBounds", lambda: bounds)
    store = InterruptedStore(SystemClock())
    deleted_meanwhile(world(store, tail_cache_bytes=0), store, log_start, left)


@pytest.mark.parametrize(("log_start", "left"), [(9, [8, 9, 10, 11]), (12, [])])
def test_records_that_are_deleted_while_a_roll_begins_do_not_stop_the_roll(
    log_start: int, left: list[int]
) -> None:
    here = world()
    here.rolling = rolling = InterruptedPlace()
    deleted_meanwhile(here, rolling, log_start, left)


def test_batches_that_are_merged_while_they_are_rolled_are_taken_up_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The merged extent begins below the offset up to which the roll has read."""
    bounds = segment_builder.SegmentBounds(piece_bytes_max=1)
    monkeypatch.setattr("tidelog.broker.clean.table_path.SegmentBounds", lambda: bounds)
    store = InterruptedStore(SystemClock())
    here = world(store, tail_cache_bytes=0, wal_objects_max=2)

    async def story() -> None:
        async with here.broker() as one:
            topic_id = await one.create_topic()
            for _ in range(4):
                await one.produce(batch(b"a", b"b", b"c"))
            log = hosted(one).log
            assert len(log.extents) == 4

            async def meanwhile() -> None:
                await one.broker.writes.checkpointer.checkpoint()
                await one.broker.maintenance.merger.maintain()
                assert len(log.extents) == 1

            store.meanwhile = meanwhile
            await flush(one)
            assert store.meanwhile is None
            assert await offsets(store, topic_id) == list(range(12))

    run(story)


def test_a_roll_goes_on_behind_records_that_another_has_rolled_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A reader notices the change first, in the middle of the roll."""
    bounds = segment_builder.SegmentBounds(piece_bytes_max=1)
    monkeypatch.setattr("tidelog.broker.clean.table_path.SegmentBounds", lambda: bounds)
    store = InterruptedStore(SystemClock())
    here = world(store, tail_cache_bytes=0)

    async def story() -> None:
        async with here.broker() as one:
            topic_id = await one.create_topic()
            for _ in range(3):
                await one.produce(batch(b"a", b"b", b"c", b"d"))
            log = hosted(one).log

            async def meanwhile() -> None:
                await (await open_table(store, topic_id)).commit((advance(0, 0, 8),))
                found = await missing_extent(one.broker.topic_tables.tables, log, log.extents[0])
                assert isinstance(found, Superseded)

            store.meanwhile = meanwhile
            await flush(one)
            assert store.meanwhile is None
            assert log.table_next == 12
            assert await offsets(store, topic_id) == [8, 9, 10, 11]

    run(story)


def test_a_table_that_another_has_brought_further_is_gone_on_from() -> None:
    """E1, E2: our commit is refused, and no record is in the table twice."""
    here = world()

    async def story() -> None:
        async with here.broker() as one:
            topic_id = await one.create_topic()
            await one.produce(batch(b"0"))
            await flush(one)
            await one.produce(batch(b"1", b"2"))
            other = await open_table(here.store, topic_id)
            await other.commit((advance(0, 1, 3),))
            await one.produce(batch(b"3"))
            await flush(one)
            assert hosted(one).log.table_next == 4
            assert await offsets(here.store, topic_id) == [0, 3]
            assert one.broker.topic_tables.roller.metrics.refusals == 1

    run(story)


def test_an_object_that_is_missing_because_the_table_has_it_is_no_fault() -> None:
    """F4: the reader goes on with newer objects."""
    here = world(tail_cache_bytes=0)

    async def story() -> None:
        async with here.broker() as one:
            topic_id = await one.create_topic()
            await one.produce(batch(b"0"))
            await flush(one)
            await one.produce(batch(b"1"))
            (extent,) = hosted(one).log.extents
            other = await open_table(here.store, topic_id)
            await other.commit((advance(0, 1, 2),))
            await here.store.delete(extent.key)
            await one.produce(batch(b"2"))
            await flush(one)
            assert await offsets(here.store, topic_id) == [0, 2]
            assert one.broker.topic_tables.roller.faults() == []

    run(story)


def test_a_topic_that_is_deleted_meanwhile_gets_no_table() -> None:
    gated = GatedStore(MemoryStore(SystemClock()))
    gated.open()
    here = world(gated)

    async def story() -> None:
        async with here.broker() as one:
            topic_id = await one.create_topic()
            await one.produce(batch(b"0"))
            gated.hold("/partition=")
            waiting = one.broker.topic_tables.roller.flush(hosted(one))
            await until(lambda: gated.waiting)
            await one.delete_topic(topic_id)
            gated.open()
            with pytest.raises(PartitionError):
                await waiting
            keys = [meta.key async for meta in gated.list(f"topics/{topic_id}/_delta_log/")]
            assert keys == []
            other = await one.create_topic("other")
            await one.produce(batch(b"0"), topic="other")
            await flush(one, topic="other")
            assert await offsets(gated, other) == [0]

    run(story)


@pytest.mark.parametrize("is_begun", [False, True])
def test_a_client_that_waits_for_a_roll_hears_that_another_has_rolled_all(
    monkeypatch: pytest.MonkeyPatch, is_begun: bool
) -> None:
    """A reader notices it first: before the roll, or in the middle of it."""
    bounds = segment_builder.SegmentBounds(piece_bytes_max=1)
    monkeypatch.setattr("tidelog.broker.clean.table_path.SegmentBounds", lambda: bounds)
    store = InterruptedStore(SystemClock())
    here = world(store, tail_cache_bytes=0)

    async def story() -> None:
        async with here.broker() as one:
            topic_id = await one.create_topic()
            for _ in range(3):
                await one.produce(batch(b"a", b"b", b"c", b"d"))
            log = hosted(one).log

            async def meanwhile() -> None:
                await (await open_table(store, topic_id)).commit((advance(0, 0, 12),))
                found = await missing_extent(one.broker.topic_tables.tables, log, log.extents[0])
                assert isinstance(found, Superseded)

            roller = one.broker.topic_tables.roller
            if is_begun:
                store.meanwhile = meanwhile
                done = roller.flush(hosted(one))
            else:
                await (await open_table(store, topic_id)).commit((advance(0, 0, 12),))
                done = roller.flush(hosted(one))
                found = await missing_extent(one.broker.topic_tables.tables, log, log.extents[0])
                assert isinstance(found, Superseded)
            async with asyncio.timeout(5):
                await done
            assert log.table_next == 12

    run(story)
