"""Rolls on a whole broker: what gets into the table, when, and what is left when something fails
at whichever step."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import weakref
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, ParamSpec, TypeVar
from uuid import UUID

import pytest

from tests.unit.broker.one_broker import TOPIC, OneBroker, World, batch, run
from tests.unit.broker.rolled import (
    KillAt,
    Killed,
    flush,
    hosted,
    offsets,
    open_table,
    rows,
    segments,
    table_state,
)
from tests.unit.broker.transactional_client import (
    GROUP,
    SECOND,
    TransactionalClient,
    find,
    loaded,
)
from tests.unit.storage.segments import advance
from tests.unit.wal.gated_store import GatedStore
from tidelog.broker.partitions.partitions import PartitionError
from tidelog.broker.roll import segment_builder
from tidelog.broker.roll.source import RollSource
from tidelog.broker.tables.table_source import has_gone_on
from tidelog.cli.worker import COMMAND
from tidelog.clock import SystemClock
from tidelog.crash_points import NO_CRASH_POINTS, CrashPoint
from tidelog.errors import CorruptObject
from tidelog.identifiers import Offset
from tidelog.offload import InlineOffload, RemoteObject
from tidelog.process_offload import ProcessOffload
from tidelog.protocol.error_codes import ErrorCode
from tidelog.records.compression import Compression
from tidelog.records.records import NewRecord, decode_records, encode_batch
from tidelog.storage.object_store import (
    Buffer,
    ByteRange,
    Condition,
    ObjectStore,
    StoredObject,
    StoreNotApplied,
    Suffix,
)
from tidelog.storage.segment.segment_writer import WrittenSegment
from tidelog.storage.stores.memory import MemoryStore
from tidelog.wal.roll.segment_roll import SegmentRoll

OK = ErrorCode.NONE
SETTINGS = {"offsets_topic_num_partitions": 1, "transaction_state_log_num_partitions": 1}
ROLL_STEPS = (
    CrashPoint.SEGMENT_READY,
    CrashPoint.SEGMENT_STORED,
    CrashPoint.TABLE_COMMIT,
    CrashPoint.TABLE_COMMITTED,
)

P = ParamSpec("P")
T = TypeVar("T")


def world(store: ObjectStore | None = None, **settings: object) -> World:
    return World(store or MemoryStore(SystemClock()), **{**SETTINGS, **settings})


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidelog.broker.roll.roller.SWEEP_SECONDS", 0.01)


async def until(is_so: Callable[[], object]) -> None:
    """Wait for something that comes about by itself."""
    for _ in range(1_000_000):
        if is_so():
            return
        await asyncio.sleep(0)
    raise AssertionError("it did not come about")


async def settled(one: OneBroker, offset: int, partition: int = 0) -> None:
    """Wait until the table has all below an offset."""
    await until(lambda: hosted(one, partition).log.table_next >= offset)


async def decided(one: OneBroker, offset: int) -> None:
    """Wait until the last stable offset has come so far."""
    await until(lambda: hosted(one).log.last_stable_offset >= offset)


# What gets into the table.


def test_what_is_decided_is_in_the_table_when_a_flush_is_done() -> None:
    here = world()

    async def story() -> None:
        async with here.broker() as one:
            topic_id = await one.create_topic()
            await one.produce(batch(b"a", None, b""))
            headers = [("h", b"1"), ("n", None)]
            await one.produce(encode_batch([NewRecord(b"d", None, headers, -1)]))
            await flush(one)
            found = await rows(here.store, topic_id)
            assert [(row["offset"], row["key"], row["value"]) for row in found] == [
                (0, b"k0", b"a"),
                (1, b"k1", None),
                (2, b"k2", b""),
                (3, None, b"d"),
            ]
            stamps = [row["timestamp"] and row["timestamp"].timestamp() for row in found]
            assert stamps == [1.0, 1.001, 1.002, None]
            assert found[3]["headers"] == [
                {"key": "h", "value": b"1"},
                {"key": "n", "value": None},
            ]
            log = hosted(one).log
            assert (log.table_next, len(log.extents)) == (4, 0)
            # Its size is that of its segments now.
            (key,) = await segments(here.store, topic_id)
            stored = await one.broker.topic_tables.tables.stored_bytes(topic_id)
            assert stored == {0: (await here.store.head(key)).size}
            assert (await table_state(here.store, topic_id)).metadata["name"] == TOPIC
            # Nothing new: nothing is committed.
            await flush(one)
            assert (await table_state(here.store, topic_id)).version == 0
            await one.produce(batch(b"e"))
            await flush(one)
            assert await offsets(here.store, topic_id) == [0, 1, 2, 3, 4]

    run(story)


@pytest.mark.parametrize("codec", list(Compression))
def test_every_codec_is_unpacked(codec: Compression) -> None:
    here = world()

    async def story() -> None:
        async with here.broker() as one:
            topic_id = await one.create_topic()
            for first in range(0, 30, 10):
                records = [NewRecord(b"v%d" % n * 20, None) for n in range(first, first + 10)]
                await one.produce(encode_batch(records, compression=codec))
            await flush(one)
            found = await rows(here.store, topic_id)
            assert [row["value"] for row in found] == [b"v%d" % n * 20 for n in range(30)]
            read = await one.read_all()
            assert [each.value for each in read] == [row["value"] for row in found]

    run(story)


@pytest.mark.parametrize(
    ("tail_cache_bytes", "tail_read_bytes"), [(1 << 20, 1 << 16), (0, 1 << 16), (0, 128)]
)
def test_aborted_records_and_markers_are_left_out_and_offsets_kept(
    tail_cache_bytes: int, tail_read_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`tail_read_bytes`: with few, an object's index takes a second read."""
    monkeypatch.setattr("tidelog.wal.read.index.TAIL_READ_BYTES", tail_read_bytes)
    here = world(tail_cache_bytes=tail_cache_bytes)

    async def story() -> None:
        async with here.broker() as one:
            await loaded(one)
            topic_id = await one.create_topic()
            first = TransactionalClient(one, "first", SECOND)
            second = TransactionalClient(one, "second", SECOND)
            assert await first.init() is OK
            assert await second.init() is OK
            assert await first.send(b"yes") is OK
            assert await second.send(b"no") is OK
            await one.produce(batch(b"plain"))
            assert await first.send(b"yes too") is OK
            assert await second.abort() is OK
            assert await first.commit() is OK
            assert await first.send(b"again") is OK
            assert await first.commit() is OK
            await decided(one, 8)
            await flush(one)
            found = await rows(here.store, topic_id)
            assert [(row["offset"], row["value"]) for row in found] == [
                (0, b"yes"),
                (2, b"plain"),
                (3, b"yes too"),
                (6, b"again"),
            ]
            ordinals = [row["transaction"] for row in found]
            assert ordinals[0] == ordinals[2] is not None
            assert ordinals[1] is None
            assert ordinals[3] == ordinals[0] + 1
            assert found[0]["producer_id"] == first.producer_id
            assert (await table_state(here.store, topic_id)).partition(0).next_offset == 8

    run(story)


def test_an_open_transaction_holds_back_what_lies_behind_its_begin() -> None:
    here = world()

    async def story() -> None:
        async with here.broker() as one:
            await loaded(one)
            topic_id = await one.create_topic()
            client = TransactionalClient(one)
            assert await client.init() is OK
            await one.produce(batch(b"before"))
            assert await client.send(b"in it") is OK
            await one.produce(batch(b"behind"))
            await flush(one)
            assert await offsets(here.store, topic_id) == [0]
            await flush(one)
            assert (await table_state(here.store, topic_id)).version == 0
            assert await client.commit() is OK
            await decided(one, 4)
            await flush(one)
            assert await offsets(here.store, topic_id) == [0, 1, 2]

    run(story)


def test_a_range_without_a_committed_row_advances_the_table_without_a_file() -> None:
    here = world()

    async def story() -> None:
        async with here.broker() as one:
            await loaded(one)
            topic_id = await one.create_topic()
            client = TransactionalClient(one)
            assert await client.init() is OK
            assert await client.send(b"no") is OK
            assert await client.abort() is OK
            await decided(one, 2)
            await flush(one)
            state = await table_state(here.store, topic_id)
            assert (state.partition(0).next_offset, state.segment_count) == (2, 0)
            assert await segments(here.store, topic_id) == []

    run(story)


def test_deleted_records_are_left_out() -> None:
    here = world()

    async def story() -> None:
        async with here.broker() as one:
            topic_id = await one.create_topic()
            for _ in range(3):
                await one.produce(batch(b"a", b"b", b"c", b"d"))
            await one.broker.writes.appender.delete_records(hosted(one), 6)
            await flush(one)
            assert await offsets(here.store, topic_id) == list(range(6, 12))
            (stored,) = (await table_state(here.store, topic_id)).partition(0).segments
            assert stored.segment.name.base_offset == 6
            await one.produce(batch(b"e"))
            await one.broker.writes.appender.delete_records(hosted(one), 13)
            await flush(one)
            state = await table_state(here.store, topic_id)
            assert (state.partition(0).next_offset, state.segment_count) == (13, 1)

    run(story)


class InterruptedStore(MemoryStore):
    """Something happens while a WAL object is read for the first time from now on."""

    meanwhile: Callable[[], Awaitable[object]] | None = None

    async def get(self, key: str, byte_range: ByteRange | Suffix | None = None) -> StoredObject:
        stored = await super().get(key, byte_range)
        if key.startswith("wal/") and self.meanwhile is not None:
            meanwhile, self.meanwhile = self.meanwhile, None
            await meanwhile()
        return stored


class InterruptedPlace(InlineOffload):
    """Something happens while the next roll is begun where rolls are made."""

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
    """Twelve records are rolled, of which those below `log_start` are deleted meanwhile: `left` are
    in the table then."""

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
    """What was taken up before lies below the log's start: nobody is shown it."""
    bounds = segment_builder.SegmentBounds(piece_bytes_max=1)
    monkeypatch.setattr("tidelog.broker.clean.table_path.SegmentBounds", lambda: bounds)
    store = InterruptedStore(SystemClock())
    deleted_meanwhile(world(store, tail_cache_bytes=0), store, log_start, left)


@pytest.mark.parametrize(("log_start", "left"), [(9, [8, 9, 10, 11]), (12, [])])
def test_records_that_are_deleted_while_a_roll_is_begun_do_not_stop_it(
    log_start: int, left: list[int]
) -> None:
    here = world()
    here.rolling = rolling = InterruptedPlace()
    deleted_meanwhile(here, rolling, log_start, left)


def test_batches_that_are_merged_while_they_are_rolled_are_taken_up_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The extent in which the roll goes on begins below what it has taken up then."""
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
                await one.broker.upkeep.merger.maintain()
                assert len(log.extents) == 1

            store.meanwhile = meanwhile
            await flush(one)
            assert store.meanwhile is None
            assert await offsets(store, topic_id) == list(range(12))

    run(story)


def test_a_roll_goes_on_behind_what_another_has_rolled_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A reader finds it out first, in the midst of the roll."""
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
                assert await has_gone_on(one.broker.topic_tables.tables, log, log.extents[0])

            store.meanwhile = meanwhile
            await flush(one)
            assert store.meanwhile is None
            assert log.table_next == 12
            assert await offsets(store, topic_id) == [8, 9, 10, 11]

    run(story)


def test_a_large_partition_becomes_many_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    bounds = segment_builder.SegmentBounds(raw_bytes_max=1000, piece_bytes_max=400)
    monkeypatch.setattr("tidelog.broker.clean.table_path.SegmentBounds", lambda: bounds)
    here = world()

    async def story() -> None:
        async with here.broker() as one:
            topic_id = await one.create_topic()
            for _ in range(20):
                await one.produce(batch(bytes(300)))
            await flush(one)
            state = await table_state(here.store, topic_id)
            names = [stored.segment.name for stored in state.partition(0).segments]
            assert len(names) == 5
            assert [name.base_offset for name in names] == [0, 4, 8, 12, 16]
            assert await offsets(here.store, topic_id) == list(range(20))

    run(story)


def test_partitions_of_a_topic_go_on_in_one_commit() -> None:
    here = world(roll_age_ms=50)

    async def story() -> None:
        async with here.broker() as one:
            topic_id = await one.create_topic(partitions=10)
            await asyncio.gather(*(one.produce(batch(b"%d" % n), n) for n in range(10)))
            for number in range(10):
                await settled(one, 1, number)
            assert (await table_state(here.store, topic_id)).version < 3
            for number in range(10):
                assert await offsets(here.store, topic_id, number) == [0]

    run(story)


class WatchedStore(MemoryStore):
    """Knows what was read of the WAL; `refused` of those reads fail."""

    def __init__(self) -> None:
        super().__init__(SystemClock())
        self.wal_gets: list[str] = []
        self.refused = 0

    async def get(self, key: str, byte_range: ByteRange | Suffix | None = None) -> StoredObject:
        if key.startswith("wal/"):
            self.wal_gets.append(key)
            if self.refused:
                self.refused -= 1
                raise StoreNotApplied(key, "not now")
        return await super().get(key, byte_range)


async def in_the_same_objects(one: OneBroker, partitions: int, rounds: int) -> tuple[UUID, int]:
    """A topic each of whose partitions has a record in each of some objects; how many these are."""
    topic_id = await one.create_topic(partitions=partitions)
    for number in range(rounds):
        value = b"%d" % number
        await asyncio.gather(*(one.produce(batch(value), each) for each in range(partitions)))
    objects = {
        extent.key for number in range(partitions) for extent in hosted(one, number).log.extents
    }
    assert len(objects) < partitions
    return topic_id, len(objects)


async def flush_all(one: OneBroker, partitions: int) -> None:
    await asyncio.gather(*(flush(one, number) for number in range(partitions)))


def test_small_partitions_are_read_together_one_range_an_object() -> None:
    store = WatchedStore()
    here = world(store, tail_cache_bytes=0)

    async def story() -> None:
        async with here.broker() as one:
            topic_id, objects = await in_the_same_objects(one, 20, 5)
            store.wal_gets.clear()
            await flush_all(one, 20)
            assert len(store.wal_gets) == objects
            for number in range(20):
                found = await rows(store, topic_id, number)
                assert [row["value"] for row in found] == [b"%d" % n for n in range(5)]
            # Nothing of it is held any longer.
            source = one.broker.topic_tables.roller._builder._source
            assert source._gathered.memory.size_bytes == 0

    run(story)


def test_what_could_not_be_read_together_is_read_by_each_for_itself() -> None:
    store = WatchedStore()
    here = world(store, tail_cache_bytes=0)

    async def story() -> None:
        async with here.broker() as one:
            topic_id, objects = await in_the_same_objects(one, 20, 5)
            store.refused = objects
            await flush_all(one, 20)
            assert one.broker.topic_tables.roller.metrics.failures == 0
            for number in range(20):
                assert await offsets(store, topic_id, number) == list(range(5))

    run(story)


@pytest.mark.parametrize("damage", ["spoilt", "missing"])
def test_of_what_is_read_together_a_corrupt_object_stops_only_whose_records_are_in_it(
    damage: str,
) -> None:
    store = WatchedStore()
    here = world(store, tail_cache_bytes=0)

    async def story() -> None:
        async with here.broker() as one:
            topic_id, _ = await in_the_same_objects(one, 20, 2)
            await one.produce(batch(b"last"), 7)
            *_, extent = hosted(one, 7).log.extents
            if damage == "missing":
                await store.delete(extent.key)
            else:
                await spoil(store, extent.key, extent.position + extent.length - 1)
            done = await asyncio.gather(
                *(flush(one, number) for number in range(20)), return_exceptions=True
            )
            assert [number for number, error in enumerate(done) if error is not None] == [7]
            assert extent.key in str(done[7])
            for number in set(range(20)) - {7}:
                assert await offsets(store, topic_id, number) == [0, 1]

    run(story)


def test_many_extents_are_taken_up_some_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    bounds = segment_builder.SegmentBounds(piece_extents_max=3)
    monkeypatch.setattr("tidelog.broker.clean.table_path.SegmentBounds", lambda: bounds)
    here = world()

    async def story() -> None:
        async with here.broker() as one:
            topic_id = await one.create_topic()
            for number in range(20):
                await one.produce(batch(b"%d" % number))
            await flush(one)
            (stored,) = (await table_state(here.store, topic_id)).partition(0).segments
            assert stored.segment.row_count == 20
            assert await offsets(here.store, topic_id) == list(range(20))

    run(story)


def test_internal_topics_are_not_rolled() -> None:
    here = world(roll_bytes=1)

    async def story() -> None:
        async with here.broker() as one:
            await loaded(one)
            await one.create_topic()
            client = TransactionalClient(one)
            assert await client.init() is OK
            assert await client.send(b"a") is OK
            await find(one, GROUP, 0)
            assert await client.commit_offset(7) is OK
            assert await client.commit() is OK
            await settled(one, 2)
        keys = [meta.key async for meta in here.store.list("topics/")]
        assert {key.split("/")[1] for key in keys} == {
            str(topic.topic_id)
            for topic in one.broker.membership.metadata.state.topics.values()
            if not topic.internal
        }

    run(story)


# When.


@pytest.mark.parametrize(
    "settings", [{"roll_bytes": 1}, {"roll_age_ms": 1}, {"roll_wal_max_bytes": 0}]
)
def test_size_age_and_pressure_bring_it_about(settings: dict[str, int]) -> None:
    here = world(**{"roll_min_bytes": 1, **settings})

    async def story() -> None:
        async with here.broker() as one:
            topic_id = await one.create_topic()
            await one.produce(batch(b"a"))
            await settled(one, 1)
            await one.produce(batch(b"b"))
            await settled(one, 2)
            assert await offsets(here.store, topic_id) == [0, 1]

    run(story)


def test_a_topics_own_settings_count_if_they_are_less() -> None:
    here = world(roll_age_ms=3_600_000)

    async def story() -> None:
        async with here.broker() as one:
            await one.create_topic(segment_ms="1")
            await one.create_topic("slow")
            await one.produce(batch(b"a"), topic="slow")
            await one.produce(batch(b"a"))
            await settled(one, 1)
            assert hosted(one, topic="slow").log.table_next == 0

    run(story)


# What is left by whom.


@pytest.mark.parametrize("point", ROLL_STEPS)
@pytest.mark.parametrize("politely_before", [True, False])
def test_a_death_at_any_step_loses_and_doubles_nothing(
    point: CrashPoint, politely_before: bool
) -> None:
    here = world()

    async def story() -> None:
        here.crash_points = NO_CRASH_POINTS
        async with here.broker(politely=politely_before) as one:
            topic_id = await one.create_topic()
            await one.produce(batch(b"0", b"1"))
        here.crash_points = KillAt(point)
        async with here.broker(politely=False) as one:
            await one.produce(batch(b"2"))
            one.broker.topic_tables.roller.flush(hosted(one))
            with pytest.raises(Killed):
                await one.run
        here.crash_points = NO_CRASH_POINTS
        async with here.broker() as one:
            log = hosted(one).log
            known = (await table_state(here.store, topic_id)).partition(0).next_offset
            assert known == (3 if point is CrashPoint.TABLE_COMMITTED else 0)
            assert log.table_next == known, "it has asked the table"
            await one.produce(batch(b"3"))
            await flush(one)
            found = await rows(here.store, topic_id)
            assert [row["value"] for row in found] == [b"0", b"1", b"2", b"3"]
            read = await one.read_all()
            assert [(each.offset, each.value) for each in read] == [
                (row["offset"], row["value"]) for row in found
            ]
            garbage = point in (CrashPoint.SEGMENT_STORED, CrashPoint.TABLE_COMMIT)
            listed = (await table_state(here.store, topic_id)).segment_count
            assert len(await segments(here.store, topic_id)) == listed + garbage

    run(story)


def test_wal_objects_that_only_an_old_image_refers_to_are_not_missed() -> None:
    """The successor's image is older than the table, and what it refers to is collected (F1)."""
    here = world()

    async def story() -> None:
        async with here.broker(politely=False) as one:
            topic_id = await one.create_topic()
            await one.produce(batch(b"0"))
        # The next incarnation opens with an image that refers to the first one's object.
        async with here.broker(politely=False) as one:
            await one.produce(batch(b"1"))
            keys = {extent.key for extent in hosted(one).log.extents}
            await flush(one)
            # It dies before any checkpoint says so; the image is that of the opening.
        first = min(keys)
        await here.store.delete(first)
        async with here.broker() as one:
            log = hosted(one).log
            assert (log.table_next, log.high_watermark) == (2, 2)
            assert hosted(one).fault is None
            await one.produce(batch(b"2"))
            await flush(one)
            assert await offsets(here.store, topic_id) == [0, 1, 2]

    run(story)


def test_a_table_that_another_has_brought_further_is_gone_on_from() -> None:
    """E1, E2: our commit is refused, and nothing is in the table twice."""
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
    """F4."""
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


class ShakyStore(MemoryStore):
    """Refuses puts of some keys so many times."""

    def __init__(self) -> None:
        super().__init__(SystemClock())
        self.refusals: dict[str, int] = {}

    async def put(
        self, key: str, data: Buffer | Sequence[Buffer], condition: Condition | None = None
    ) -> str:
        for part, left in self.refusals.items():
            if part in key and left:
                self.refusals[part] = left - 1
                raise StoreNotApplied(key, "not now")
        return await super().put(key, data, condition)


def test_a_segment_of_which_a_piece_is_missing_is_not_put(monkeypatch: pytest.MonkeyPatch) -> None:
    """The table would give up the WAL's records for it: it is made anew."""
    monkeypatch.setattr("tidelog.broker.roll.queue.PAUSE_SECONDS_FIRST", 0.01)
    here = world()
    finish, losses = SegmentRoll.finish, [1]

    def losing_finish(roll: SegmentRoll, *args: Any) -> WrittenSegment | None:
        written = finish(roll, *args)
        assert written is not None
        return written._replace(pieces=written.pieces[losses.pop() if losses else 0 :])

    monkeypatch.setattr(SegmentRoll, "finish", losing_finish)

    async def story() -> None:
        async with here.broker() as one:
            topic_id = await one.create_topic()
            await one.produce(batch(b"a", b"b"))
            await flush(one)
            assert not losses
            assert one.broker.topic_tables.roller.metrics.failures == 1
            assert await offsets(here.store, topic_id) == [0, 1]
            put = [meta.key async for meta in here.store.list("topics/")]
            assert len([key for key in put if key.endswith(".parquet")]) == 1

    run(story)


@pytest.mark.parametrize("at_piece", [1, 3])
def test_a_process_that_dies_over_a_roll_is_replaced(
    at_piece: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed for its memory, say: the roll begins anew, in another one."""
    monkeypatch.setattr("tidelog.broker.roll.queue.PAUSE_SECONDS_FIRST", 0.01)
    bounds = segment_builder.SegmentBounds(piece_extents_max=1)
    monkeypatch.setattr("tidelog.broker.clean.table_path.SegmentBounds", lambda: bounds)
    here = world()
    process = here.rolling = ProcessOffload(COMMAND, SystemClock())
    pids: list[int] = []
    read = RollSource.read

    async def killing_read(source: RollSource, *args: Any, **kwargs: Any) -> Any:
        found = await read(source, *args, **kwargs)
        pids.append(await process.run(os.getpid))
        if len(pids) == at_piece:
            os.kill(pids[-1], signal.SIGKILL)
        return found

    monkeypatch.setattr(RollSource, "read", killing_read)

    async def story() -> None:
        async with here.broker() as one:
            topic_id = await one.create_topic()
            for _ in range(4):
                await one.produce(batch(b"a", b"b"))
            await flush(one)
            assert await offsets(here.store, topic_id) == list(range(8))
            assert len(await segments(here.store, topic_id)) == 1
            assert one.broker.topic_tables.roller.metrics.failures == 1

    try:
        run(story)
    finally:
        asyncio.run(process.close())
    assert len(set(pids)) == 2


def test_a_store_that_fails_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidelog.broker.roll.queue.PAUSE_SECONDS_FIRST", 0.01)
    store = ShakyStore()
    here = world(store)

    async def story() -> None:
        async with here.broker() as one:
            topic_id = await one.create_topic()
            await one.produce(batch(b"0"))
            store.refusals = {"/partition=": 2}
            await flush(one)
            assert await offsets(store, topic_id) == [0]
            assert one.broker.topic_tables.roller.metrics.failures == 2
            assert one.broker.topic_tables.roller.hindrance(hosted(one)) is None

    run(story)


def test_a_roll_that_failed_holds_nothing_of_its_segment_while_it_waits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A store that refuses would fill the memory otherwise, a segment for each partition."""
    store = ShakyStore()
    here = world(store)
    put: list[weakref.ref[Any]] = []
    refuse = store.put

    async def remembering_put(
        key: str, data: Buffer | Sequence[Buffer], condition: Condition | None = None
    ) -> str:
        if key.endswith(".parquet"):
            put.extend(map(weakref.ref, data))
        return await refuse(key, data, condition)

    monkeypatch.setattr(store, "put", remembering_put)

    async def story() -> None:
        async with here.broker() as one:
            await one.create_topic()
            await one.produce(batch(b"0"))
            store.refusals = {"/partition=": 1}
            one.broker.topic_tables.roller.flush(hosted(one))
            await until(lambda: one.broker.topic_tables.roller.hindrance(hosted(one)))
            gc.collect()
            assert put
            assert not any(piece() is not None for piece in put)

    run(story)


@pytest.mark.parametrize("dies", [True, False])
def test_who_waits_for_a_roll_is_told_when_the_broker_ends(dies: bool) -> None:
    """No roll comes any more, neither for who waits by then nor for who comes later."""
    store = GatedStore(MemoryStore(SystemClock()))
    store.open()
    here = world(store)

    async def story() -> None:
        async with here.broker(politely=False) as one:
            await one.create_topic(partitions=2)
            for number in range(2):
                await one.produce(batch(b"a"), number)
            store.hold("/partition=")
            waiting = [
                one.broker.topic_tables.roller.flush(hosted(one, number)) for number in range(2)
            ]
            await until(lambda: store.waiting)
            if dies:
                one.run.cancel()
            else:
                one.life.stop()
            await asyncio.gather(one.run, return_exceptions=True)
            waiting.append(one.broker.topic_tables.roller.flush(hosted(one)))
            async with asyncio.timeout(20):
                for each in waiting:
                    with pytest.raises(PartitionError, match="has ended"):
                        await each

    run(story)


class RestlessStore(MemoryStore):
    """Something happens before each segment is put."""

    def __init__(self) -> None:
        super().__init__(SystemClock())
        self.before: Callable[[], Awaitable[None]] | None = None
        self.segments = 0

    async def put(
        self, key: str, data: Buffer | Sequence[Buffer], condition: Condition | None = None
    ) -> str:
        if "/partition=" in key:
            self.segments += 1
            if self.before is not None:
                await self.before()
        return await super().put(key, data, condition)


@pytest.mark.parametrize("is_asked_for", [True, False])
def test_nobody_waits_for_ever_because_others_ask_again_and_again(is_asked_for: bool) -> None:
    """While a busy topic is rolled, somebody asks for its next roll each time. What is less urgent
    comes all the same, if somebody has asked for it or if it is due."""
    store = RestlessStore()
    here = world(store, roll_bytes=500, roll_min_bytes=0, wal_linger_ms=0)

    async def story() -> None:
        async with here.broker() as one:

            async def ask_again() -> None:
                if hosted(one).log.table_next == 0:
                    await one.produce(batch(b"x" * 1000), topic="busy")
                    one.broker.topic_tables.roller.flush(hosted(one, topic="busy"))

            await one.create_topic("busy")
            await one.create_topic()
            store.before = ask_again
            await one.produce(batch(b"x" * 1000), topic="busy")
            await until(lambda: store.segments)
            await one.produce(batch(b"a" if is_asked_for else b"a" * 600))
            if is_asked_for:
                one.broker.topic_tables.roller.flush(hosted(one))
            await until(lambda: hosted(one).log.table_next or store.segments > 20)
            assert store.segments < 20
            store.before = None

    run(story)


@pytest.mark.parametrize("partitions", [2, 5])
def test_segments_that_grow_too_old_beside_others_do_not_stop_their_rolls(partitions: int) -> None:
    """Each takes so long that those before it are too old to be committed with it. The youngest is
    committed alone, so the rolls come to an end."""
    store = RestlessStore()
    here = world(store)

    async def story() -> None:
        async with here.broker() as one:
            ages = one.broker.topic_tables.segment_ages

            async def grow_old() -> None:
                *before, _ = ages._begun
                ages._begun.update(dict.fromkeys(before, float("-inf")))

            await one.create_topic(partitions=partitions)
            for number in range(partitions):
                await one.produce(batch(b"a"), number)
            store.before = grow_old
            await flush_all(one, partitions)
            assert one.broker.topic_tables.roller.metrics.failures == 0

    run(story)


def test_what_is_due_for_its_age_is_due_still_when_it_was_not_committed() -> None:
    """Not only when it has waited for as long once more."""
    store = RestlessStore()
    here = world(store, roll_age_ms=3_600_000)

    async def story() -> None:
        async with here.broker() as one:
            queue, clock = one.broker.topic_tables.roller._queue, one.broker.world.clock

            async def grow_old() -> None:
                ages = one.broker.topic_tables.segment_ages
                *before, _ = ages._begun
                ages._begun.update(dict.fromkeys(before, float("-inf")))

            await one.create_topic(partitions=3)
            for number in range(3):
                await one.produce(batch(b"a"), number)
                queue.date(hosted(one, number).log.partition, clock.monotonic() - 7200)
            store.before = grow_old
            queue.news.set()
            for number in range(3):
                await settled(one, 1, number)
            assert store.segments > 3

    run(story)


def test_what_has_waited_for_long_is_committed_before_more_is_built(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("tidelog.broker.roll.roller.COMMIT_GRACE_SHARE_MAX", 0.0)
    here = world()

    async def story() -> None:
        async with here.broker() as one:
            await one.create_topic(partitions=3)
            for number in range(3):
                await one.produce(batch(b"a"), number)
            await flush_all(one, 3)
            assert one.broker.topic_tables.roller.metrics.commits == 3

    run(story)


def test_who_has_given_up_waiting_is_forgotten() -> None:
    store = ShakyStore()
    here = world(store)

    async def story() -> None:
        async with here.broker() as one:
            await one.create_topic()
            await one.produce(batch(b"a"))
            store.refusals = {"/partition=": 1_000_000}
            for _ in range(50):
                one.broker.topic_tables.roller.flush(hosted(one)).cancel()
            waiting = one.broker.topic_tables.roller._queue._waiting
            assert sum(map(len, waiting.values())) == 1

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


# What is corrupt.


async def spoil(store: ObjectStore, key: str, at: int) -> bytes:
    """Change a byte; what was there before."""
    right = bytes((await store.get(key)).data)
    wrong = bytearray(right)
    wrong[at] ^= 1
    await store.put(key, wrong)
    return right


async def two_partitions(here: World, one: OneBroker) -> UUID:
    topic_id = await one.create_topic(partitions=2)
    for number in range(2):
        await one.produce(batch(b"0"), number)
    return topic_id


def test_a_corrupt_wal_object_stops_its_partition_alone(
    caplog: pytest.LogCaptureFixture,
) -> None:
    here = world(tail_cache_bytes=0)

    async def story() -> None:
        async with here.broker() as one:
            topic_id = await two_partitions(here, one)
            (extent,) = hosted(one).log.extents
            right = await spoil(here.store, extent.key, extent.position + extent.length - 1)
            with pytest.raises(CorruptObject, match=extent.key):
                await flush(one)
            errors = [each for each in caplog.records if each.levelname == "ERROR"]
            assert [vars(each)["key"] for each in errors] == [extent.key]
            await flush(one, 1)
            assert await offsets(here.store, topic_id, 1) == [0]
            assert one.broker.topic_tables.roller.metrics.stopped == 1
            assert any(extent.key in fault for fault in one.broker.health.faults())
            # Somebody repairs it and asks again.
            await here.store.put(extent.key, right)
            await flush(one)
            assert await offsets(here.store, topic_id) == [0]
            assert one.broker.health.faults() == []

    run(story)


def test_a_missing_wal_object_is_named() -> None:
    here = world(tail_cache_bytes=0)

    async def story() -> None:
        async with here.broker() as one:
            await two_partitions(here, one)
            (extent,) = hosted(one).log.extents
            await here.store.delete(extent.key)
            with pytest.raises(CorruptObject, match="missing"):
                await flush(one)
            await flush(one, 1)

    run(story)


def test_a_corrupt_table_harms_no_other_topic_and_not_what_the_wal_has() -> None:
    here = world()

    async def story() -> None:
        async with here.broker() as one:
            topic_id = await one.create_topic()
            other = await one.create_topic("other")
            await one.produce(batch(b"0"))
            await flush(one)
            await one.produce(batch(b"1"))
            await one.produce(batch(b"0"), topic="other")
        await spoil(here.store, f"topics/{topic_id}/_delta_log/{0:020d}.json", 20)
        async with here.broker() as one:
            assert (await one.fetch(1)).records
            with pytest.raises(CorruptObject, match="_delta_log"):
                await flush(one)
            await flush(one, topic="other")
            assert await offsets(here.store, other) == [0]

    run(story)


def test_a_table_ahead_of_the_log_condemns_the_partition() -> None:
    here = world()

    async def story() -> None:
        async with here.broker() as one:
            topic_id = await two_partitions(here, one)
        other = await open_table(here.store, topic_id)
        await other.commit((advance(0, 0, 100),))
        async with here.broker() as one:
            assert (await one.fetch(0)).error_code == ErrorCode.KAFKA_STORAGE_ERROR
            assert (await one.produce(batch(b"1"))).error_code == ErrorCode.KAFKA_STORAGE_ERROR
            assert (await one.produce(batch(b"1"), 1)).error_code == OK
            await flush(one, 1)
            assert await offsets(here.store, topic_id, 1) == [0, 1]

    run(story)


def test_a_table_that_has_lost_versions_stops_the_roll() -> None:
    here = world()

    async def story() -> None:
        async with here.broker() as one:
            topic_id = await one.create_topic()
            await one.produce(batch(b"0"))
            await flush(one)
            await one.produce(batch(b"1"))
        keys = [meta.key async for meta in here.store.list(f"topics/{topic_id}/_delta_log/")]
        for key in keys:
            await here.store.delete(key)
        async with here.broker() as one:
            with pytest.raises(CorruptObject, match="ends at offset 0"):
                await flush(one)
            assert (await one.produce(batch(b"2"))).error_code == OK

    run(story)


# Readers meanwhile.


@pytest.mark.parametrize("tail_cache_bytes", [0, 1 << 20])
def test_readers_cross_from_segments_into_the_wal_while_it_is_rolled(tail_cache_bytes: int) -> None:
    here = world(
        roll_bytes=1, roll_min_bytes=0, tail_cache_bytes=tail_cache_bytes, roll_spread_ms=0
    )
    count = 120

    async def write(one: OneBroker) -> None:
        for number in range(count):
            await one.produce(batch(b"%d" % number))

    async def read(one: OneBroker, *, committed: bool) -> list[tuple[int, bytes | None]]:
        found: list[tuple[int, bytes | None]] = []
        while len(found) < count:
            answer = await one.fetch(len(found), wait_ms=100, committed=committed)
            assert answer.error_code == OK
            records = decode_records(b"".join(answer.records or ()))
            found += [(each.offset, each.value) for each in records if each.offset >= len(found)]
        return found

    async def story() -> None:
        expected = [(number, b"%d" % number) for number in range(count)]
        async with here.broker() as one:
            topic_id = await one.create_topic()
            reading = [
                asyncio.create_task(read(one, committed=committed)) for committed in (True, False)
            ]
            await write(one)
            assert await asyncio.gather(*reading) == [expected, expected]
            # A late one, for which nearly all lies in segments.
            assert await read(one, committed=True) == expected
            assert (await table_state(here.store, topic_id)).version > 1
            await flush(one)
            assert await offsets(here.store, topic_id) == list(range(count))

    run(story)
