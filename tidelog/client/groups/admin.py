"""An administrator's requests about consumer groups: list, describe, set offsets, delete."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from tidelog.client.errors import ReadRefused, check, check_read
from tidelog.client.pool import Client, CoordinatorKind
from tidelog.protocol.error_codes import ErrorCode
from tidelog.protocol.schemas.consumer_groups import ConsumerGroupDescribeRequest
from tidelog.protocol.schemas.group_offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
)
from tidelog.protocol.schemas.groups import (
    DeleteGroupsRequest,
    DescribedGroup,
    DescribedGroupMember,
    DescribeGroupsRequest,
    ListedGroup,
    ListGroupsRequest,
)

NO_OFFSET = -1
CONSUMER_TYPE = "consumer"


class Place(NamedTuple):
    """A partition, by its topic's name."""

    topic: str
    partition: int


async def list_groups(client: Client) -> list[ListedGroup]:
    """The groups of all brokers, by name.

    Raises:
        RequestRefused, RequestFailed: a broker refuses or does not answer.
    """
    found = []
    for broker in (await client.metadata([])).brokers:
        response = await client.request_broker(broker.node_id, ListGroupsRequest())
        check_read(f"groups of broker {broker.node_id}", response.error_code)
        found += response.groups
    return sorted(found, key=lambda group: group.group_id)


async def describe_group(client: Client, group_id: str) -> DescribedGroup:
    """The state and members of a group of either protocol.

    For a consumer group (KIP-848) the protocol is its assignor.

    Raises:
        RequestRefused, RequestFailed: the group does not exist, or no answer.
    """
    request = DescribeGroupsRequest(groups=[group_id])
    response = await client.request_to_coordinator(CoordinatorKind.GROUP, group_id, request)
    for group in response.groups:
        if group.error_code == ErrorCode.GROUP_ID_NOT_FOUND:
            found = await _describe_consumer_group(client, group_id)
            if found is not None:
                return found
        check_read(f"group {group_id}", group.error_code, group.error_message)
        return group
    raise ReadRefused(f"group {group_id}", ErrorCode.UNKNOWN_SERVER_ERROR, "no answer")


async def _describe_consumer_group(client: Client, group_id: str) -> DescribedGroup | None:
    request = ConsumerGroupDescribeRequest(group_ids=[group_id])
    response = await client.request_to_coordinator(CoordinatorKind.GROUP, group_id, request)
    for group in response.groups:
        if group.error_code == ErrorCode.GROUP_ID_NOT_FOUND:
            return None
        check_read(f"group {group_id}", group.error_code, group.error_message)
        return DescribedGroup(
            group_id=group_id,
            group_state=group.group_state,
            protocol_type=CONSUMER_TYPE,
            protocol_data=group.assignor_name,
            members=[
                DescribedGroupMember(
                    member_id=each.member_id,
                    group_instance_id=each.instance_id,
                    client_id=each.client_id,
                    client_host=each.client_host,
                )
                for each in group.members
            ],
        )
    return None


async def committed_offsets(client: Client, group_id: str) -> dict[Place, int]:
    """All committed offsets of a group; empty if the group does not exist.

    Raises:
        RequestRefused, RequestFailed: no answer.
    """
    group = OffsetFetchRequestGroup(group_id=group_id, topics=None)
    request = OffsetFetchRequest(groups=[group])
    response = await client.request_to_coordinator(CoordinatorKind.GROUP, group_id, request)
    found = {}
    for each in response.groups:
        check_read(f"offsets of group {group_id}", each.error_code)
        for topic in each.topics:
            for partition in topic.partitions:
                place = Place(topic.name, partition.partition_index)
                check_read(f"offset of group {group_id} in {place}", partition.error_code)
                if partition.committed_offset != NO_OFFSET:
                    found[place] = partition.committed_offset
    return dict(sorted(found.items()))


async def commit_offsets(client: Client, group_id: str, offsets: Mapping[Place, int]) -> None:
    """Set offsets of a group without members.

    Raises:
        RequestRefused, RequestFailed: some offsets were not stored; a retry is safe.
    """
    topics: dict[str, list[OffsetCommitRequestPartition]] = {}
    for place, offset in offsets.items():
        topics.setdefault(place.topic, []).append(
            OffsetCommitRequestPartition(
                partition_index=place.partition, committed_offset=offset, committed_metadata=""
            )
        )
    request = OffsetCommitRequest(
        group_id=group_id,
        topics=[
            OffsetCommitRequestTopic(name=name, partitions=partitions)
            for name, partitions in topics.items()
        ],
    )
    response = await client.request_to_coordinator(CoordinatorKind.GROUP, group_id, request)
    for topic in response.topics:
        for partition in topic.partitions:
            subject = f"offset of group {group_id} in {topic.name}-{partition.partition_index}"
            check(subject, partition.error_code)


async def delete_group(client: Client, group_id: str) -> None:
    """Delete a group without members, and its offsets.

    Raises:
        RequestRefused, RequestFailed: the group still exists, or the outcome is unknown.
    """
    request = DeleteGroupsRequest(groups_names=[group_id])
    response = await client.request_to_coordinator(CoordinatorKind.GROUP, group_id, request)
    for result in response.results:
        check(f"group {group_id}", result.error_code)
