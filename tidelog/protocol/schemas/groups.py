"""JoinGroup (11), Heartbeat (12), LeaveGroup (13), SyncGroup (14), DescribeGroups (15),
ListGroups (16) and DeleteGroups (42): the classic group protocol."""

from __future__ import annotations

from tidelog.protocol.fields import array, binary, boolean, int16, int32, string
from tidelog.protocol.message import Request, Response, Struct
from tidelog.protocol.wire import Buffer


class JoinGroupRequestProtocol(Struct):
    """An assignor that the member supports, with its opaque subscription."""

    name: str = string()
    metadata: Buffer = binary()


class JoinGroupRequest(Request["JoinGroupResponse"], api_key=11, versions=(0, 9), flexible=6):
    """Join a group, or join it again for the next generation."""

    group_id: str = string()
    session_timeout_ms: int = int32()
    rebalance_timeout_ms: int = int32("1+", default=-1)
    member_id: str = string()
    group_instance_id: str | None = string("5+", nullable="0+", default=None)
    protocol_type: str = string()
    protocols: list[JoinGroupRequestProtocol] = array(JoinGroupRequestProtocol)
    reason: str | None = string("8+", nullable="0+", default=None)


class JoinGroupResponseMember(Struct):
    """A member and its subscription, for the group's leader."""

    member_id: str = string()
    group_instance_id: str | None = string("5+", nullable="0+", default=None)
    metadata: Buffer = binary()


class JoinGroupResponse(Response, api_key=11, versions=(0, 9), flexible=6):
    """The generation; its leader also gets all members."""

    throttle_time_ms: int = int32("2+")
    error_code: int = int16()
    generation_id: int = int32(default=-1)
    protocol_type: str | None = string("7+", nullable="0+", default=None)
    protocol_name: str | None = string(nullable="7+")
    leader: str = string()
    skip_assignment: bool = boolean("9+")
    member_id: str = string()
    members: list[JoinGroupResponseMember] = array(JoinGroupResponseMember)


class HeartbeatRequest(Request["HeartbeatResponse"], api_key=12, versions=(0, 4), flexible=4):
    """Keep the member alive."""

    group_id: str = string()
    generation_id: int = int32()
    member_id: str = string()
    group_instance_id: str | None = string("3+", nullable="0+", default=None)


class HeartbeatResponse(Response, api_key=12, versions=(0, 4), flexible=4):
    """Tells whether the member must join again."""

    throttle_time_ms: int = int32("1+")
    error_code: int = int16()


class LeaveGroupMember(Struct):
    """A member that leaves."""

    member_id: str = string()
    group_instance_id: str | None = string(nullable="0+", default=None)
    reason: str | None = string("5+", nullable="0+", default=None)


class LeaveGroupRequest(Request["LeaveGroupResponse"], api_key=13, versions=(0, 5), flexible=4):
    """Leave a group: one member up to version 2, several from 3."""

    group_id: str = string()
    member_id: str = string("0-2")
    members: list[LeaveGroupMember] = array(LeaveGroupMember, "3+")


class LeaveGroupMemberResponse(Struct):
    member_id: str = string()
    group_instance_id: str | None = string(nullable="0+")
    error_code: int = int16()


class LeaveGroupResponse(Response, api_key=13, versions=(0, 5), flexible=4):
    throttle_time_ms: int = int32("1+")
    error_code: int = int16()
    members: list[LeaveGroupMemberResponse] = array(LeaveGroupMemberResponse, "3+")


PROTOCOL_FROM = 5


class SyncGroupRequestAssignment(Struct):
    """The leader's assignment for one member."""

    member_id: str = string()
    assignment: Buffer = binary()


class SyncGroupRequest(Request["SyncGroupResponse"], api_key=14, versions=(0, 5), flexible=4):
    """Send the assignments, as the leader, and request the own one."""

    group_id: str = string()
    generation_id: int = int32()
    member_id: str = string()
    group_instance_id: str | None = string("3+", nullable="0+", default=None)
    protocol_type: str | None = string("5+", nullable="0+", default=None)
    protocol_name: str | None = string("5+", nullable="0+", default=None)
    assignments: list[SyncGroupRequestAssignment] = array(SyncGroupRequestAssignment)

    def lacks_protocol(self, version: int) -> bool:
        """Whether it leaves out what it must name from version 5 on (KIP-559)."""
        return version >= PROTOCOL_FROM and None in (self.protocol_type, self.protocol_name)


class SyncGroupResponse(Response, api_key=14, versions=(0, 5), flexible=4):
    """The member's assignment, opaque to the broker."""

    throttle_time_ms: int = int32("1+")
    error_code: int = int16()
    protocol_type: str | None = string("5+", nullable="0+", default=None)
    protocol_name: str | None = string("5+", nullable="0+", default=None)
    assignment: Buffer = binary()


class DescribeGroupsRequest(
    Request["DescribeGroupsResponse"], api_key=15, versions=(0, 6), flexible=5
):
    """Describe groups."""

    groups: list[str] = array(string)
    include_authorized_operations: bool = boolean("3+")


class DescribedGroupMember(Struct):
    """A member of a described group."""

    member_id: str = string()
    group_instance_id: str | None = string("4+", nullable="0+", default=None)
    client_id: str = string()
    client_host: str = string()
    member_metadata: Buffer = binary()
    member_assignment: Buffer = binary()


class DescribedGroup(Struct):
    """A group, its state and its members."""

    error_code: int = int16()
    error_message: str | None = string("6+", nullable="0+", default=None)
    group_id: str = string()
    group_state: str = string()
    protocol_type: str = string()
    protocol_data: str = string()
    members: list[DescribedGroupMember] = array(DescribedGroupMember)
    authorized_operations: int = int32("3+", default=-(2**31))


class DescribeGroupsResponse(Response, api_key=15, versions=(0, 6), flexible=5):
    """The requested groups."""

    throttle_time_ms: int = int32("1+")
    groups: list[DescribedGroup] = array(DescribedGroup)


class ListGroupsRequest(Request["ListGroupsResponse"], api_key=16, versions=(0, 5), flexible=3):
    """List groups, optionally by state or type."""

    states_filter: list[str] = array(string, "4+")
    types_filter: list[str] = array(string, "5+")


class ListedGroup(Struct):
    """A group in brief."""

    group_id: str = string()
    protocol_type: str = string()
    group_state: str = string("4+")
    group_type: str = string("5+")


class ListGroupsResponse(Response, api_key=16, versions=(0, 5), flexible=3):
    """The groups that this broker coordinates."""

    throttle_time_ms: int = int32("1+")
    error_code: int = int16()
    groups: list[ListedGroup] = array(ListedGroup)


class DeleteGroupsRequest(Request["DeleteGroupsResponse"], api_key=42, versions=(0, 2), flexible=2):
    """Delete empty groups."""

    groups_names: list[str] = array(string)


class DeletableGroupResult(Struct):
    group_id: str = string()
    error_code: int = int16()


class DeleteGroupsResponse(Response, api_key=42, versions=(0, 2), flexible=2):
    throttle_time_ms: int = int32()
    results: list[DeletableGroupResult] = array(DeletableGroupResult)
