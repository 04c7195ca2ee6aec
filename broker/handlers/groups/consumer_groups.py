"""ConsumerGroupHeartbeat (68) and ConsumerGroupDescribe (69): the group protocol of KIP-848."""

from __future__ import annotations

from collections.abc import Awaitable, Generator, Iterable, Sequence
from typing import Final

from tidelog.broker.handlers.error_responses import error_response
from tidelog.broker.handlers.groups.group_requests import ask, reply_of
from tidelog.broker.handlers.groups.groups import group_operations
from tidelog.broker.handlers.request_context import RequestContext
from tidelog.broker.handlers.services import GroupServices
from tidelog.broker.settings.tables.groups import CONSUMER
from tidelog.coordinator.cluster.state.state import ClusterState
from tidelog.coordinator.group.commands import Reply
from tidelog.coordinator.group.consumer_commands import (
    JOIN_EPOCH,
    ConsumerDescription,
    ConsumerHeartbeat,
    ConsumerHeartbeatReply,
    DescribeConsumerGroup,
    DescribedConsumer,
    Matches,
)
from tidelog.coordinator.group.records.consumer_records import Assignment
from tidelog.coordinator.patterns import InvalidPattern, check_length
from tidelog.coordinator.runtime import CoordinatorRefused
from tidelog.protocol.error_codes import ErrorCode
from tidelog.protocol.message import Response
from tidelog.protocol.schemas.consumer_groups import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    DescribedAssignment,
    DescribedConsumerGroup,
    DescribedConsumerGroupMember,
    DescribedTopicPartitions,
    HeartbeatAssignment,
    HeartbeatTopicPartitions,
)
from tidelog.protocol.wire import STEP_ELEMENTS

MEMBER_ID_FROM: Final = 1
_CLASSIC_MEMBER: Final = 0
_CONSUMER_MEMBER: Final = 1
"""A member's type in a description: the protocol that it uses."""


async def consumer_group_heartbeat(
    broker: GroupServices, request: ConsumerGroupHeartbeatRequest, context: RequestContext
) -> Response | None:
    """Join, stay in or leave a consumer group; the answer has the member's assignment."""
    version = context.api_version
    if CONSUMER not in broker.settings.items_of("group.coordinator.rebalance.protocols"):
        why = "the consumer protocol is switched off (group.coordinator.rebalance.protocols)"
        return error_response(request, version, ErrorCode.UNSUPPORTED_VERSION, why)
    try:
        matches = await _matches(broker, request)
    except InvalidPattern as error:
        return error_response(request, version, ErrorCode.INVALID_REGULAR_EXPRESSION, str(error))
    except CoordinatorRefused as error:
        return error_response(request, version, error.code, str(error))
    owned = await broker.turns.through(_owned(request.topic_partitions))
    names = request.subscribed_topic_names
    command = ConsumerHeartbeat(
        group_id=request.group_id,
        member_id=request.member_id,
        member_epoch=request.member_epoch,
        instance_id=request.instance_id,
        rack_id=request.rack_id,
        client_id=context.client_id or "",
        client_host=f"/{context.client_host}",
        rebalance_timeout_ms=request.rebalance_timeout_ms,
        topic_names=None if names is None else tuple(names),
        topic_regex=request.subscribed_topic_regex,
        server_assignor=request.server_assignor,
        owned=owned,
        brings_member_id=version >= MEMBER_ID_FROM,
        fresh_id=str(broker.entropy.uuid()),
        topics=broker.metadata.state,
        matches=matches,
    )
    groups = broker.coordinators.groups
    groups.note_use(request.group_id, context.client_id, request.rack_id)
    return await _heartbeat_response(ask(broker, request.group_id, command))


async def _matches(broker: GroupServices, request: ConsumerGroupHeartbeatRequest) -> Matches | None:
    """The topics that match the request's regular expression, if it has one.

    A worker compiles and tries it. Raises InvalidPattern or CoordinatorRefused.
    """
    pattern = request.subscribed_topic_regex
    if not pattern or request.member_epoch < JOIN_EPOCH:
        return None
    check_length(pattern, broker.settings.integer("regex.length.max"))
    matching = broker.coordinators.group_work.patterns
    return await matching.topics_named(frozenset({pattern}), broker.metadata.state)


def _owned(
    topics: Iterable[HeartbeatTopicPartitions] | None,
) -> Generator[None, None, Assignment | None]:
    """The partitions that the member reports as its own, in steps."""
    if topics is None:
        return None
    owned = {}
    for number, each in enumerate(topics, 1):
        if each.partitions:
            owned[each.topic_id] = frozenset(each.partitions)
        if number % STEP_ELEMENTS == 0:
            yield
    return owned


async def _heartbeat_response(asked: Awaitable[Reply]) -> ConsumerGroupHeartbeatResponse:
    try:
        reply = await reply_of(ConsumerHeartbeatReply, asked)
    except CoordinatorRefused as error:
        reply = ConsumerHeartbeatReply(error.code, str(error))
    assignment = None
    if reply.assignment is not None:
        assignment = HeartbeatAssignment(
            topic_partitions=[
                HeartbeatTopicPartitions(topic_id=topic_id, partitions=sorted(numbers))
                for topic_id, numbers in sorted(reply.assignment.items())
            ]
        )
    return ConsumerGroupHeartbeatResponse(
        error_code=reply.error,
        error_message=reply.message,
        member_id=reply.member_id,
        member_epoch=reply.member_epoch,
        heartbeat_interval_ms=reply.heartbeat_interval_ms,
        assignment=assignment,
    )


async def consumer_group_describe(
    broker: GroupServices, request: ConsumerGroupDescribeRequest, context: RequestContext
) -> ConsumerGroupDescribeResponse:
    """Describe consumer groups by their coordinators; classic groups are not found."""
    asked = [
        (group_id, ask(broker, group_id, DescribeConsumerGroup(group_id)))
        for group_id in request.group_ids
    ]
    return ConsumerGroupDescribeResponse(
        groups=[
            await _described(
                broker.metadata.state,
                group_id,
                reply,
                group_operations(request.include_authorized_operations, context, group_id),
            )
            for group_id, reply in asked
        ]
    )


async def _described(
    state: ClusterState, group_id: str, asked: Awaitable[Reply], operations: int
) -> DescribedConsumerGroup:
    try:
        reply = await reply_of(ConsumerDescription, asked)
    except CoordinatorRefused as error:
        reply, message = ConsumerDescription(error.code), str(error)
    else:
        message = f"Group {group_id} is not a consumer group."
    if reply.error is not ErrorCode.NONE:
        return DescribedConsumerGroup(
            group_id=group_id, error_code=reply.error, error_message=message
        )
    return DescribedConsumerGroup(
        group_id=group_id,
        group_state=reply.state,
        group_epoch=reply.epoch,
        assignment_epoch=reply.assignment_epoch,
        assignor_name=reply.assignor,
        members=_members(state, reply.members),
        authorized_operations=operations,
    )


def _members(
    state: ClusterState, members: Sequence[DescribedConsumer]
) -> list[DescribedConsumerGroupMember]:
    return [
        DescribedConsumerGroupMember(
            member_id=each.member_id,
            instance_id=each.subscription.instance_id,
            rack_id=each.subscription.rack_id,
            member_epoch=each.current.epoch,
            client_id=each.subscription.client_id,
            client_host=each.subscription.client_host,
            subscribed_topic_names=list(each.subscription.topic_names),
            subscribed_topic_regex=each.subscription.topic_regex,
            assignment=_named(state, each.current.assigned),
            target_assignment=_named(state, each.target),
            member_type=_CLASSIC_MEMBER if each.subscription.classic else _CONSUMER_MEMBER,
        )
        for each in members
    ]


def _named(state: ClusterState, assignment: Assignment) -> DescribedAssignment:
    """The partitions with their topics' names, except those of deleted topics."""
    return DescribedAssignment(
        topic_partitions=[
            DescribedTopicPartitions(
                topic_id=topic_id,
                topic_name=state.topics[topic_id].name,
                partitions=sorted(numbers),
            )
            for topic_id, numbers in sorted(assignment.items())
            if topic_id in state.topics
        ]
    )
