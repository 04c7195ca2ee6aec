"""The group coordinator's commands and replies: requests without their wire form."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from tidelog.coordinator.decision import BatchProducer
from tidelog.coordinator.group.assign.target_assignment import Target, TargetTask
from tidelog.coordinator.group.consumer_commands import (
    ClusterTopics,
    ConsumerDescription,
    ConsumerHeartbeat,
    ConsumerHeartbeatReply,
    DescribeConsumerGroup,
    Matches,
)
from tidelog.coordinator.group.records.log_records import CommittedOffset
from tidelog.coordinator.group.records.subscription import SupportedProtocol
from tidelog.identifiers import TopicId
from tidelog.protocol.error_codes import ErrorCode

NO_MEMBER = ""
NO_GENERATION = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Join:
    """Enter a group, or enter it again. A new member's id is made from `fresh_id`."""

    group_id: str
    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocol_type: str
    protocols: tuple[SupportedProtocol, ...]
    requires_known_id: bool
    """A new member learns its id first and joins again with it (KIP-394, version 4)."""
    can_skip_assignment: bool
    """The leader understands that the assignment stays (KIP-814, version 9)."""
    fresh_id: str
    topics: ClusterTopics
    """For consumer groups, whose coordinator assigns the partitions."""


class JoinedMember(NamedTuple):
    """A member in the leader's list of members."""

    member_id: str
    instance_id: str | None
    metadata: bytes


@dataclass(frozen=True, slots=True)
class JoinReply:
    """The generation, or the error. `members` are for the leader only."""

    error: ErrorCode
    member_id: str
    generation: int = NO_GENERATION
    protocol_type: str | None = None
    protocol: str | None = None
    leader: str = NO_MEMBER
    skip_assignment: bool = False
    members: tuple[JoinedMember, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Sync:
    """Request the assignment; the leader also submits those of all members.

    A protocol type or protocol of None is not compared with the group's.
    """

    group_id: str
    generation: int
    member_id: str
    instance_id: str | None
    protocol_type: str | None
    protocol: str | None
    assignments: Mapping[str, bytes]
    topics: ClusterTopics
    """For consumer groups, as in Join."""


@dataclass(frozen=True, slots=True)
class SyncReply:
    error: ErrorCode
    protocol_type: str | None = None
    protocol: str | None = None
    assignment: bytes = b""


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """Keep the member's session."""

    group_id: str
    generation: int
    member_id: str
    instance_id: str | None


@dataclass(frozen=True, slots=True)
class HeartbeatReply:
    """The error tells whether the member must join again."""

    error: ErrorCode


class Leaver(NamedTuple):
    """A leaving member; the instance id alone may name a static one."""

    member_id: str
    instance_id: str | None


@dataclass(frozen=True, slots=True)
class Leave:
    group_id: str
    members: Sequence[Leaver]


@dataclass(frozen=True, slots=True)
class LeaveReply:
    """The result of each leaver, in order; `error` is for all of them."""

    error: ErrorCode
    members: Sequence[tuple[Leaver, ErrorCode]] = ()


class OffsetToCommit(NamedTuple):
    """One partition's next offset."""

    topic: str
    partition: int
    offset: int
    leader_epoch: int
    metadata: str
    topic_id: TopicId | None = None
    """The id of the topic that has the name now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitOffsets:
    """Store offsets of a group; a generation of -1 comes from outside of the group's protocol."""

    group_id: str
    generation: int
    member_id: str
    instance_id: str | None
    retention_ms: int | None
    """How long they are kept; None: the broker's setting."""
    knows_missing_group: bool
    """The client understands GROUP_ID_NOT_FOUND (version 9)."""
    offsets: Sequence[OffsetToCommit]
    unless_since_ms: int | None = None
    """A partition with an offset that was committed at this time or later keeps it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitTransactionalOffsets:
    """Store offsets of a group as part of a transaction.

    A request without member, generation and instance is not fenced (KIP-447: clients before version
    3).
    """

    group_id: str
    generation: int
    member_id: str
    instance_id: str | None
    producer: BatchProducer
    offsets: Sequence[OffsetToCommit]


@dataclass(frozen=True, slots=True)
class PartitionErrors:
    """The error code of each named partition, in order; `error` is for all."""

    error: ErrorCode
    partitions: Sequence[tuple[str, int, ErrorCode]] = ()
    decided_ms: int = 0
    """The time of the offsets that an OffsetCommit stored, or would have stored."""


@dataclass(frozen=True, slots=True)
class FetchOffsets:
    """Request the committed offsets of these partitions, or of all if `topics` is None.

    With `require_stable`, offsets that an open transaction may change are refused (KIP-447). A
    member of a consumer group may identify itself, and is refused if its identity is outdated
    (KIP-848).
    """

    group_id: str
    topics: Mapping[str, Sequence[int]] | None
    require_stable: bool = False
    member_id: str | None = None
    member_epoch: int = -1


@dataclass(frozen=True, slots=True)
class OffsetsReply:
    """Committed offsets by topic and partition.

    None if there is none, or if the partition is one of `unstable`.
    """

    error: ErrorCode
    topics: Mapping[str, Mapping[int, CommittedOffset | None]]
    unstable: frozenset[tuple[str, int]] = frozenset()


@dataclass(frozen=True, slots=True)
class DeleteOffsets:
    """Delete committed offsets of a group."""

    group_id: str
    partitions: Sequence[tuple[str, int]]


@dataclass(frozen=True, slots=True)
class DeleteGroup:
    """Delete a group without members, and its offsets."""

    group_id: str


@dataclass(frozen=True, slots=True)
class ErrorReply:
    """The error code; NONE for success."""

    error: ErrorCode


@dataclass(frozen=True, slots=True)
class DeleteReply:
    """The outcome of a deletion.

    While `is_done` is false, the group still exists with fewer offsets, and the caller deletes it
    again.
    """

    error: ErrorCode
    is_done: bool = True


@dataclass(frozen=True, slots=True)
class DescribeGroup:
    """Request a group's state and its members."""

    group_id: str


class DescribedMember(NamedTuple):
    """A member; metadata and assignment are empty unless the group is stable."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    metadata: bytes
    assignment: bytes


@dataclass(frozen=True, slots=True)
class DescribeGroupReply:
    """A group; GROUP_ID_NOT_FOUND with state Dead if it does not exist."""

    error: ErrorCode
    state: str
    protocol_type: str = ""
    protocol: str = ""
    members: Sequence[DescribedMember] = ()


@dataclass(frozen=True, slots=True)
class ListGroups:
    """Request the groups with these states and types (by name, in any case).

    An empty set matches all.
    """

    states: frozenset[str]
    types: frozenset[str] = frozenset()


class GroupListing(NamedTuple):
    """The summary of a group. Its type is "classic" or "consumer"."""

    group_id: str
    protocol_type: str
    state: str
    group_type: str


@dataclass(frozen=True, slots=True)
class ListGroupsReply:
    """The groups of one coordinator."""

    groups: Sequence[GroupListing]


@dataclass(frozen=True, slots=True)
class ForgetTopics:
    """Topics were deleted, by name and id: their offsets must go."""

    topics: Mapping[str, Collection[TopicId]]


@dataclass(frozen=True, slots=True)
class PatternLookup:
    """Slow work: match a consumer group's regular expressions against the topics.

    Its result is `PatternsFound`.
    """

    group_id: str
    patterns: frozenset[str]
    topics: ClusterTopics


@dataclass(frozen=True, slots=True)
class PatternsFound:
    """The topics that a consumer group's regular expressions match."""

    group_id: str
    matches: Matches


@dataclass(frozen=True, slots=True)
class TargetMade:
    """The target assignment of a large consumer group, made off the event loop."""

    target: Target


GroupWork: TypeAlias = PatternLookup | TargetTask
"""Work of a decision that is too slow for the event loop.

Lost work is requested again.
"""

Command: TypeAlias = (
    Join
    | Sync
    | Heartbeat
    | Leave
    | CommitOffsets
    | CommitTransactionalOffsets
    | FetchOffsets
    | DeleteOffsets
    | DeleteGroup
    | DescribeGroup
    | ListGroups
    | ConsumerHeartbeat
    | DescribeConsumerGroup
    | ForgetTopics
    | PatternsFound
    | TargetMade
)
Reply: TypeAlias = (
    JoinReply
    | SyncReply
    | HeartbeatReply
    | LeaveReply
    | PartitionErrors
    | OffsetsReply
    | ErrorReply
    | DeleteReply
    | DescribeGroupReply
    | ListGroupsReply
    | ConsumerHeartbeatReply
    | ConsumerDescription
)
