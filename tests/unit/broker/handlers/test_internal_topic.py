"""The topic of committed offsets on a whole broker: any client reads it, coordinators write it."""

from __future__ import annotations

import pytest

from tests.unit.broker.group_client import (
    GROUP,
    ask,
    commit,
    committed,
    enter,
    find,
    join,
    ready,
    world,
)
from tests.unit.broker.one_broker import batch, run
from tidelog.broker.handlers.cluster.topics import create_partitions, delete_topics
from tidelog.broker.handlers.data.offsets import delete_records
from tidelog.coordinator.group.records.log_records import GroupStored, OffsetStored, decode_record
from tidelog.coordinator.hashing import partition_for
from tidelog.coordinator.internal_topics import GROUP_TOPIC
from tidelog.coordinator.runtime import RuntimeState
from tidelog.protocol.error_codes import ErrorCode
from tidelog.protocol.schemas.cluster.topics import (
    CreatePartitionsRequest,
    CreatePartitionsTopic,
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
    DeleteTopicsRequest,
)
from tidelog.records.batch import BatchHeader
from tidelog.records.records import NewRecord, encode_batch
from tidelog.wal.write.slot_entries import BatchEntry


def test_the_internal_topic_is_read_like_any_other_and_written_by_its_coordinator_alone() -> None:
    async def story() -> None:
        async with world().broker() as broker:
            await broker.create_topic()
            joined = await enter(broker)
            await commit(broker, 7, joined)
            number = partition_for(GROUP, 5)
            refused = await broker.produce(batch(b"x"), number, topic=GROUP_TOPIC)
            assert refused.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
            records = await broker.read_all(number, GROUP_TOPIC)
            found = [decode_record(each.key, each.value) for each in records]
            assert [type(each) for each in found] == [GroupStored, OffsetStored]

    run(story)


@pytest.mark.parametrize("version", [2, 3, 4, 5])
def test_a_commit_that_brings_its_own_retention_expires_by_that_retention(version: int) -> None:
    """The field is missing from version 5 on. -1 stands for the broker's setting."""

    async def story() -> None:
        async with world().broker() as broker:
            await broker.create_topic()
            await find(broker)
            assert await commit(broker, 5, version=version) is ErrorCode.NONE
            if version < 5:
                error = await commit(broker, 6, version=version, retention_time_ms=9_000)
                assert error is ErrorCode.NONE
            records = await broker.read_all(partition_for(GROUP, 5), GROUP_TOPIC)
            stored = [decode_record(each.key, each.value) for each in records]
            lives = []
            for each in stored:
                assert isinstance(each, OffsetStored)
                found = each.committed
                expires = found.expire_timestamp_ms
                lives.append(expires if expires == -1 else expires - found.commit_timestamp_ms)
            assert lives == ([-1, 9_000] if version < 5 else [-1])

    run(story)


def test_the_internal_topic_stays_as_it_is() -> None:
    async def story() -> None:
        async with world().broker() as broker:
            await find(broker)
            refused = ErrorCode.INVALID_TOPIC_EXCEPTION
            request = DeleteTopicsRequest(topic_names=[GROUP_TOPIC])
            deleted = await ask(broker, delete_topics, request, 4)
            assert deleted.responses[0].error_code == refused
            more = CreatePartitionsRequest(
                topics=[CreatePartitionsTopic(name=GROUP_TOPIC, count=9, assignments=None)]
            )
            extended = await ask(broker, create_partitions, more, 3)
            assert extended.results[0].error_code == refused
            cut = DeleteRecordsRequest(
                topics=[
                    DeleteRecordsTopic(
                        name=GROUP_TOPIC, partitions=[DeleteRecordsPartition(offset=-1)]
                    )
                ],
                timeout_ms=1000,
            )
            deleted_records = await ask(broker, delete_records, cut, 2)
            assert deleted_records.topics[0].partitions[0].error_code == refused

    run(story)


def test_a_log_that_does_not_decode_stops_one_coordinator_and_no_other() -> None:
    bucket = world()

    async def story() -> None:
        async with bucket.broker(politely=False) as broker:
            await broker.create_topic()
            await enter(broker)
            partition = broker.broker.writes.partitions.named(GROUP_TOPIC, partition_for(GROUP, 5))
            data = encode_batch([NewRecord(b"value", b"\x7f\x7fkey")])
            header = BatchHeader.parse(data)
            appended = partition.log.append(header, 0)
            wal = broker.broker.writes.wal
            await wal.durable(
                wal.add(
                    BatchEntry(
                        partition.log.partition,
                        partition.log.leader_epoch,
                        data,
                        header,
                        appended.base_offset,
                    )
                )
            )
        async with bucket.broker() as broker:
            await ready(broker)
            assert await committed(broker) == -ErrorCode.COORDINATOR_NOT_AVAILABLE
            assert (await join(broker)).error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
            states = [each.state for each in broker.broker.coordination.coordinators.groups.all()]
            assert states.count(RuntimeState.CORRUPT) == 1
            assert states.count(RuntimeState.READY) == 4

    run(story)
