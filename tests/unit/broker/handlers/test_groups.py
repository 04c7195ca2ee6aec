"""Consumer groups on a whole broker: every version, restarts, the internal topic, the end."""

from __future__ import annotations

import asyncio
from typing import Any, TypeVar

import pytest

from tests.unit.broker.one_broker import TOPIC, OneBroker, World, batch, run, services_of
from tidelog.broker.handlers.cluster.topics import create_partitions, delete_topics
from tidelog.broker.handlers.data.offsets import delete_records
from tidelog.broker.handlers.groups.coordinator import find_coordinator
from tidelog.broker.handlers.groups.group_offsets import offset_commit, offset_delete, offset_fetch
from tidelog.broker.handlers.groups.groups import (
    delete_groups,
    describe_groups,
    heartbeat,
    join_group,
    leave_group,
    list_groups,
    sync_group,
)
from tidelog.clock import SystemClock
from tidelog.coordinator.group.records.log_records import GroupStored, OffsetStored, decode_record
from tidelog.coordinator.hashing import partition_for
from tidelog.coordinator.internal_topics import GROUP_TOPIC
from tidelog.coordinator.runtime import RuntimeState
from tidelog.protocol.codec import decode, encode
from tidelog.protocol.error_codes import ErrorCode
from tidelog.protocol.message import Request, Response
from tidelog.protocol.schemas.coordinators import FindCoordinatorRequest
from tidelog.protocol.schemas.group_offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
)
from tidelog.protocol.schemas.groups import (
    DeleteGroupsRequest,
    DescribeGroupsRequest,
    HeartbeatRequest,
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    JoinGroupResponse,
    LeaveGroupMember,
    LeaveGroupRequest,
    ListGroupsRequest,
    SyncGroupRequest,
    SyncGroupRequestAssignment,
)
from tidelog.protocol.schemas.topics import (
    CreatePartitionsRequest,
    CreatePartitionsTopic,
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
    DeleteTopicsRequest,
)
from tidelog.records.batch import BatchHeader
from tidelog.records.records import NewRecord, encode_batch
from tidelog.storage.stores.memory import MemoryStore

R = TypeVar("R", bound=Response)
GROUP = "g"
SETTINGS = {"group_initial_rebalance_delay_ms": 0, "offsets_topic_num_partitions": 5}


def world(**settings: object) -> World:
    return World(MemoryStore(SystemClock()), **{**SETTINGS, **settings})


async def ask(broker: OneBroker, handler: Any, request: Request[R], version: int) -> R:
    """Ask as a client of that version would: request and answer go over the wire."""
    sent = b"".join(map(bytes, encode(request, version)))
    received = decode(type(request), sent, version)
    response = await handler(services_of(broker.broker, handler), received, broker.context(version))
    return decode(type(response), b"".join(map(bytes, encode(response, version))), version)


async def find(broker: OneBroker, version: int = 3) -> None:
    request = (
        FindCoordinatorRequest(key=GROUP)
        if version < 4
        else FindCoordinatorRequest(coordinator_keys=[GROUP])
    )
    response = await ask(broker, find_coordinator, request, version)
    found = response if version < 4 else response.coordinators[0]
    assert (found.error_code, found.node_id) == (ErrorCode.NONE, 0)
    assert (found.host, found.port) == broker.broker.membership.advertised


async def join(
    broker: OneBroker, member_id: str = "", version: int = 3, instance_id: str | None = None
) -> JoinGroupResponse:
    request = JoinGroupRequest(
        group_id=GROUP,
        session_timeout_ms=10_000,
        member_id=member_id,
        protocol_type="consumer",
        protocols=[JoinGroupRequestProtocol(name="range", metadata=b"subscription")],
    )
    if version >= 1:
        request.rebalance_timeout_ms = 60_000
    if version >= 5:
        request.group_instance_id = instance_id
    return await ask(broker, join_group, request, version)


async def sync(broker: OneBroker, joined: JoinGroupResponse, version: int = 3) -> bytes:
    request = SyncGroupRequest(
        group_id=GROUP,
        generation_id=joined.generation_id,
        member_id=joined.member_id,
        assignments=[
            SyncGroupRequestAssignment(member_id=each.member_id, assignment=b"all")
            for each in joined.members
        ],
    )
    if version >= 5:
        request.protocol_type, request.protocol_name = "consumer", "range"
    response = await ask(broker, sync_group, request, version)
    assert response.error_code == ErrorCode.NONE
    return bytes(response.assignment)


async def enter(broker: OneBroker) -> JoinGroupResponse:
    """Be the only member of a stable group."""
    await find(broker)
    joined = await join(broker)
    assert joined.error_code == ErrorCode.NONE
    assert await sync(broker, joined) == b"all"
    return joined


async def commit(
    broker: OneBroker,
    offset: int,
    joined: JoinGroupResponse | None = None,
    *,
    topic: str = TOPIC,
    version: int = 6,
    retention_time_ms: int = -1,
) -> ErrorCode:
    request = OffsetCommitRequest(
        group_id=GROUP,
        retention_time_ms=retention_time_ms,
        topics=[
            OffsetCommitRequestTopic(
                name=topic,
                partitions=[
                    OffsetCommitRequestPartition(committed_offset=offset, committed_metadata="m")
                ],
            )
        ],
    )
    if joined is not None:
        request.generation_id_or_member_epoch = joined.generation_id
        request.member_id = joined.member_id
    response = await ask(broker, offset_commit, request, version)
    return ErrorCode(response.topics[0].partitions[0].error_code)


async def committed(broker: OneBroker, version: int = 8) -> int:
    """The committed offset of the topic's only partition, or its negative error."""
    request = OffsetFetchRequest()
    if version >= 8:
        topic = OffsetFetchRequestTopics(name=TOPIC, partition_indexes=[0])
        request.groups = [OffsetFetchRequestGroup(group_id=GROUP, topics=[topic])]
    else:
        request.group_id = GROUP
        request.topics = [OffsetFetchRequestTopic(name=TOPIC, partition_indexes=[0])]
    response = await ask(broker, offset_fetch, request, version)
    found = response.groups[0] if version >= 8 else response
    if version >= 2 and found.error_code:
        return -int(found.error_code)
    partition = found.topics[0].partitions[0]
    return -int(partition.error_code) if partition.error_code else partition.committed_offset


async def ready(broker: OneBroker) -> None:
    """Wait until every coordinator has loaded its log."""
    for _ in range(100_000):
        if all(
            r.state is not RuntimeState.LOADING
            for r in broker.broker.coordination.coordinators.groups.all()
        ):
            return
        await asyncio.sleep(0)


@pytest.mark.parametrize("version", range(10))
def test_a_member_lives_in_every_version(version: int) -> None:
    """Join, sync, heartbeat, commit, fetch, leave: in this version of each, as far as it goes."""

    async def story() -> None:
        async with world().broker() as broker:
            await broker.create_topic()
            await find(broker, min(version, 6))
            joined = await join(broker, version=version)
            if version >= 4:
                assert joined.error_code == ErrorCode.MEMBER_ID_REQUIRED
                joined = await join(broker, joined.member_id, version)
            assert joined.error_code == ErrorCode.NONE
            assert joined.member_id == joined.leader
            assert [bytes(each.metadata) for each in joined.members] == [b"subscription"]
            assert await sync(broker, joined, min(version, 5)) == b"all"
            request = HeartbeatRequest(
                group_id=GROUP, generation_id=joined.generation_id, member_id=joined.member_id
            )
            beat = await ask(broker, heartbeat, request, min(version, 4))
            assert beat.error_code == ErrorCode.NONE
            assert await commit(broker, 7, joined, version=max(version, 2)) == ErrorCode.NONE
            assert await committed(broker, max(version, 1)) == 7
            leave = LeaveGroupRequest(group_id=GROUP)
            if version >= 3:
                leave.members = [LeaveGroupMember(member_id=joined.member_id)]
            else:
                leave.member_id = joined.member_id
            left = await ask(broker, leave_group, leave, min(version, 5))
            assert left.error_code == ErrorCode.NONE
            assert all(each.error_code == ErrorCode.NONE for each in left.members)
            again = await ask(broker, leave_group, leave, min(version, 5))
            codes = {again.error_code, *(each.error_code for each in again.members)}
            assert codes - {0} == {ErrorCode.UNKNOWN_MEMBER_ID}

    run(story)


def test_a_heartbeat_is_not_refused_while_the_coordinator_loads() -> None:
    """As in Kafka: a member need not take the error for the end of its membership."""

    async def story() -> None:
        here = world()
        async with here.broker() as broker:
            joined = await enter(broker)
        async with here.broker() as broker:
            group = broker.broker.coordination.coordinators.groups.find(GROUP)
            assert group.state is RuntimeState.LOADING
            request = HeartbeatRequest(
                group_id=GROUP, generation_id=joined.generation_id, member_id=joined.member_id
            )
            assert (await ask(broker, heartbeat, request, 4)).error_code == ErrorCode.NONE
            # Whoever is no member hears of it when that is known.
            request.member_id = "nobody"
            await ready(broker)
            beat = await ask(broker, heartbeat, request, 4)
            assert beat.error_code == ErrorCode.UNKNOWN_MEMBER_ID

    run(story)


@pytest.mark.parametrize("version", range(7))
def test_groups_are_described_listed_and_deleted_in_every_version(version: int) -> None:
    async def story() -> None:
        async with world().broker() as broker:
            await enter(broker)
            describe = DescribeGroupsRequest(groups=[GROUP, "none"])
            found = await ask(broker, describe_groups, describe, version)
            group, missing = found.groups
            assert (group.group_state, group.protocol_data) == ("Stable", "range")
            assert bytes(group.members[0].member_assignment) == b"all"
            assert group.members[0].client_host == "/127.0.0.1"
            not_found = ErrorCode.GROUP_ID_NOT_FOUND if version >= 6 else ErrorCode.NONE
            assert (missing.error_code, missing.group_state) == (not_found, "Dead")
            listed = await ask(broker, list_groups, ListGroupsRequest(), min(version, 5))
            assert [(each.group_id, each.protocol_type) for each in listed.groups] == [
                (GROUP, "consumer")
            ]
            delete = DeleteGroupsRequest(groups_names=[GROUP, "none"])
            gone = await ask(broker, delete_groups, delete, min(version, 2))
            assert [each.error_code for each in gone.results] == [
                ErrorCode.NON_EMPTY_GROUP,
                ErrorCode.GROUP_ID_NOT_FOUND,
            ]

    run(story)


def test_types_and_states_are_filtered() -> None:
    async def story() -> None:
        async with world().broker() as broker:
            await enter(broker)
            for types, states, count in (
                (["classic"], [], 1),
                (["Classic", "consumer"], ["stable"], 1),
                (["consumer"], [], 0),
                ([], ["Empty"], 0),
            ):
                request = ListGroupsRequest(types_filter=types, states_filter=states)
                listed = await ask(broker, list_groups, request, 5)
                assert len(listed.groups) == count
                assert {each.group_type for each in listed.groups} <= {"classic"}

    run(story)


@pytest.mark.parametrize("politely", [True, False])
def test_groups_and_offsets_survive_the_broker(politely: bool) -> None:
    bucket = world()

    async def story() -> None:
        async with bucket.broker(politely=politely) as broker:
            await broker.create_topic()
            joined = await enter(broker)
            assert await commit(broker, 7, joined) == ErrorCode.NONE
        async with bucket.broker() as broker:
            await ready(broker)
            assert await committed(broker) == 7
            request = HeartbeatRequest(
                group_id=GROUP, generation_id=joined.generation_id, member_id=joined.member_id
            )
            beat = await ask(broker, heartbeat, request, 4)
            assert beat.error_code == ErrorCode.NONE
            assert await sync(broker, joined) == b"all"
            assert await commit(broker, 8, joined) == ErrorCode.NONE
        async with bucket.broker() as broker:
            await ready(broker)
            assert await committed(broker) == 8

    run(story)


def test_before_the_first_question_for_a_coordinator_there_is_none() -> None:
    async def story() -> None:
        async with world().broker() as broker:
            assert (await join(broker)).error_code == ErrorCode.NOT_COORDINATOR
            assert await committed(broker, 8) == -ErrorCode.NOT_COORDINATOR
            assert await committed(broker, 1) == -ErrorCode.NOT_COORDINATOR
            assert await commit(broker, 1) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            listed = await ask(broker, list_groups, ListGroupsRequest(), 5)
            assert (listed.error_code, listed.groups) == (ErrorCode.NONE, [])

    run(story)


def test_offsets_of_topics_that_do_not_exist_are_refused() -> None:
    async def story() -> None:
        async with world().broker() as broker:
            await find(broker)
            assert await commit(broker, 1, topic="none") == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    run(story)


def test_the_offsets_of_a_deleted_topic_are_not_those_of_its_successor() -> None:
    async def story() -> None:
        async with world().broker() as broker:
            await broker.create_topic()
            await find(broker)
            assert await commit(broker, 7) == ErrorCode.NONE
            request = DeleteTopicsRequest(topic_names=[TOPIC])
            await ask(broker, delete_topics, request, 4)
            await broker.create_topic()
            assert await committed(broker) == -1

    run(story)


def test_committed_offsets_are_deleted_for_each_partition() -> None:
    async def story() -> None:
        async with world().broker() as broker:
            await broker.create_topic()
            await find(broker)
            await commit(broker, 7)
            partitions = [OffsetDeleteRequestPartition(partition_index=0)]
            request = OffsetDeleteRequest(
                group_id=GROUP,
                topics=[
                    OffsetDeleteRequestTopic(name=name, partitions=partitions)
                    for name in (TOPIC, "none")
                ],
            )
            answer = await ask(broker, offset_delete, request, 0)
            assert [topic.partitions[0].error_code for topic in answer.topics] == [
                ErrorCode.NONE,
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            ]
            assert await committed(broker) == -1
            request.group_id = "none"
            answer = await ask(broker, offset_delete, request, 0)
            assert answer.error_code == ErrorCode.GROUP_ID_NOT_FOUND

    run(story)


# The internal topic.


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
def test_a_commit_that_brings_its_own_retention_expires_by_it(version: int) -> None:
    """Gone from version 5 on; -1 is the broker's setting."""

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
                wal.add_batch(
                    partition.log.partition,
                    partition.log.leader_epoch,
                    data,
                    header,
                    appended.base_offset,
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


# The end.


def test_a_join_that_waits_for_others_does_not_hold_up_the_end() -> None:
    async def story() -> None:
        async with world(group_initial_rebalance_delay_ms=3_000_000).broker() as broker:
            await find(broker)
            waiting = asyncio.create_task(join(broker))
            await asyncio.sleep(0)
            broker.life.stop()
            await broker.run
            assert (await waiting).error_code == ErrorCode.NOT_COORDINATOR

    run(story)
