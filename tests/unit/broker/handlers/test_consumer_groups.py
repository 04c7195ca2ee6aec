"""Consumer groups (KIP-848) on a whole broker: both versions over the wire, restarts, errors."""

from __future__ import annotations

import asyncio
import threading

import pytest
import re2

from tests.unit.broker.group_client import GROUP, ask, find, ready, world
from tests.unit.broker.one_broker import TOPIC, OneBroker, run
from tidelog.broker.handlers.cluster.topics import create_partitions, delete_topics
from tidelog.broker.handlers.groups.consumer_groups import (
    consumer_group_describe,
    consumer_group_heartbeat,
)
from tidelog.broker.handlers.groups.group_offsets import offset_commit, offset_fetch
from tidelog.broker.handlers.groups.groups import list_groups
from tidelog.broker.handlers.transactions.transaction_queries import list_transactions
from tidelog.protocol.error_codes import ErrorCode
from tidelog.protocol.schemas.cluster.topics import (
    CreatePartitionsRequest,
    CreatePartitionsTopic,
    DeleteTopicsRequest,
)
from tidelog.protocol.schemas.consumer_groups import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    DescribedConsumerGroup,
    HeartbeatTopicPartitions,
)
from tidelog.protocol.schemas.group_offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
)
from tidelog.protocol.schemas.groups import ListGroupsRequest
from tidelog.protocol.schemas.transaction_listing import ListTransactionsRequest
from tidelog.workers.offload import ThreadOffload


async def beat(
    broker: OneBroker, member_id: str, epoch: int, version: int = 1, **fields: object
) -> ConsumerGroupHeartbeatResponse:
    request = ConsumerGroupHeartbeatRequest(group_id=GROUP, member_id=member_id, member_epoch=epoch)
    for name, value in fields.items():
        setattr(request, name, value)
    return await ask(broker, consumer_group_heartbeat, request, version)


async def join(
    broker: OneBroker, member_id: str = "m", version: int = 1, **fields: object
) -> ConsumerGroupHeartbeatResponse:
    wanted = {"subscribed_topic_names": [TOPIC]} | fields
    return await beat(
        broker, member_id, 0, version, rebalance_timeout_ms=60_000, topic_partitions=[], **wanted
    )


def given(response: ConsumerGroupHeartbeatResponse) -> list[int] | None:
    """The partitions of the only topic, or None if the answer has no assignment."""
    if response.assignment is None:
        return None
    return [n for topic in response.assignment.topic_partitions for n in topic.partitions]


async def describe(broker: OneBroker, version: int = 1) -> DescribedConsumerGroup:
    request = ConsumerGroupDescribeRequest(group_ids=[GROUP], include_authorized_operations=True)
    return (await ask(broker, consumer_group_describe, request, version)).groups[0]


async def commit(broker: OneBroker, offset: int, epoch: int) -> int:
    partition = OffsetCommitRequestPartition(partition_index=0, committed_offset=offset)
    request = OffsetCommitRequest(
        group_id=GROUP,
        generation_id_or_member_epoch=epoch,
        member_id="m",
        topics=[OffsetCommitRequestTopic(name=TOPIC, partitions=[partition])],
    )
    answer = await ask(broker, offset_commit, request, 9)
    return answer.topics[0].partitions[0].error_code


@pytest.mark.parametrize("version", [0, 1])
def test_a_member_joins_stays_is_described_and_leaves(version: int) -> None:
    async def story() -> None:
        async with world().broker() as broker:
            topic_id = await broker.create_topic(partitions=3)
            await find(broker)
            joined = await join(broker, version=version)
            assert (joined.error_code, joined.member_id, joined.member_epoch) == (0, "m", 1)
            assert (given(joined), joined.heartbeat_interval_ms) == ([0, 1, 2], 5000)
            owned = [HeartbeatTopicPartitions(topic_id=topic_id, partitions=[0, 1, 2])]
            stays = await beat(broker, "m", 1, version, topic_partitions=owned)
            assert (stays.error_code, stays.member_epoch, given(stays)) == (0, 1, None)
            found = await describe(broker, version)
            assert (found.error_code, found.group_state, found.assignor_name) == (
                0,
                "Stable",
                "uniform",
            )
            assert found.authorized_operations > 0
            (member,) = found.members
            (assigned,) = member.assignment.topic_partitions
            assert (assigned.topic_name, assigned.partitions) == (TOPIC, [0, 1, 2])
            assert member.target_assignment == member.assignment
            assert member.member_type == (1 if version >= 1 else -1)
            left = await beat(broker, "m", -1, version)
            assert (left.error_code, left.member_epoch) == (0, -1)
            assert (await describe(broker)).group_state == "Empty"

    run(story)


def test_expressions_and_ids_of_members_came_with_the_second_version() -> None:
    async def story() -> None:
        async with world().broker() as broker:
            await broker.create_topic(partitions=2)
            await find(broker)
            named = await join(broker, "", version=0)
            assert (named.error_code, bool(named.member_id)) == (0, True)
            assert (await join(broker, "")).error_code == ErrorCode.INVALID_REQUEST
            pattern = {"subscribed_topic_names": None, "subscribed_topic_regex": "fli.*"}
            joined = await join(broker, "r", **pattern)
            assert joined.error_code == 0
            pattern["subscribed_topic_regex"] = "fli(.*"
            refused = await join(broker, "s", **pattern)
            assert refused.error_code == ErrorCode.INVALID_REGULAR_EXPRESSION
            assert "missing" in (refused.error_message or "")
            # Compiled as it is, the expression would take 4 GB of memory and half a minute.
            pattern["subscribed_topic_regex"] = "(.*)" * 8000
            refused = await join(broker, "s", **pattern)
            assert refused.error_code == ErrorCode.INVALID_REGULAR_EXPRESSION
            assert "regex.length.max" in (refused.error_message or "")

    run(story)


def test_expressions_are_neither_compiled_nor_tried_on_the_event_loop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The event loop runs no expression, neither for a request nor when topics have been
    created."""

    async def story() -> None:
        here = threading.get_ident()
        compiled = re2.compile

        def compile_elsewhere(pattern: str, options: object) -> object:
            assert threading.get_ident() != here
            return compiled(pattern, options)

        monkeypatch.setattr(re2, "compile", compile_elsewhere)
        bucket = world(group_consumer_regex_lookup_interval_ms=0)
        bucket.offload = ThreadOffload()
        async with bucket.broker() as broker:
            await broker.create_topic("flights_a")
            await find(broker)
            pattern = {"subscribed_topic_names": None, "subscribed_topic_regex": "fli.*|r.*"}
            joined = await join(broker, "r", **pattern)
            assert joined.error_code == ErrorCode.NONE
            assert joined.assignment is not None
            assert len(joined.assignment.topic_partitions) == 1, "with the first heartbeat"
            await broker.create_topic("flights_b")
            answer = await beat(broker, "r", joined.member_epoch)
            while answer.assignment is None:
                await asyncio.sleep(0)
                answer = await beat(broker, "r", joined.member_epoch)
            assert len(answer.assignment.topic_partitions) == 2
            listed = await list_transactions(
                broker.broker.services.transactions,
                ListTransactionsRequest(transactional_id_pattern="sho.*"),
                broker.context(2),
            )
            assert listed.error_code == ErrorCode.NONE
        bucket.offload.close()

    run(story)


def test_members_and_offsets_are_there_after_the_broker_has_died() -> None:
    async def story() -> None:
        bucket = world()
        async with bucket.broker(politely=False) as broker:
            await broker.create_topic(partitions=2)
            await find(broker)
            await join(broker)
            assert await commit(broker, 7, 1) == ErrorCode.NONE
        async with bucket.broker() as broker:
            await ready(broker)
            assert (await describe(broker)).members[0].member_epoch == 1
            stays = await beat(broker, "m", 1)
            assert (stays.error_code, stays.member_epoch) == (0, 1)
            assert await commit(broker, 8, 2) == ErrorCode.STALE_MEMBER_EPOCH
            assert await commit(broker, 8, 1) == ErrorCode.NONE

    run(story)


def test_offsets_are_fetched_in_the_members_epoch() -> None:
    async def story() -> None:
        async with world().broker() as broker:
            await broker.create_topic()
            await find(broker)
            await join(broker)
            await commit(broker, 7, 1)
            for epoch, error in ((1, ErrorCode.NONE), (2, ErrorCode.STALE_MEMBER_EPOCH)):
                group = OffsetFetchRequestGroup(
                    group_id=GROUP, member_id="m", member_epoch=epoch, topics=None
                )
                answer = await ask(broker, offset_fetch, OffsetFetchRequest(groups=[group]), 9)
                assert answer.groups[0].error_code == error
                assert bool(answer.groups[0].topics) == (error is ErrorCode.NONE)

    run(story)


def test_partitions_and_topics_that_come_and_go_are_noticed_with_the_next_heartbeat() -> None:
    async def story() -> None:
        async with world().broker() as broker:
            await broker.create_topic(partitions=1)
            await find(broker)
            assert given(await join(broker)) == [0]
            grown = [CreatePartitionsTopic(name=TOPIC, count=3, assignments=None)]
            await ask(broker, create_partitions, CreatePartitionsRequest(topics=grown), 3)
            more = await beat(broker, "m", 1)
            assert (more.member_epoch, given(more)) == (2, [0, 1, 2])
            await ask(broker, delete_topics, DeleteTopicsRequest(topic_names=[TOPIC]), 4)
            assert given(await beat(broker, "m", 2)) == []
            assert (await describe(broker)).members[0].assignment.topic_partitions == []

    run(story)


def test_groups_are_listed_with_their_type() -> None:
    async def story() -> None:
        async with world().broker() as broker:
            await broker.create_topic()
            await find(broker)
            await join(broker)
            for types, expected in ((["Consumer"], [GROUP]), (["classic"], []), ([], [GROUP])):
                request = ListGroupsRequest(types_filter=types)
                answer = await ask(broker, list_groups, request, 5)
                assert [each.group_id for each in answer.groups] == expected
                assert all(each.group_type == "consumer" for each in answer.groups)

    run(story)


def test_a_broker_that_does_not_coordinate_refuses_the_request() -> None:
    async def story() -> None:
        async with world().broker() as broker:
            await broker.create_topic()
            assert (await join(broker)).error_code == ErrorCode.NOT_COORDINATOR
            assert (await describe(broker)).error_code == ErrorCode.NOT_COORDINATOR

    run(story)


def test_a_group_that_does_not_exist() -> None:
    async def story() -> None:
        async with world().broker() as broker:
            await find(broker)
            assert (await beat(broker, "m", 1)).error_code == ErrorCode.GROUP_ID_NOT_FOUND
            found = await describe(broker)
            assert found.error_code == ErrorCode.GROUP_ID_NOT_FOUND

    run(story)


def test_the_protocol_can_be_switched_off() -> None:
    async def story() -> None:
        settings = {"group_coordinator_rebalance_protocols": "classic"}
        async with world(**settings).broker() as broker:
            await broker.create_topic()
            await find(broker)
            assert (await join(broker)).error_code == ErrorCode.UNSUPPORTED_VERSION

    run(story)
