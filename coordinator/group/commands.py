"""What is asked of the group coordinator, and what it answers: requests without their wire form."""

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
    """Enter a group, or enter it again. `fresh_id` is where a new member's id is made from."""

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
    """A new member is told its id and joins again with it (KIP-394, version 4)."""
    can_skip_assignment: bool
    """The leader understands that the assignment holds on (KIP-814, version 9)."""
    fresh_id: str
    topics: ClusterTopics
    """For consumer groups, whose coordinator assigns partitions itself."""


class JoinedMember(NamedTuple):
    """A member as the leader is told of it."""

    member_id: str
    instance_id: str | None
    metadata: bytes


@dataclass(frozen=True, slots=True)
class JoinReply:
    """The generation, or why there is none. `members` are for the leader only."""

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
    """Ask for the assignment; the leader hands in everybody's. A type or protocol of None is not
    compared with the group's."""

    group_id: str
    generation: int
    member_id: str
    instance_id: str | None
    protocol_type: str | None
    protocol: str | None
    assignments: Mapping[str, bytes]
    topics: ClusterTopics
    """For consumer groups, as those of Join."""


@dataclass(frozen=True, slots=True)
class SyncReply:
    """The member's assignment."""

    error: ErrorCode
    protocol_type: str | None = None
    protocol: str | None = None
    assignment: bytes = b""


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """The member is alive."""

    group_id: str
    generation: int
    member_id: str
    instance_id: str | None


@dataclass(frozen=True, slots=True)
class HeartbeatReply:
    """Whether it must join again."""

    error: ErrorCode


class Leaver(NamedTuple):
    """A member that leaves; a static one may be named by its instance id alone."""

    member_id: str
    instance_id: str | None


@dataclass(frozen=True, slots=True)
class Leave:
    """Members leave a group."""

    group_id: str
    members: Sequence[Leaver]


@dataclass(frozen=True, slots=True)
class LeaveReply:
    """What became of each, in order; `error` speaks of all of them."""

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
    """The topic that has the name now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitOffsets:
    """Store offsets of a group; a generation of -1 comes from outside the group's protocol."""

    group_id: str
    generation: int
    member_id: str
    instance_id: str | None
    retention_ms: int | None
    """How long they are kept; None leaves that to the broker."""
    knows_missing_group: bool
    """GROUP_ID_NOT_FOUND is understood (version 9)."""
    offsets: Sequence[OffsetToCommit]


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitTransactionalOffsets:
    """Store offsets of a group as part of a transaction. Who names neither a member, nor a
    generation, nor an instance is not fenced (KIP-447: clients before version 3)."""

    group_id: str
    generation: int
    member_id: str
    instance_id: str | None
    producer: BatchProducer
    offsets: Sequence[OffsetToCommit]


@dataclass(frozen=True, slots=True)
class PartitionErrors:
    """An error code for each partition that was named, in order; `error` speaks of all."""

    error: ErrorCode
    partitions: Sequence[tuple[str, int, ErrorCode]] = ()


@dataclass(frozen=True, slots=True)
class FetchOffsets:
    """The committed offsets of these partitions, of all where `topics` is None. With
    `require_stable` an offset is refused that an open transaction may change (KIP-447). A member of
    a consumer group may say who it is, and is refused if it is no longer that (KIP-848)."""

    group_id: str
    topics: Mapping[str, Sequence[int]] | None
    require_stable: bool = False
    member_id: str | None = None
    member_epoch: int = -1


@dataclass(frozen=True, slots=True)
class OffsetsReply:
    """Committed offsets by topic and partition; None where there is none, or where it is one of
    `unstable`."""

    error: ErrorCode
    topics: Mapping[str, Mapping[int, CommittedOffset | None]]
    unstable: frozenset[tuple[str, int]] = frozenset()


@dataclass(frozen=True, slots=True)
class DeleteOffsets:
    """Forget committed offsets of a group."""

    group_id: str
    partitions: Sequence[tuple[str, int]]


@dataclass(frozen=True, slots=True)
class DeleteGroup:
    """Forget a group without members, and its offsets."""

    group_id: str


@dataclass(frozen=True, slots=True)
class ErrorReply:
    """What became of it."""

    error: ErrorCode


@dataclass(frozen=True, slots=True)
class DeleteReply:
    """What became of it. A group with many offsets is to be deleted again while it is not done: it
    is there still, with fewer of them."""

    error: ErrorCode
    is_done: bool = True


@dataclass(frozen=True, slots=True)
class DescribeGroup:
    """A group, its state and its members."""

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
    """A group; GROUP_ID_NOT_FOUND with state Dead where there is none."""

    error: ErrorCode
    state: str
    protocol_type: str = ""
    protocol: str = ""
    members: Sequence[DescribedMember] = ()


@dataclass(frozen=True, slots=True)
class ListGroups:
    """The groups in certain states and of certain types (by name, in any case), in all and of all
    where none is named."""

    states: frozenset[str]
    types: frozenset[str] = frozenset()


class GroupListing(NamedTuple):
    """A group in brief. Its type is "classic" or "consumer"."""

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
    """Topics were deleted, by name and id; offsets in them mean nothing any more."""

    topics: Mapping[str, Collection[TopicId]]


@dataclass(frozen=True, slots=True)
class PatternLookup:
    """What is to be found out away from the event loop: which topics the regular expressions of a
    consumer group name. It comes back as `PatternsFound`."""

    group_id: str
    patterns: frozenset[str]
    topics: ClusterTopics


@dataclass(frozen=True, slots=True)
class PatternsFound:
    """The topics that a consumer group's regular expressions name."""

    group_id: str
    matches: Matches


@dataclass(frozen=True, slots=True)
class TargetMade:
    """The target assignment of a large consumer group, which was made away from the event loop."""

    target: Target


GroupWork: TypeAlias = PatternLookup | TargetTask
"""What a decision asks for that takes too long for the event loop. Nothing is lost with it: it is
asked for again."""

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
