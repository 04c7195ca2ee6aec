"""Damage in the WAL or in a table stops the rolls of its own partition alone. The error names the
damaged object."""

from __future__ import annotations

from uuid import UUID

import pytest

from tests.unit.broker.one_broker import OneBroker, World, batch, run, until
from tests.unit.broker.rolled import flush, hosted, offsets, open_table, spoil, world
from tests.unit.storage.segments import advance
from tidelog.errors import CorruptObject
from tidelog.protocol.error_codes import ErrorCode

OK = ErrorCode.NONE


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
            metrics = one.broker.topic_tables.roller.metrics
            await until(lambda: metrics.stopped == 1)
            await flush(one, 1)
            assert await offsets(here.store, topic_id, 1) == [0]
            assert metrics.stopped == 1
            assert any(extent.key in fault for fault in one.broker.health.faults())
            # An operator repairs the object and asks for the roll again.
            await here.store.put(extent.key, right)
            await flush(one)
            assert await offsets(here.store, topic_id) == [0]
            assert one.broker.health.faults() == []
            await until(lambda: metrics.stopped == 0)

    run(story)


@pytest.mark.parametrize("has_records", [True, False])
def test_the_fault_of_a_partition_goes_with_its_topic(has_records: bool) -> None:
    here = world(tail_cache_bytes=0)

    async def story() -> None:
        async with here.broker() as one:
            topic_id = await two_partitions(here, one)
            (extent,) = hosted(one).log.extents
            if has_records:
                await spoil(here.store, extent.key, extent.position + extent.length - 1)
                with pytest.raises(CorruptObject, match=extent.key):
                    await flush(one)
            else:
                # As when a broker gets the partition, and cannot read the topic's table.
                await flush(one)
                queue = one.broker.topic_tables.roller._queue
                queue.stop([hosted(one)], CorruptObject(extent.key, "it is damaged"))
            await until(lambda: one.broker.topic_tables.roller.metrics.stopped == 1)
            assert any(extent.key in fault for fault in one.broker.health.faults())
            await one.delete_topic(topic_id)
            await until(lambda: one.broker.health.faults() == [])

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


def test_a_corrupt_table_harms_no_other_topic_and_no_record_of_the_wal() -> None:
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
