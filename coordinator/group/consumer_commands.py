"""The commands and replies of the coordinator of consumer groups (KIP-848)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from tidelog.coordinator.group.records.consumer_records import (
    Assignment,
    ConsumerSubscription,
    CurrentAssignment,
)
from tidelog.identifiers import TopicId
from tidelog.protocol.error_codes import ErrorCode


class KnownTopic(Protocol):
    """A topic of the cluster."""

    @property
    def topic_id(self) -> TopicId:
        """The id, which differs from that of an earlier topic with the same name."""
        ...

    @property
    def name(self) -> str:
        """The name that clients subscribe to."""
        ...

    @property
    def partition_count(self) -> int:
        """At least one."""
        ...


class ClusterTopics(Protocol):
    """The cluster's topics at one moment."""

    @property
    def topics(self) -> Mapping[TopicId, KnownTopic]:
        """All topics. Each change of a topic makes another mapping object."""
        ...

    def topic_named(self, name: str) -> KnownTopic | None:
        """The topic of exactly this name."""
        ...


class Matches(NamedTuple):
    """The topics that regular expressions match, of the cluster's topics at one moment."""

    topics: Mapping[TopicId, KnownTopic]
    names: Mapping[str, frozenset[str]]
    """The topic names by expression."""


JOIN_EPOCH = 0
LEAVE_EPOCH = -1
STATIC_LEAVE_EPOCH = -2
NOT_CHANGED_MS = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerHeartbeat:
    """A member of a consumer group joins (epoch 0), stays, leaves (-1) or, if static, pauses (-2).

    Values of None, or a timeout of -1, are unchanged (KIP-848).
    """

    group_id: str
    member_id: str
    member_epoch: int
    instance_id: str | None
    rack_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    topic_names: Sequence[str] | None
    topic_regex: str | None
    server_assignor: str | None
    owned: Assignment | None
    """The partitions that the member owns."""
    brings_member_id: bool
    """New members choose their ids (version 1)."""
    fresh_id: str
    """The id of a new member that has chosen none."""
    topics: ClusterTopics
    matches: Matches | None = None
    """The matches of the expression in this heartbeat, if there is one."""

    @property
    def is_full(self) -> bool:
        """Whether the member sends its full state, and expects its full assignment."""
        subscribes = self.topic_names is not None or self.topic_regex is not None
        says_all = self.rebalance_timeout_ms != NOT_CHANGED_MS and self.owned is not None
        return self.member_epoch == JOIN_EPOCH or (subscribes and says_all)


@dataclass(frozen=True, slots=True)
class ConsumerHeartbeatReply:
    """The member's epoch, and its full assignment if that has changed."""

    error: ErrorCode
    message: str | None = None
    member_id: str | None = None
    member_epoch: int = 0
    heartbeat_interval_ms: int = 0
    assignment: Assignment | None = None


@dataclass(frozen=True, slots=True)
class DescribeConsumerGroup:
    """Request a consumer group's state and its members."""

    group_id: str


class DescribedConsumer(NamedTuple):
    """A member of a consumer group."""

    member_id: str
    subscription: ConsumerSubscription
    current: CurrentAssignment
    target: Assignment


@dataclass(frozen=True, slots=True)
class ConsumerDescription:
    """A consumer group; GROUP_ID_NOT_FOUND if there is none of that type."""

    error: ErrorCode
    state: str = "Dead"
    epoch: int = 0
    assignment_epoch: int = 0
    assignor: str = ""
    members: Sequence[DescribedConsumer] = ()
