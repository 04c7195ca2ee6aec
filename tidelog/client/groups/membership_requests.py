"""A group member's state, requests and reactions to errors. Pure."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from tidelog.client.groups.admin import Place
from tidelog.client.groups.assignors import (
    CONSUMER_PROTOCOL,
    RANGE,
    ROUND_ROBIN,
    Assignor,
    encode_subscription,
)
from tidelog.client.patience import ClientRetrySettings
from tidelog.protocol.error_codes import ErrorCode
from tidelog.protocol.schemas.group_offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)
from tidelog.protocol.schemas.groups import JoinGroupRequest, JoinGroupRequestProtocol


class GroupMembership(NamedTuple):
    """A member in one generation of its group."""

    group_id: str
    member_id: str
    instance_id: str | None
    generation: int
    is_leader: bool
    assignment: tuple[Place, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class MembershipSettings:
    """Kafka's consumer settings of the same names, with its defaults."""

    session_timeout_ms: int = 45_000
    heartbeat_interval_ms: int = 3_000
    rebalance_timeout_ms: int = 300_000
    """Kafka uses max.poll.interval.ms."""
    api_timeout_ms: int = 60_000
    """The time limit for retries of a commit or a fetch of offsets."""
    instance_id: str | None = None
    assignors: Sequence[Assignor] = (RANGE, ROUND_ROBIN)
    """In order of preference."""
    retries: ClientRetrySettings = field(default_factory=ClientRetrySettings)


class Reaction(enum.Enum):
    """The effect of a coordinator's error on the membership."""

    REPEAT = enum.auto()
    """None; the coordinator may have moved, or may not be ready."""
    JOIN = enum.auto()
    """The next generation begins; the member keeps its partitions until it joins."""
    GENERATION_LOST = enum.auto()
    """The group has a later generation; other members may already read the partitions."""
    MEMBER_LOST = enum.auto()
    """The group no longer knows the member."""


REACTIONS: Mapping[int, Reaction] = {
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS: Reaction.REPEAT,
    ErrorCode.COORDINATOR_NOT_AVAILABLE: Reaction.REPEAT,
    ErrorCode.NOT_COORDINATOR: Reaction.REPEAT,
    ErrorCode.REQUEST_TIMED_OUT: Reaction.REPEAT,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: Reaction.REPEAT,
    ErrorCode.UNSTABLE_OFFSET_COMMIT: Reaction.REPEAT,
    ErrorCode.REBALANCE_IN_PROGRESS: Reaction.JOIN,
    ErrorCode.ILLEGAL_GENERATION: Reaction.GENERATION_LOST,
    ErrorCode.UNKNOWN_MEMBER_ID: Reaction.MEMBER_LOST,
}
"""All other errors are final."""


def join_group(
    group_id: str, member_id: str, topics: Iterable[str], settings: MembershipSettings
) -> JoinGroupRequest:
    """The request to join the next generation; an empty member id asks for a new one."""
    metadata = encode_subscription(topics)
    return JoinGroupRequest(
        group_id=group_id,
        session_timeout_ms=settings.session_timeout_ms,
        rebalance_timeout_ms=settings.rebalance_timeout_ms,
        member_id=member_id,
        group_instance_id=settings.instance_id,
        protocol_type=CONSUMER_PROTOCOL,
        protocols=[
            JoinGroupRequestProtocol(name=assignor.name, metadata=metadata)
            for assignor in settings.assignors
        ],
    )


def commit_offsets(
    membership: GroupMembership, offsets: Mapping[Place, int], metadata: str
) -> OffsetCommitRequest:
    """The request to store offsets as a member."""
    return OffsetCommitRequest(
        group_id=membership.group_id,
        generation_id_or_member_epoch=membership.generation,
        member_id=membership.member_id,
        group_instance_id=membership.instance_id,
        topics=[
            OffsetCommitRequestTopic(
                name=topic,
                partitions=[
                    OffsetCommitRequestPartition(
                        partition_index=number,
                        committed_offset=offsets[Place(topic, number)],
                        committed_metadata=metadata,
                    )
                    for number in numbers
                ],
            )
            for topic, numbers in _by_topic(offsets).items()
        ],
    )


def fetch_offsets(
    group_id: str, places: Iterable[Place], *, require_stable: bool
) -> OffsetFetchRequest | None:
    """The request for the offsets of these partitions; None without partitions."""
    topics = [
        OffsetFetchRequestTopics(name=topic, partition_indexes=numbers)
        for topic, numbers in _by_topic(places).items()
    ]
    if not topics:
        return None
    group = OffsetFetchRequestGroup(group_id=group_id, topics=topics)
    return OffsetFetchRequest(groups=[group], require_stable=require_stable)


def _by_topic(places: Iterable[Place]) -> dict[str, list[int]]:
    topics: dict[str, list[int]] = {}
    for place in sorted(places):
        topics.setdefault(place.topic, []).append(place.partition)
    return topics
