"""A broker refuses requests for another broker's coordinator with a code that makes clients search
for the coordinator."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.unit.broker.one_broker import TOPIC, run
from tests.unit.broker.peers.several import divided, new_world
from tests.unit.broker.transactional_client import GROUP, TransactionalClient, ask
from tidelog.broker.handlers.groups.consumer_groups import (
    consumer_group_describe,
    consumer_group_heartbeat,
)
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
from tidelog.broker.handlers.transactions.transaction_queries import (
    describe_transactions,
    list_transactions,
)
from tidelog.protocol.error_codes import ErrorCode
from tidelog.protocol.schemas.consumer_groups import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupHeartbeatRequest,
)
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
)
from tidelog.protocol.schemas.groups import (
    DeleteGroupsRequest,
    DescribeGroupsRequest,
    HeartbeatRequest,
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    LeaveGroupMember,
    LeaveGroupRequest,
    ListGroupsRequest,
    SyncGroupRequest,
)
from tidelog.protocol.schemas.transaction_listing import (
    DescribeTransactionsRequest,
    ListTransactionsRequest,
)

_OFFSETS = [
    OffsetCommitRequestTopic(
        name=TOPIC, partitions=[OffsetCommitRequestPartition(committed_offset=1)]
    )
]
_DELETED = [
    OffsetDeleteRequestTopic(
        name=TOPIC, partitions=[OffsetDeleteRequestPartition(partition_index=0)]
    )
]


@pytest.mark.parametrize(
    ("handler", "request_", "version", "code_in"),
    [
        (
            join_group,
            JoinGroupRequest(
                group_id=GROUP,
                session_timeout_ms=10_000,
                protocol_type="consumer",
                protocols=[JoinGroupRequestProtocol(name="range", metadata=b"")],
            ),
            9,
            lambda answer: answer.error_code,
        ),
        (
            sync_group,
            SyncGroupRequest(
                group_id=GROUP, member_id="m", protocol_type="consumer", protocol_name="range"
            ),
            5,
            lambda answer: answer.error_code,
        ),
        (
            heartbeat,
            HeartbeatRequest(group_id=GROUP, member_id="m"),
            4,
            lambda answer: answer.error_code,
        ),
        (
            leave_group,
            LeaveGroupRequest(group_id=GROUP, members=[LeaveGroupMember(member_id="m")]),
            5,
            lambda answer: answer.error_code,
        ),
        (
            offset_commit,
            OffsetCommitRequest(group_id=GROUP, topics=_OFFSETS),
            8,
            lambda answer: answer.topics[0].partitions[0].error_code,
        ),
        (
            offset_fetch,
            OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id=GROUP, topics=None)]),
            8,
            lambda answer: answer.groups[0].error_code,
        ),
        (
            offset_delete,
            OffsetDeleteRequest(group_id=GROUP, topics=_DELETED),
            0,
            lambda answer: answer.error_code,
        ),
        (
            describe_groups,
            DescribeGroupsRequest(groups=[GROUP]),
            6,
            lambda answer: answer.groups[0].error_code,
        ),
        (
            delete_groups,
            DeleteGroupsRequest(groups_names=[GROUP]),
            2,
            lambda answer: answer.results[0].error_code,
        ),
        (
            consumer_group_heartbeat,
            ConsumerGroupHeartbeatRequest(
                group_id=GROUP, member_id="m", subscribed_topic_names=[TOPIC], topic_partitions=[]
            ),
            1,
            lambda answer: answer.error_code,
        ),
        (
            consumer_group_describe,
            ConsumerGroupDescribeRequest(group_ids=[GROUP]),
            1,
            lambda answer: answer.groups[0].error_code,
        ),
        (
            describe_transactions,
            DescribeTransactionsRequest(transactional_ids=["t"]),
            0,
            lambda answer: answer.transaction_states[0].error_code,
        ),
    ],
)
def test_another_brokers_coordinator_is_searched_for(
    handler: Any, request_: Any, version: int, code_in: Callable[[Any], int]
) -> None:
    async def story() -> None:
        async with divided(new_world(), 0, coordinator=1, groups=1) as brokers:
            answer = await ask(brokers[0], handler, request_, version)
            assert code_in(answer) == ErrorCode.NOT_COORDINATOR

    run(story)


def test_every_broker_tells_where_the_coordinator_is_and_lists_its_own() -> None:
    async def story() -> None:
        async with divided(new_world(), 0, coordinator=1, groups=1) as brokers:
            assert await TransactionalClient(brokers[1]).init() == ErrorCode.NONE
            for key_type, key in enumerate([GROUP, "t"]):
                request = FindCoordinatorRequest(coordinator_keys=[key], key_type=key_type)
                for each in brokers:
                    (found,) = (await ask(each, find_coordinator, request, 4)).coordinators
                    address = (found.host, found.port)
                    assert address == brokers[1].broker.membership.advertised
            listed = [
                (await ask(each, list_transactions, ListTransactionsRequest(), 2))
                for each in brokers
            ]
            assert [len(each.transaction_states) for each in listed] == [0, 1]
            groups = await ask(brokers[0], list_groups, ListGroupsRequest(), 5)
            assert (groups.error_code, groups.groups) == (ErrorCode.NONE, [])

    run(story)
