"""ConsumerGroupHeartbeat (68) and ConsumerGroupDescribe (69): the group protocol of KIP-848."""

from __future__ import annotations

from uuid import UUID

from tidelog.protocol.fields import array, boolean, int8, int16, int32, string, struct, uuid
from tidelog.protocol.message import Request, Response, Struct


class HeartbeatTopicPartitions(Struct):
    """Partitions of one topic, by its id."""

    topic_id: UUID = uuid()
    partitions: list[int] = array(int32)


class ConsumerGroupHeartbeatRequest(
    Request["ConsumerGroupHeartbeatResponse"], api_key=68, versions=(0, 1), flexible=0
):
    """Join (member epoch 0), stay, leave (-1) or, as a static member, leave temporarily (-2).

    None, or a timeout of -1, means unchanged since the last heartbeat.
    """

    group_id: str = string()
    member_id: str = string()
    member_epoch: int = int32()
    instance_id: str | None = string(nullable="0+", default=None)
    rack_id: str | None = string(nullable="0+", default=None)
    rebalance_timeout_ms: int = int32(default=-1)
    subscribed_topic_names: list[str] | None = array(string, nullable="0+", default=None)
    subscribed_topic_regex: str | None = string("1+", nullable="1+", default=None)
    server_assignor: str | None = string(nullable="0+", default=None)
    topic_partitions: list[HeartbeatTopicPartitions] | None = array(
        HeartbeatTopicPartitions, nullable="0+", default=None
    )


class HeartbeatAssignment(Struct):
    """All partitions that the member may consume."""

    topic_partitions: list[HeartbeatTopicPartitions] = array(HeartbeatTopicPartitions)


class ConsumerGroupHeartbeatResponse(Response, api_key=68, versions=(0, 1), flexible=0):
    """The member's epoch, and its assignment if that has changed."""

    throttle_time_ms: int = int32()
    error_code: int = int16()
    error_message: str | None = string(nullable="0+", default=None)
    member_id: str | None = string(nullable="0+", default=None)
    member_epoch: int = int32()
    heartbeat_interval_ms: int = int32()
    assignment: HeartbeatAssignment | None = struct(HeartbeatAssignment, nullable="0+")


class ConsumerGroupDescribeRequest(
    Request["ConsumerGroupDescribeResponse"], api_key=69, versions=(0, 1), flexible=0
):
    """Describe groups."""

    group_ids: list[str] = array(string)
    include_authorized_operations: bool = boolean()


class DescribedTopicPartitions(Struct):
    """Partitions of one topic."""

    topic_id: UUID = uuid()
    topic_name: str = string()
    partitions: list[int] = array(int32)


class DescribedAssignment(Struct):
    """The partitions of a member."""

    topic_partitions: list[DescribedTopicPartitions] = array(DescribedTopicPartitions)


class DescribedConsumerGroupMember(Struct):
    """A member. `member_type` is 0 for the classic protocol, 1 for this one, -1 if unknown."""

    member_id: str = string()
    instance_id: str | None = string(nullable="0+", default=None)
    rack_id: str | None = string(nullable="0+", default=None)
    member_epoch: int = int32()
    client_id: str = string()
    client_host: str = string()
    subscribed_topic_names: list[str] = array(string)
    subscribed_topic_regex: str | None = string(nullable="0+", default=None)
    assignment: DescribedAssignment = struct(DescribedAssignment)
    target_assignment: DescribedAssignment = struct(DescribedAssignment)
    member_type: int = int8("1+", default=-1)


class DescribedConsumerGroup(Struct):
    """A group, its epochs and its members."""

    error_code: int = int16()
    error_message: str | None = string(nullable="0+", default=None)
    group_id: str = string()
    group_state: str = string()
    group_epoch: int = int32()
    assignment_epoch: int = int32()
    assignor_name: str = string()
    members: list[DescribedConsumerGroupMember] = array(DescribedConsumerGroupMember)
    authorized_operations: int = int32(default=-(2**31))


class ConsumerGroupDescribeResponse(Response, api_key=69, versions=(0, 1), flexible=0):
    """The requested groups."""

    throttle_time_ms: int = int32()
    groups: list[DescribedConsumerGroup] = array(DescribedConsumerGroup)
