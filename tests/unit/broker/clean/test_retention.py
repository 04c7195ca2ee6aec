"""Retention in a broker: the records that it removes from log and table, and deaths in between."""

from __future__ import annotations

import asyncio

import pytest

from tests.unit.broker.one_broker import TOPIC, OneBroker, World, run, until
from tests.unit.broker.rolled import flush, hosted, offsets, table_state
from tidelog.broker.handlers.data.offsets import delete_records
from tidelog.broker.partitions.partitions import Partition, PartitionError
from tidelog.clock import SystemClock
from tidelog.crash_points import CrashPoint
from tidelog.identifiers import Offset, TopicId
from tidelog.protocol.error_codes import ErrorCode
from tidelog.protocol.schemas.cluster.topics import (
    DeleteRecordsPartition,
    DeleteRecordsPartitionResult,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from tidelog.records.records import NewRecord, encode_batch
from tidelog.storage.stores.memory import MemoryStore
from tidelog.storage.table.table_state import TableState
from tidelog.wal.write.writer import WalLost

HOUR_MS = 3_600_000


def dated(age_ms: int, count: int = 3) -> bytearray:
    """A batch of records of this age."""
    stamp = SystemClock().time_ms() - age_ms
    return encode_batch([NewRecord(b"value" * 20, b"key", timestamp=stamp)] * count)


async def delete_below(one: OneBroker, offset: int) -> DeleteRecordsPartitionResult:
    """DeleteRecords for the partition."""
    place = DeleteRecordsPartition(partition_index=0, offset=offset)
    request = DeleteRecordsRequest(
        topics=[DeleteRecordsTopic(name=TOPIC, partitions=[place])], timeout_ms=5000
    )
    response = await delete_records(one.broker.services.data, request, one.context(2))
    return response.topics[0].partitions[0]


def new_world(**settings: object) -> World:
    return World(MemoryStore(SystemClock()), **settings)


def test_old_segments_go_and_readers_below_are_out_of_range() -> None:
    async def story() -> None:
        world = new_world()
        async with world.broker() as one:
            topic_id = await one.create_topic(retention_ms=str(HOUR_MS))
            for age_ms in (3 * HOUR_MS, 2 * HOUR_MS, 60_000):
                await one.produce(dated(age_ms))
                await flush(one)
            await one.broker.topic_tables.cleaner.retention.apply()
            assert await offsets(world.store, topic_id) == [6, 7, 8]
            assert (await one.offsets(-2)).offset == 6
            assert (await one.fetch(5)).error_code == ErrorCode.OFFSET_OUT_OF_RANGE
            assert (await one.fetch(6)).log_start_offset == 6
            metrics = one.broker.topic_tables.cleaner.metrics
            assert (metrics.log_starts_moved, metrics.segments_expired) == (1, 2)
            version = (await table_state(world.store, topic_id)).version
            await one.broker.topic_tables.cleaner.retention.apply()
            assert (await table_state(world.store, topic_id)).version == version
        async with world.broker(politely=False) as one:
            assert (await one.offsets(-2)).offset == 6

    run(story)


def test_expired_records_in_the_wal_go_by_whole_slots() -> None:
    async def story() -> None:
        world = new_world()
        async with world.broker(politely=False) as one:
            topic_id = await one.create_topic(retention_ms=str(HOUR_MS))
            for age_ms in (2 * HOUR_MS, 2 * HOUR_MS, 0):
                await one.produce(dated(age_ms))
            await one.broker.topic_tables.cleaner.retention.apply()
            assert (await one.offsets(-2)).offset == 6
            assert [record.offset for record in await one.read_all()] == [6, 7, 8]
        async with world.broker() as one:
            assert (await one.offsets(-2)).offset == 6
            await flush(one)
            assert await offsets(world.store, topic_id) == [6, 7, 8]

    run(story)


def test_all_old_records_are_deleted_and_the_log_goes_on() -> None:
    async def story() -> None:
        world = new_world()
        async with world.broker() as one:
            topic_id = await one.create_topic(retention_ms=str(HOUR_MS))
            await one.produce(dated(2 * HOUR_MS))
            await flush(one)
            await one.produce(dated(2 * HOUR_MS))
            await one.broker.topic_tables.cleaner.retention.apply()
            assert await offsets(world.store, topic_id) == []
            assert (await one.offsets(-2)).offset == (await one.offsets(-1)).offset == 6
            assert (await one.produce(dated(0))).base_offset == 6
            await flush(one)
            assert await offsets(world.store, topic_id) == [6, 7, 8]

    run(story)


def test_a_log_keeps_at_least_the_bytes_it_is_to_keep() -> None:
    async def story() -> None:
        world = new_world()
        async with world.broker() as one:
            topic_id = await one.create_topic(retention_ms="-1", retention_bytes="1")
            for _ in range(3):
                await one.produce(dated(0))
                await flush(one)
            await one.produce(dated(0))
            await one.broker.topic_tables.cleaner.retention.apply()
            assert (await one.offsets(-2)).offset == 9
            assert await offsets(world.store, topic_id) == []

    run(story)


def test_retention_spares_logs_without_limits_and_logs_that_are_only_compacted() -> None:
    async def story() -> None:
        world = new_world(log_retention_ms=-1)
        async with world.broker() as one:
            kept = await one.create_topic()
            compacted = await one.create_topic(
                "compacted", cleanup_policy="compact", retention_ms="1"
            )
            for topic in (TOPIC, "compacted"):
                await one.produce(dated(10**10), topic=topic)
                await flush(one, topic=topic)
            await one.broker.topic_tables.cleaner.retention.apply()
            assert await offsets(world.store, kept) == [0, 1, 2]
            assert await offsets(world.store, compacted) == [0, 1, 2]

    run(story)


def test_the_brokers_setting_holds_for_topics_without_their_own() -> None:
    async def story() -> None:
        async with new_world(log_retention_minutes=1).broker() as one:
            await one.create_topic()
            await one.create_topic("own", retention_ms="-1")
            for topic in (TOPIC, "own"):
                await one.produce(dated(90_000), topic=topic)
            await one.broker.topic_tables.cleaner.retention.apply()
            assert (await one.offsets(-2)).offset == 3
            assert (await one.offsets(-2, topic="own")).offset == 0

    run(story)


def test_deleted_records_go_from_the_table() -> None:
    async def story() -> None:
        world = new_world()
        async with world.broker() as one:
            topic_id = await one.create_topic(retention_ms="-1")
            for _ in range(3):
                await one.produce(dated(0, 4))
                await flush(one)
            assert (await delete_below(one, 7)).low_watermark == 7
            await one.broker.topic_tables.cleaner.retention.apply()
            # Most of the second segment lies below the log start, so the segment is written again.
            assert await offsets(world.store, topic_id) == [*range(4, 12)]
            assert await one.broker.topic_tables.cleaner.clean_one()
            assert await offsets(world.store, topic_id) == [*range(7, 12)]
            assert not await one.broker.topic_tables.cleaner.clean_one()
            assert (await one.offsets(-2)).offset == 7

    run(story)


def test_records_of_a_log_that_is_only_compacted_cannot_be_deleted() -> None:
    async def story() -> None:
        async with new_world().broker() as one:
            await one.create_topic(cleanup_policy="compact")
            await one.produce(dated(0))
            assert (await delete_below(one, 2)).error_code == ErrorCode.POLICY_VIOLATION
            assert (await one.offsets(-2)).offset == 0

    run(story)


class _Dying(Exception):
    """The process ends here."""


class _DeathAt:
    """Ends the story at a crash point."""

    def __init__(self, point: CrashPoint) -> None:
        self._point = point

    def hit(self, point: CrashPoint) -> None:
        if point is self._point:
            raise _Dying


@pytest.mark.parametrize(
    ("point", "there"),
    [
        (CrashPoint.LOG_START_MOVED, [0, 1, 2, 3, 4, 5]),
        (CrashPoint.SEGMENTS_REPLACED, [3, 4, 5]),
    ],
)
def test_the_successor_of_a_death_between_log_start_and_commit_finishes(
    point: CrashPoint, there: list[int]
) -> None:
    async def story() -> None:
        world = new_world()
        async with world.broker(politely=False) as one:
            topic_id = await one.create_topic(retention_ms=str(HOUR_MS))
            for age_ms in (2 * HOUR_MS, 0):
                await one.produce(dated(age_ms))
                await flush(one)
            retention = one.broker.topic_tables.cleaner.retention
            retention._crash_points = _DeathAt(point)
            with pytest.raises(_Dying):
                await retention.apply()
            assert hosted(one).log.log_start == 3
        assert await offsets(world.store, topic_id) == there
        async with world.broker() as one:
            assert (await one.offsets(-2)).offset == 3
            assert (await one.fetch(2)).error_code == ErrorCode.OFFSET_OUT_OF_RANGE
            await one.broker.topic_tables.cleaner.retention.apply()
            assert await offsets(world.store, topic_id) == [3, 4, 5]

    run(story)


def test_a_topic_that_is_deleted_meanwhile_is_left_alone() -> None:
    async def story() -> None:
        world = new_world()
        async with world.broker() as one:
            topic_id = await one.create_topic(retention_ms=str(HOUR_MS))
            await one.produce(dated(2 * HOUR_MS))
            await flush(one)
            open_table = one.broker.topic_tables.tables.open

            async def open_late(asked: object) -> object:
                await one.delete_topic(topic_id)
                return await open_table(topic_id)

            one.broker.topic_tables.tables.open = open_late  # type: ignore[assignment, method-assign]
            await one.broker.topic_tables.cleaner.retention.apply()
            assert one.broker.topic_tables.cleaner.metrics.failures == 0
            assert await offsets(world.store, topic_id) == [0, 1, 2]

    run(story)


def test_a_topic_that_is_deleted_while_its_table_is_read_again_is_left_alone() -> None:
    """Its settings are not in memory, since another topic's have changed."""

    async def story() -> None:
        world = new_world()
        async with world.broker() as one:
            topic_id = await one.create_topic(retention_ms=str(HOUR_MS))
            await one.produce(dated(2 * HOUR_MS))
            await flush(one)
            tables, cleaner = one.broker.topic_tables.tables, one.broker.topic_tables.cleaner
            open_table = tables.open

            async def open_early(asked: TopicId) -> TableState:
                state = await open_table(asked)
                await one.delete_topic(topic_id)
                return state

            tables.open = open_early  # type: ignore[method-assign]
            one.broker.services.data.live.renew()
            await cleaner.retention.apply()
            assert cleaner.metrics.failures == 0
            assert await offsets(world.store, topic_id) == [0, 1, 2]

    run(story)


def test_no_log_start_is_written_for_a_partition_that_is_gone() -> None:
    async def story() -> None:
        async with new_world().broker() as one:
            topic_id = await one.create_topic()
            await one.produce(dated(0))
            partition = hosted(one)
            await one.delete_topic(topic_id)
            with pytest.raises(PartitionError):
                await one.broker.writes.appender.delete_records(partition, Offset(2))
            assert partition.log.log_start == 0

    run(story)


def test_retention_ends_when_it_is_told_to_though_the_wal_ends_just_then(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The stop and the failure of the WAL happen together. The failed WAL also ends the broker. If
    the cleaner took its own stop for the WAL's failure, the cleaner and its process would go on for
    ever."""

    async def story() -> None:
        async with new_world().broker() as one:
            await one.create_topic(partitions=2, retention_ms=str(HOUR_MS))
            for number in range(2):
                await one.produce(dated(2 * HOUR_MS), partition=number)
            ended = asyncio.Event()
            moving: list[Offset] = []

            async def delete_records(_: Partition, offset: Offset) -> Offset:
                moving.append(offset)
                if len(moving) > 1:
                    await asyncio.Event().wait()
                await ended.wait()
                raise WalLost("the WAL has ended")

            monkeypatch.setattr(one.broker.writes.appender, "delete_records", delete_records)
            retention = asyncio.create_task(one.broker.topic_tables.cleaner.retention.apply())
            await until(lambda: len(moving) == 2)
            ended.set()
            # One step after the first failure, and one before the cleaner notices it.
            asyncio.get_running_loop().call_soon(retention.cancel)
            await asyncio.wait({retention})
            assert retention.cancelled()

    run(story)
