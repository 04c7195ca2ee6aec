"""The pauses of rolls that no client waits for, on a whole broker."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from uuid import UUID

import pytest

from tests.unit.broker.collections import checkpoint, collections, forget_memory, objects
from tests.unit.broker.one_broker import OneBroker, World, batch, run, until
from tests.unit.broker.rolled import (
    ShakyStore,
    flush,
    hosted,
    offsets,
    open_table,
    segments,
    settled,
    world,
)
from tests.unit.storage.segments import advance
from tidelog.broker.roll.segment_builder import SegmentBounds
from tidelog.broker.tables.table_source import missing_extent
from tidelog.identifiers import Offset
from tidelog.protocol.error_codes import ErrorCode
from tidelog.records.records import decode_records
from tidelog.storage.superseded import Superseded
from tidelog.storage.table.table_log import TableCommitted

DAY_MS = 86_400_000
BATCHES = 5
ENDLESS = {
    "roll_bytes": 1500,
    "roll_min_bytes": 0,
    "roll_spread_ms": DAY_MS,
    "roll_age_ms": 7 * DAY_MS,
    "log_delete_grace_ms": 8 * DAY_MS,
}
"""Due rolls are spread over a day."""


@pytest.fixture(autouse=True)
def _small_and_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make one piece of each batch, as slow as `roll.spread.ms` permits."""
    monkeypatch.setattr("tidelog.broker.roll.agenda.LOOK_SECONDS", 0.05)
    monkeypatch.setattr("tidelog.wal.roll.pace.BYTES_A_SECOND_MIN", 1e-9)
    monkeypatch.setattr("tidelog.wal.roll.pace.SEGMENT_BYTES", 1)
    monkeypatch.setattr("tidelog.broker.roll.segment_builder.SEGMENT_BYTES", 1)
    bounds = SegmentBounds(piece_bytes_max=400)
    monkeypatch.setattr("tidelog.broker.clean.table_path.SegmentBounds", lambda: bounds)


async def due(one: OneBroker, topic: str) -> None:
    """Produce enough records to make the partition due, in pieces."""
    for _ in range(BATCHES):
        await one.produce(batch(bytes(300)), topic=topic)


def age(one: OneBroker, days: float, topic: str, partition: int = 0) -> None:
    """Set the time since which the partition's records have waited."""
    since = one.broker.environment.clock.monotonic() - days * DAY_MS / 1000
    place = hosted(one, partition, topic).log.partition
    one.broker.topic_tables.roller._queue.set_waiting_since(place, since)


async def pausing(one: OneBroker) -> None:
    """Wait until a roll pauses behind its first piece."""
    agenda = one.broker.topic_tables.roller._agenda
    metrics = one.broker.topic_tables.roller.metrics
    await until(
        lambda: metrics.wal_bytes and agenda._throttle.seconds_to_wait(agenda._clock.monotonic())
    )


@asynccontextmanager
async def paused(here: World, *, politely: bool = True) -> AsyncIterator[tuple[OneBroker, UUID]]:
    """A broker whose roll of a topic pauses behind its first piece, and the topic's id."""
    async with here.broker(politely=politely) as one:
        topic_id = await one.create_topic()
        await due(one, "flights")
        await pausing(one)
        yield one, topic_id


def test_due_partitions_roll_with_pauses_and_awaited_ones_at_once() -> None:
    here = world(**ENDLESS)

    async def story() -> None:
        async with here.broker() as one:
            metrics = one.broker.topic_tables.roller.metrics
            topic_id = await one.create_topic()
            await due(one, "flights")
            await pausing(one)
            taken = metrics.wal_bytes
            # Other partitions go on meanwhile.
            await one.create_topic("other")
            await due(one, "other")
            assert metrics.wal_bytes == taken
            assert hosted(one).log.table_next == 0
            await flush(one)
            assert await offsets(here.store, topic_id) == list(range(BATCHES))
            assert len(await segments(here.store, topic_id)) == 1

    run(story)


def test_an_awaited_roll_does_not_wait_behind_the_pauses_of_other_rolls() -> None:
    here = world(**ENDLESS)

    async def story() -> None:
        async with paused(here) as (one, _):
            other = await one.create_topic("other")
            await one.produce(batch(b"a"), topic="other")
            await flush(one, topic="other")
            assert await offsets(here.store, other) == [0]
            # The segment in progress is also done, since it came first.
            await settled(one, BATCHES)

    run(story)


def test_a_flush_that_fails_once_does_not_wait_behind_the_pauses_of_other_rolls(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("tidelog.broker.roll.queue.PAUSE_SECONDS_FIRST", 0.1)
    store = ShakyStore()
    here = world(store, **ENDLESS)

    async def story() -> None:
        async with here.broker() as one:
            await one.create_topic()
            await one.create_topic("asked")
            await one.produce(batch(b"a"), topic="asked")
            store.refusals = {"/partition=": 1}
            flushed = one.broker.topic_tables.roller.flush(hosted(one, topic="asked"))
            await due(one, "flights")
            async with asyncio.timeout(20):
                await flushed
            assert one.broker.topic_tables.roller.metrics.failures == 1

    run(story)


def segments_of_two(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make each segment hold two batches."""
    bounds = SegmentBounds(raw_bytes_max=600, piece_bytes_max=400)
    monkeypatch.setattr("tidelog.broker.clean.table_path.SegmentBounds", lambda: bounds)


@pytest.mark.parametrize("times", [1, 3])
def test_a_partition_overdue_in_a_pause_waits_for_the_present_segment_alone(
    monkeypatch: pytest.MonkeyPatch, times: int
) -> None:
    """This holds even if the rolled partition stays due, with records for several segments."""
    segments_of_two(monkeypatch)
    here = world(**ENDLESS)

    async def story() -> None:
        async with here.broker() as one:
            await one.create_topic()
            for _ in range(times):
                await due(one, "flights")
            await pausing(one)
            fresh = await one.create_topic("fresh")
            await one.produce(batch(b"a"), topic="fresh")
            age(one, 8, "fresh")
            async with asyncio.timeout(20):
                await until(lambda: hosted(one, topic="fresh").log.table_next == 1)
            assert await offsets(here.store, fresh) == [0]
            assert hosted(one).log.table_next == 2

    run(story)


def test_a_partition_overdue_again_waits_for_the_present_segment_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The partition has already had its turn in the present round."""
    segments_of_two(monkeypatch)
    here = world(**(ENDLESS | {"roll_bytes": 1 << 40}))

    async def story() -> None:
        async with here.broker() as one:
            await one.create_topic()
            await one.create_topic("fresh")
            await due(one, "flights")
            await one.produce(batch(b"a"), topic="fresh")
            await one.create_topic("other")
            age(one, 7.5, "fresh")
            age(one, 7.3, "flights")
            await one.produce(batch(b"a"), topic="other")
            await until(lambda: hosted(one, topic="fresh").log.table_next == 1)
            await pausing(one)
            await one.produce(batch(b"b"), topic="fresh")
            age(one, 8, "fresh")
            async with asyncio.timeout(20):
                await until(lambda: hosted(one, topic="fresh").log.table_next == 2)
            assert hosted(one).log.table_next == 2

    run(story)


def test_only_awaited_partitions_of_a_topic_are_urgent() -> None:
    here = world(**(ENDLESS | {"roll_bytes": 1 << 40}))

    async def story() -> None:
        async with here.broker() as one:
            await one.create_topic(partitions=2)
            for _ in range(BATCHES):
                await one.produce(batch(bytes(300)), 1)
            await one.produce(batch(b"a"))
            age(one, 7.5, "flights", 1)
            async with asyncio.timeout(20):
                await flush(one)
            await pausing(one)
            assert hosted(one, 1).log.table_next == 0

    run(story)


@pytest.mark.parametrize("records", [1, 5])
def test_behind_an_awaited_roll_there_are_pauses_again(
    monkeypatch: pytest.MonkeyPatch, records: int
) -> None:
    """This holds even if the awaited roll took several segments. Both partitions come into one
    round."""
    monkeypatch.setattr("tidelog.broker.roll.agenda.LOOK_SECONDS", 3600.0)
    segments_of_two(monkeypatch)
    here = world(**(ENDLESS | {"roll_bytes": 1 << 40}))

    async def story() -> None:
        async with here.broker() as one:
            await one.create_topic()
            await one.create_topic("asked")
            await due(one, "flights")
            for _ in range(records):
                await one.produce(batch(bytes(300)), topic="asked")
            age(one, 7.5, "flights")
            flushed = one.broker.topic_tables.roller.flush(hosted(one, topic="asked"))
            async with asyncio.timeout(20):
                await flushed
            await pausing(one)
            assert hosted(one).log.table_next == 0

    run(story)


def test_gauges_go_on_in_a_pause() -> None:
    here = world(**ENDLESS)

    async def story() -> None:
        async with here.broker() as one:
            metrics = one.broker.topic_tables.roller.metrics
            await one.create_topic()
            await due(one, "flights")
            await pausing(one)
            before = metrics.backlog_bytes
            await one.create_topic("other")
            await one.produce(batch(bytes(300)), topic="other")
            await until(lambda: metrics.backlog_bytes > before)
            assert metrics.backlog_partitions == 2

    run(story)


def test_a_pause_grows_shorter_as_more_comes_due() -> None:
    """During the roll its partition grows, and other partitions become due."""
    here = world(**ENDLESS)

    async def story() -> None:
        async with here.broker() as one:
            agenda = one.broker.topic_tables.roller._agenda
            await one.create_topic()
            await due(one, "flights")
            await pausing(one)
            before = agenda._throttle._rate
            await one.create_topic("other")
            await due(one, "other")
            await due(one, "other")
            await until(lambda: agenda._throttle._rate > 2 * before)
            assert hosted(one).log.table_next == 0

    run(story)


@pytest.mark.parametrize(
    "at_once",
    [
        {"roll_spread_ms": 0},
        {"roll_age_ms": 100},
        # An eighth of the grace.
        {"log_delete_grace_ms": 5000},
    ],
)
def test_urgent_rolls_are_not_spread_for_long(at_once: dict[str, int]) -> None:
    here = world(**(ENDLESS | at_once))

    async def story() -> None:
        async with here.broker() as one:
            topic_id = await one.create_topic()
            await due(one, "flights")
            async with asyncio.timeout(20):
                await settled(one, BATCHES)
            assert await offsets(here.store, topic_id) == list(range(BATCHES))

    run(story)


def test_a_roll_whose_topic_is_deleted_in_a_pause_ends_there() -> None:
    here = world(**ENDLESS)

    async def story() -> None:
        async with paused(here) as (one, topic_id):
            await one.delete_topic(topic_id)
            await one.create_topic("other")
            await one.produce(batch(b"a"), topic="other")
            await flush(one, topic="other")
            assert await segments(here.store, topic_id) == []

    run(story)


# Changes in a pause within a segment.


async def values(one: OneBroker, start: int) -> list[bytes | None]:
    """The values that a consumer reads from an offset on. It skips earlier records of the first
    batch."""
    answer = await one.fetch(start)
    assert answer.error_code == ErrorCode.NONE
    found = decode_records(b"".join(answer.records))
    return [record.value for record in found if record.offset >= start]


def test_records_deleted_in_a_pause_are_skipped_after_the_pause() -> None:
    """Rows of these records in the segment lie below the log start, where no reader looks."""
    here = world(**ENDLESS)

    async def story() -> None:
        async with paused(here) as (one, topic_id):
            await one.broker.writes.appender.delete_records(hosted(one), Offset(3))
            await flush(one)
            assert await offsets(here.store, topic_id) == [0, 3, 4]
            assert hosted(one).log.table_next == BATCHES
            assert (await one.fetch(0)).error_code == ErrorCode.OFFSET_OUT_OF_RANGE
            assert await values(one, 3) == [bytes(300)] * 2

    run(story)


def test_all_that_is_left_may_be_deleted_in_a_pause() -> None:
    here = world(**ENDLESS)

    async def story() -> None:
        async with paused(here) as (one, topic_id):
            await one.broker.writes.appender.delete_records(hosted(one), Offset(BATCHES))
            await one.produce(batch(b"a"))
            await flush(one)
            assert (await offsets(here.store, topic_id))[-1] == BATCHES
            assert await values(one, BATCHES) == [b"a"]

    run(story)


def test_records_merged_in_a_pause_are_read_at_their_new_place() -> None:
    here = world(wal_objects_max=2, wal_linger_ms=0, **ENDLESS)

    async def story() -> None:
        async with paused(here) as (one, topic_id):
            before = set(hosted(one).log.extents.keys)
            await checkpoint(one)
            await one.broker.maintenance.merger.maintain()
            assert not before & set(hosted(one).log.extents.keys)
            await collections(one, here.store).collect()
            assert not before & set(await objects(here.store, "wal/"))
            forget_memory(one)
            await flush(one)
            assert await offsets(here.store, topic_id) == list(range(BATCHES))
            assert len(await segments(here.store, topic_id)) == 1

    run(story)


@pytest.mark.parametrize("is_known", [True, False])
def test_records_committed_by_another_broker_in_a_pause_are_not_committed_again(
    is_known: bool,
) -> None:
    """A read of the table may notice the other broker's commit in the pause. Otherwise the roll's
    own commit notices it."""
    here = world(**ENDLESS)

    async def story() -> None:
        async with paused(here) as (one, topic_id):
            log = hosted(one).log
            late = await open_table(here.store, topic_id)
            assert isinstance(await late.commit((advance(0, 0, 3),)), TableCommitted)
            if is_known:
                found = await missing_extent(one.broker.topic_tables.tables, log, log.extents[0])
                assert isinstance(found, Superseded)
            await flush(one)
            assert await offsets(here.store, topic_id) == [3, 4]
            assert log.table_next == BATCHES
            assert one.broker.topic_tables.roller.metrics.refusals == 1

    run(story)


@pytest.mark.parametrize("politely", [True, False])
def test_a_broker_that_ends_in_a_pause_leaves_all_to_the_next(politely: bool) -> None:
    here = world(**ENDLESS)

    async def story() -> None:
        async with paused(here, politely=politely) as (_, topic_id):
            pass
        assert await segments(here.store, topic_id) == []
        async with here.broker() as one:
            await flush(one)
            assert await offsets(here.store, topic_id) == list(range(BATCHES))

    run(story)
