"""Records of an open transaction are deleted. The last stable offset is at least the log's start,
and consumers see records behind the transaction when it has ended, as in Kafka."""

from __future__ import annotations

import pytest

from tests.unit.broker.handlers.test_flush_requests import flush
from tests.unit.broker.one_broker import TOPIC, OneBroker, batch, run
from tests.unit.broker.rolled import hosted, offsets, world
from tests.unit.broker.transactional_client import TransactionalClient, loaded
from tests.unit.bucket.bucket_world import all_values, atomic_values, opened
from tidelog.broker.handlers.data.offsets import delete_records
from tidelog.bucket.views.atomic import atomic_view
from tidelog.identifiers import TopicPartition
from tidelog.protocol.error_codes import ErrorCode
from tidelog.protocol.schemas.cluster.topics import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from tidelog.records.records import NewRecord

OK = ErrorCode.NONE
EARLIEST, LATEST = -2, -1


async def delete(one: OneBroker, offset: int) -> int:
    """Delete the records below an offset. Returns the new log start."""
    partitions = [DeleteRecordsPartition(partition_index=0, offset=offset)]
    request = DeleteRecordsRequest(
        topics=[DeleteRecordsTopic(name=TOPIC, partitions=partitions)], timeout_ms=5000
    )
    answer = (
        (await delete_records(one.broker.services.data, request, one.context(2)))
        .topics[0]
        .partitions[0]
    )
    assert answer.error_code == OK
    return answer.low_watermark


async def bounds(one: OneBroker) -> tuple[int, int, int]:
    """The log's start, and the last stable offset as ListOffsets and as Fetch report it."""
    start = (await one.offsets(EARLIEST, committed=True)).offset
    end = (await one.offsets(LATEST, committed=True)).offset
    return start, end, (await one.fetch(start, committed=True)).last_stable_offset


@pytest.mark.parametrize("commits", [True, False])
def test_the_last_stable_offset_is_not_below_the_start_and_nothing_is_shown_early(
    commits: bool,
) -> None:
    here = world()

    async def story() -> None:
        async with here.broker(politely=False) as one:
            await loaded(one)
            topic_id = await one.create_topic()
            await one.produce(batch(b"before"))
            client = TransactionalClient(one)
            assert await client.init() is OK
            for value in (b"1", b"2", b"3"):
                assert await client.send(value) is OK
            await one.produce(batch(b"behind"))
            assert await bounds(one) == (0, 1, 1)
            assert await delete(one, 3) == 3
            assert await bounds(one) == (3, 3, 3)
            (flushed,) = await flush(one, 0)
            assert (flushed.error_code, flushed.table_next_offset) == (OK, 3)
            assert flushed.held_at_offset == 3
            assert flushed.held_by_producer_id == client.producer_id
            assert await offsets(here.store, topic_id) == []
        async with here.broker() as one:
            await loaded(one)
            assert await bounds(one) == (3, 3, 3)
            (view,) = (await (await opened(here.store)).view(TOPIC)).of_topic(topic_id)
            assert (view.log_start, view.last_stable_offset) == (3, 3)
            client.broker = one
            assert await client.end(commit=commits) is OK
            end = hosted(one).log.high_watermark
            assert await bounds(one) == (3, end, end)
            found = await one.fetch(3, committed=True)
            aborted = [each.first_offset for each in found.aborted_transactions or ()]
            assert aborted == ([] if commits else [1])
            expected = [b"3", b"behind"] if commits else [b"behind"]
            await flush(one, 0)
            assert await offsets(here.store, topic_id) == ([3, 4] if commits else [4])
            bucket = await opened(here.store)
            (view,) = (await bucket.view(TOPIC)).of_topic(topic_id)
            assert await all_values(bucket, view) == expected

    run(story)


def test_a_consumer_from_the_start_sees_records_behind_deleted_records() -> None:
    async def story() -> None:
        async with world().broker() as one:
            await loaded(one)
            await one.create_topic()
            client = TransactionalClient(one)
            assert await client.init() is OK
            assert await client.send(b"deleted") is OK
            assert await delete(one, 1) == 1
            assert await client.send(b"kept") is OK
            await one.produce(batch(b"plain"))
            assert (await one.fetch(1, committed=True)).records in (None, [], b"")
            assert await client.commit() is OK
            found = await one.fetch(1, committed=True)
            assert found.records
            assert (found.last_stable_offset, found.log_start_offset) == (4, 1)

    run(story)


@pytest.mark.parametrize("commits", [True, False])
def test_an_atomic_view_has_no_rest_of_a_batch_whose_transaction_is_open(commits: bool) -> None:
    here = world()

    async def story() -> None:
        async with here.broker() as one:
            await loaded(one)
            partition = TopicPartition(await one.create_topic(), 0)
            client = TransactionalClient(one)
            assert await client.init() is OK
            assert await client.send_batch([NewRecord(b"%d" % n) for n in range(4)]) is OK
            assert await delete(one, 2) == 2
            await one.produce(batch(b"plain"))
            bucket = await opened(here.store)
            view = await atomic_view(bucket, TOPIC)
            assert await atomic_values(bucket, view, partition) == [b"plain"]
            assert await (client.commit() if commits else client.abort()) is OK
            view = await atomic_view(bucket, TOPIC)
            kept = [b"2", b"3"] if commits else []
            assert await atomic_values(bucket, view, partition) == [*kept, b"plain"]

    run(story)
