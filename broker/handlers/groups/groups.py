"""The classic group protocol: JoinGroup (11), Heartbeat (12), LeaveGroup (13), SyncGroup (14),
DescribeGroups (15), ListGroups (16) and DeleteGroups (42)."""

from __future__ import annotations

from collections.abc import Awaitable

from tidelog.broker.authorization.access import operations_of
from tidelog.broker.handlers.groups.group_requests import ask, ask_runtime, reply_of
from tidelog.broker.handlers.request_context import RequestContext
from tidelog.broker.handlers.services import GroupServices
from tidelog.broker.topics.topic_view import OPERATIONS_NOT_ASKED
from tidelog.coordinator.group.commands import (
    DeleteGroup,
    DeleteReply,
    DescribeGroup,
    DescribeGroupReply,
    GroupListing,
    Heartbeat,
    HeartbeatReply,
    Join,
    JoinReply,
    Leave,
    Leaver,
    LeaveReply,
    ListGroups,
    ListGroupsReply,
    Reply,
    Sync,
    SyncReply,
)
from tidelog.coordinator.group.records.subscription import SupportedProtocol
from tidelog.coordinator.runtime import CoordinatorRefused
from tidelog.protocol.error_codes import ErrorCode
from tidelog.protocol.made_list import made_list
from tidelog.protocol.schemas.groups import (
    DeletableGroupResult,
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    DescribedGroup,
    DescribedGroupMember,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    JoinGroupResponseMember,
    LeaveGroupMemberResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    ListedGroup,
    ListGroupsRequest,
    ListGroupsResponse,
    SyncGroupRequest,
    SyncGroupResponse,
)
from tidelog.security.acl_codes import ResourceType

REBALANCE_TIMEOUT_FROM = 1
KNOWN_MEMBER_ID_FROM = 4
LEAVE_BATCHES_FROM = 3
MISSING_GROUP_FROM = 6
NULL_PROTOCOL_FROM = 7
SKIP_ASSIGNMENT_FROM = 9


def join_group(
    broker: GroupServices, request: JoinGroupRequest, context: RequestContext
) -> Awaitable[JoinGroupResponse]:
    """Enter a group; answered when its next generation begins."""
    version = context.api_version
    rebalance_timeout_ms = request.rebalance_timeout_ms
    if version < REBALANCE_TIMEOUT_FROM:
        rebalance_timeout_ms = request.session_timeout_ms
    command = Join(
        group_id=request.group_id,
        member_id=request.member_id,
        instance_id=request.group_instance_id,
        client_id=context.client_id or "",
        client_host=f"/{context.client_host}",
        session_timeout_ms=request.session_timeout_ms,
        rebalance_timeout_ms=rebalance_timeout_ms,
        protocol_type=request.protocol_type,
        # Copies: views would keep the whole frame in memory for the life of the group.
        protocols=tuple(
            [SupportedProtocol(each.name, bytes(each.metadata)) for each in request.protocols]
        ),
        requires_known_id=version >= KNOWN_MEMBER_ID_FROM,
        can_skip_assignment=version >= SKIP_ASSIGNMENT_FROM,
        fresh_id=str(broker.entropy.uuid()),
        topics=broker.metadata.state,
    )
    return _joined(ask(broker, request.group_id, command), request.member_id, version)


async def _joined(asked: Awaitable[Reply], member_id: str, version: int) -> JoinGroupResponse:
    try:
        reply = await reply_of(JoinReply, asked)
    except CoordinatorRefused as error:
        reply = JoinReply(error.code, member_id)
    protocol = reply.protocol
    if protocol is None and version < NULL_PROTOCOL_FROM:
        protocol = ""
    return JoinGroupResponse(
        error_code=reply.error,
        generation_id=reply.generation,
        protocol_type=reply.protocol_type,
        protocol_name=protocol,
        leader=reply.leader,
        skip_assignment=reply.skip_assignment,
        member_id=reply.member_id,
        members=[
            JoinGroupResponseMember(
                member_id=each.member_id,
                group_instance_id=each.instance_id,
                metadata=each.metadata,
            )
            for each in reply.members
        ],
    )


def sync_group(
    broker: GroupServices, request: SyncGroupRequest, context: RequestContext
) -> Awaitable[SyncGroupResponse]:
    """Submit the assignment, or wait for it."""
    if request.lacks_protocol(context.api_version):
        return _refused_sync(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
    command = Sync(
        group_id=request.group_id,
        generation=request.generation_id,
        member_id=request.member_id,
        instance_id=request.group_instance_id,
        protocol_type=request.protocol_type,
        protocol=request.protocol_name,
        assignments={each.member_id: bytes(each.assignment) for each in request.assignments},
        topics=broker.metadata.state,
    )
    return _synced(ask(broker, request.group_id, command))


async def _refused_sync(code: ErrorCode) -> SyncGroupResponse:
    return SyncGroupResponse(error_code=code)


async def _synced(asked: Awaitable[Reply]) -> SyncGroupResponse:
    try:
        reply = await reply_of(SyncReply, asked)
    except CoordinatorRefused as error:
        # During a load the member has to join again: the generation may be lost. Clients do not
        # expect the load's own error here, and some take it for final.
        loads = error.code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        reply = SyncReply(ErrorCode.REBALANCE_IN_PROGRESS if loads else error.code)
    return SyncGroupResponse(
        error_code=reply.error,
        protocol_type=reply.protocol_type,
        protocol_name=reply.protocol,
        assignment=reply.assignment,
    )


def heartbeat(
    broker: GroupServices, request: HeartbeatRequest, context: RequestContext
) -> Awaitable[HeartbeatResponse]:
    command = Heartbeat(
        request.group_id, request.generation_id, request.member_id, request.group_instance_id
    )
    broker.coordinators.groups.note_use(request.group_id, context.client_id)
    return _heartbeat_response(ask(broker, request.group_id, command))


async def _heartbeat_response(asked: Awaitable[Reply]) -> HeartbeatResponse:
    try:
        reply = await reply_of(HeartbeatReply, asked)
    except CoordinatorRefused as error:
        # As in Kafka: a member may still be one after the load, and some clients take this error
        # for the end of their membership.
        loads = error.code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        reply = HeartbeatReply(ErrorCode.NONE if loads else error.code)
    return HeartbeatResponse(error_code=reply.error)


def leave_group(
    broker: GroupServices, request: LeaveGroupRequest, context: RequestContext
) -> Awaitable[LeaveGroupResponse]:
    """Remove members at once, before their sessions expire."""
    is_batch = context.api_version >= LEAVE_BATCHES_FROM
    leavers = [Leaver(request.member_id, None)]
    if is_batch:
        leavers = [Leaver(each.member_id, each.group_instance_id) for each in request.members]
    return _left(ask(broker, request.group_id, Leave(request.group_id, leavers)), is_batch)


async def _left(asked: Awaitable[Reply], is_batch: bool) -> LeaveGroupResponse:
    try:
        reply = await reply_of(LeaveReply, asked)
    except CoordinatorRefused as error:
        reply = LeaveReply(error.code)
    if not is_batch:
        codes = [reply.error, *(error for _, error in reply.members)]
        return LeaveGroupResponse(error_code=next(filter(None, codes), ErrorCode.NONE))
    return LeaveGroupResponse(
        error_code=reply.error,
        members=[
            LeaveGroupMemberResponse(
                member_id=leaver.member_id, group_instance_id=leaver.instance_id, error_code=error
            )
            for leaver, error in reply.members
        ],
    )


async def describe_groups(
    broker: GroupServices, request: DescribeGroupsRequest, context: RequestContext
) -> DescribeGroupsResponse:
    """Describe groups by their coordinators."""
    asked = [
        (group_id, ask(broker, group_id, DescribeGroup(group_id))) for group_id in request.groups
    ]
    return DescribeGroupsResponse(
        groups=[
            await _described(
                group_id,
                reply,
                context.api_version,
                group_operations(request.include_authorized_operations, context, group_id),
            )
            for group_id, reply in asked
        ]
    )


def group_operations(is_asked: bool, context: RequestContext, group_id: str) -> int:
    """The bit field of a client's permissions on a group, if the client asks for it."""
    if not is_asked:
        return OPERATIONS_NOT_ASKED
    return operations_of(context.access, ResourceType.GROUP, group_id)


async def _described(
    group_id: str, asked: Awaitable[Reply], version: int, operations: int
) -> DescribedGroup:
    try:
        reply = await reply_of(DescribeGroupReply, asked)
    except CoordinatorRefused as error:
        return DescribedGroup(error_code=error.code, error_message=str(error), group_id=group_id)
    code, message = reply.error, None
    if code is ErrorCode.GROUP_ID_NOT_FOUND:
        message = f"Group {group_id} not found."
        if version < MISSING_GROUP_FROM:
            code = ErrorCode.NONE
    return DescribedGroup(
        error_code=code,
        error_message=message,
        group_id=group_id,
        group_state=reply.state,
        protocol_type=reply.protocol_type,
        protocol_data=reply.protocol,
        members=[
            DescribedGroupMember(
                member_id=each.member_id,
                group_instance_id=each.instance_id,
                client_id=each.client_id,
                client_host=each.client_host,
                member_metadata=each.metadata,
                member_assignment=each.assignment,
            )
            for each in reply.members
        ],
        authorized_operations=operations,
    )


async def list_groups(
    broker: GroupServices, request: ListGroupsRequest, context: RequestContext
) -> ListGroupsResponse:
    """The groups that this broker coordinates."""
    command = ListGroups(frozenset(request.states_filter), frozenset(request.types_filter))
    response = ListGroupsResponse()
    found: list[GroupListing] = []
    asked = await broker.turns.list_of(
        (ask_runtime(each, command) for each in broker.coordinators.groups.all()), 1
    )
    for each in asked:
        try:
            found += (await reply_of(ListGroupsReply, each)).groups
        except CoordinatorRefused as error:
            # The groups listed so far accompany the error, as in Kafka. A client has no coordinator
            # to search for: it asks again after Kafka's answer during a load.
            moves = error.code is ErrorCode.NOT_COORDINATOR
            response.error_code = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS if moves else error.code
    response.groups = made_list(found, _listed)
    return response


def _listed(group: GroupListing) -> ListedGroup:
    return ListedGroup(
        group_id=group.group_id,
        protocol_type=group.protocol_type,
        group_state=group.state,
        group_type=group.group_type,
    )


async def delete_groups(
    broker: GroupServices, request: DeleteGroupsRequest, context: RequestContext
) -> DeleteGroupsResponse:
    """Delete groups without members, with their offsets."""
    group_ids = dict.fromkeys(request.groups_names)
    asked = [(group_id, ask(broker, group_id, DeleteGroup(group_id))) for group_id in group_ids]
    return DeleteGroupsResponse(
        results=[
            DeletableGroupResult(
                group_id=group_id, error_code=await _deleted(broker, group_id, reply)
            )
            for group_id, reply in asked
        ]
    )


async def _deleted(broker: GroupServices, group_id: str, asked: Awaitable[Reply]) -> ErrorCode:
    """The outcome of a deletion. Each command deletes a limited number of a group's offsets."""
    try:
        reply = await reply_of(DeleteReply, asked)
        while not reply.is_done:
            reply = await reply_of(DeleteReply, ask(broker, group_id, DeleteGroup(group_id)))
    except CoordinatorRefused as error:
        return error.code
    return reply.error
