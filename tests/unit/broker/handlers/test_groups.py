"""Consumer groups on a whole broker: every version, restarts, the end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

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
    sync,
    world,
)
from tests.unit.broker.one_broker import TOPIC, OneBroker, run
from tidelog.broker.handlers.cluster.topics import delete_topics
from tidelog.broker.handlers.groups.group_offsets import offset_delete, offset_fetch
from tidelog.broker.handlers.groups.groups import (
    delete_groups,
    describe_groups,
    heartbeat,
    leave_group,
    list_groups,
    sync_group,
)
from tidelog.coordinator.runtime import RuntimeState
from tidelog.protocol.error_codes import ErrorCode
from tidelog.protocol.schemas.cluster.topics import DeleteTopicsRequest
from tidelog.protocol.schemas.group_offsets import (
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
    JoinGroupResponse,
    LeaveGroupMember,
    LeaveGroupRequest,
    ListGroupsRequest,
    SyncGroupRequest,
)


@pytest.mark.parametrize("version", range(10))
def test_a_member_lives_in_every_version(version: int) -> None:
    """Join, sync, heartbeat, commit, fetch, leave: each in this version, or in its newest."""

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


@asynccontextmanager
async def while_loading() -> AsyncIterator[tuple[OneBroker, JoinGroupResponse]]:
    """A broker that loads the group in which the broker before has answered a join."""
    here = world()
    async with here.broker() as broker:
        joined = await enter(broker)
    async with here.broker() as broker:
        group = broker.broker.coordination.coordinators.groups.find(GROUP)
        assert group.state is RuntimeState.LOADING
        yield broker, joined


def test_a_heartbeat_is_not_refused_while_the_coordinator_loads() -> None:
    """As in Kafka. With an error, the member might take its membership for ended."""

    async def story() -> None:
        async with while_loading() as (broker, joined):
            request = HeartbeatRequest(
                group_id=GROUP, generation_id=joined.generation_id, member_id=joined.member_id
            )
            assert (await ask(broker, heartbeat, request, 4)).error_code == ErrorCode.NONE
            # The coordinator refuses a stranger as soon as it knows the group.
            request.member_id = "nobody"
            await ready(broker)
            beat = await ask(broker, heartbeat, request, 4)
            assert beat.error_code == ErrorCode.UNKNOWN_MEMBER_ID

    run(story)


def test_a_member_that_syncs_while_the_coordinator_loads_joins_again() -> None:
    """Java consumers take COORDINATOR_LOAD_IN_PROGRESS for final here."""

    async def story() -> None:
        async with while_loading() as (broker, joined):
            request = SyncGroupRequest(
                group_id=GROUP, generation_id=joined.generation_id, member_id=joined.member_id
            )
            synced = await ask(broker, sync_group, request, 3)
            assert synced.error_code == ErrorCode.REBALANCE_IN_PROGRESS
            await ready(broker)
            assert (await join(broker, joined.member_id)).error_code == ErrorCode.NONE

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


def test_a_listing_is_refused_while_a_coordinator_loads_leaves_or_is_corrupt() -> None:
    """Clients ask again after the codes of Kafka's listings, and give up after others."""

    async def story() -> None:
        async with world().broker() as broker:
            await enter(broker)
            runtime = broker.broker.coordination.coordinators.groups.find(GROUP)
            for state, code in (
                (RuntimeState.LOADING, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS),
                (RuntimeState.CORRUPT, ErrorCode.COORDINATOR_NOT_AVAILABLE),
                (RuntimeState.STOPPED, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS),
            ):
                runtime._state = state
                listed = await ask(broker, list_groups, ListGroupsRequest(), 5)
                assert (listed.error_code, listed.groups) == (code, [])
            runtime._state = RuntimeState.READY
            listed = await ask(broker, list_groups, ListGroupsRequest(), 5)
            assert [each.group_id for each in listed.groups] == [GROUP]

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


@pytest.mark.parametrize("version", [7, 8])
def test_a_topic_that_a_request_names_twice_is_answered_with_all_its_partitions(
    version: int,
) -> None:
    async def story() -> None:
        async with world().broker() as broker:
            await broker.create_topic(partitions=2)
            await find(broker)
            await commit(broker, 7)
            request = OffsetFetchRequest()
            if version >= 8:
                twice = [
                    OffsetFetchRequestTopics(name=TOPIC, partition_indexes=[each])
                    for each in (0, 1)
                ]
                request.groups = [OffsetFetchRequestGroup(group_id=GROUP, topics=twice)]
            else:
                request.group_id = GROUP
                request.topics = [
                    OffsetFetchRequestTopic(name=TOPIC, partition_indexes=[each]) for each in (0, 1)
                ]
            answer = await ask(broker, offset_fetch, request, version)
            found = answer.groups[0] if version >= 8 else answer
            offsets = {
                (topic.name, each.partition_index): each.committed_offset
                for topic in found.topics
                for each in topic.partitions
            }
            assert offsets == {(TOPIC, 0): 7, (TOPIC, 1): -1}

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
