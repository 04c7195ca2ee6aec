"""One error for a whole request of the group protocol, in the shape that its answers have."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from tidelog.protocol.message import Message, Response
from tidelog.protocol.schemas import consumer_groups, group_offsets, groups

GROUP_ERROR_FROM = 2
"""The version of OffsetFetch from which on an answer has room for one error for all."""
GROUP_BATCHES_FROM = 8


def _describe_groups(request: groups.DescribeGroupsRequest, _v: int, code: int, m: str) -> Response:
    return groups.DescribeGroupsResponse(
        groups=[
            groups.DescribedGroup(group_id=group_id, error_code=code, error_message=m)
            for group_id in request.groups
        ]
    )


def _delete_groups(request: groups.DeleteGroupsRequest, _v: int, code: int, _m: str) -> Response:
    return groups.DeleteGroupsResponse(
        results=[
            groups.DeletableGroupResult(group_id=group_id, error_code=code)
            for group_id in request.groups_names
        ]
    )


def _join_group(request: groups.JoinGroupRequest, _v: int, code: int, _m: str) -> Response:
    return groups.JoinGroupResponse(error_code=code, protocol_name="", member_id=request.member_id)


def _consumer_group_heartbeat(
    _request: consumer_groups.ConsumerGroupHeartbeatRequest, _v: int, code: int, m: str
) -> Response:
    return consumer_groups.ConsumerGroupHeartbeatResponse(error_code=code, error_message=m)


def _consumer_group_describe(
    request: consumer_groups.ConsumerGroupDescribeRequest, _v: int, code: int, m: str
) -> Response:
    return consumer_groups.ConsumerGroupDescribeResponse(
        groups=[
            consumer_groups.DescribedConsumerGroup(
                group_id=group_id, error_code=code, error_message=m
            )
            for group_id in request.group_ids
        ]
    )


def _offset_commit(
    request: group_offsets.OffsetCommitRequest, _v: int, code: int, _m: str
) -> Response:
    return group_offsets.OffsetCommitResponse(
        topics=[
            group_offsets.OffsetCommitResponseTopic(
                name=topic.name,
                partitions=[
                    group_offsets.OffsetCommitResponsePartition(
                        partition_index=each.partition_index, error_code=code
                    )
                    for each in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )


def _offset_fetch(
    request: group_offsets.OffsetFetchRequest, version: int, code: int, _m: str
) -> Response:
    if version >= GROUP_BATCHES_FROM:
        return group_offsets.OffsetFetchResponse(
            groups=[
                group_offsets.OffsetFetchResponseGroup(group_id=each.group_id, error_code=code)
                for each in request.groups
            ]
        )
    if version >= GROUP_ERROR_FROM:
        return group_offsets.OffsetFetchResponse(error_code=code)
    return group_offsets.OffsetFetchResponse(
        topics=[
            group_offsets.OffsetFetchResponseTopic(
                name=topic.name,
                partitions=[
                    group_offsets.OffsetFetchResponsePartition(
                        partition_index=number, committed_offset=-1, metadata="", error_code=code
                    )
                    for number in topic.partition_indexes
                ],
            )
            for topic in request.topics or ()
        ]
    )


GROUP_SHAPES: Mapping[type[Message], Callable[[Any, int, int, str], Response]] = {
    groups.JoinGroupRequest: _join_group,
    groups.SyncGroupRequest: lambda _r, _v, code, _m: groups.SyncGroupResponse(error_code=code),
    groups.HeartbeatRequest: lambda _r, _v, code, _m: groups.HeartbeatResponse(error_code=code),
    groups.LeaveGroupRequest: lambda _r, _v, code, _m: groups.LeaveGroupResponse(error_code=code),
    groups.DescribeGroupsRequest: _describe_groups,
    groups.ListGroupsRequest: lambda _r, _v, code, _m: groups.ListGroupsResponse(error_code=code),
    groups.DeleteGroupsRequest: _delete_groups,
    consumer_groups.ConsumerGroupHeartbeatRequest: _consumer_group_heartbeat,
    consumer_groups.ConsumerGroupDescribeRequest: _consumer_group_describe,
    group_offsets.OffsetCommitRequest: _offset_commit,
    group_offsets.OffsetFetchRequest: _offset_fetch,
    group_offsets.OffsetDeleteRequest: lambda _r, _v, code, _m: group_offsets.OffsetDeleteResponse(
        error_code=code
    ),
}
