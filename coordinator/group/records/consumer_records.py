"""The records of consumer groups (KIP-848) in `__consumer_offsets`, with Kafka's keys and values.

Separate records hold a group's epoch, each member's subscription, the epoch of the target
assignment, each member's target, and each member's current assignment. So a change costs only its
own records.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, NamedTuple, TypeAlias
from uuid import UUID

from tidelog.coordinator.group.records.record_coding import (
    VERSION,
    UnknownGroupRecord,
    encoded,
    versioned,
)
from tidelog.coordinator.group.records.subscription import SupportedProtocol
from tidelog.identifiers import TopicId
from tidelog.protocol.codec import decode
from tidelog.protocol.fields import array, binary, int8, int32, int64, string, struct, uuid
from tidelog.protocol.message import Message, Struct
from tidelog.protocol.wire import Buffer

_GROUP, _MEMBER, _TARGET_EPOCH, _TARGET, _CURRENT = 3, 5, 6, 7, 8
CONSUMER_KEY_VERSIONS: Final = frozenset({_GROUP, _MEMBER, _TARGET_EPOCH, _TARGET, _CURRENT})

Assignment: TypeAlias = Mapping[TopicId, frozenset[int]]
"""Partitions by topic, without empty topics. Immutable."""


class MemberState(Enum):
    """A member's progress to the target assignment. The values are Kafka's."""

    STABLE = 0
    """It has its whole target assignment."""
    UNREVOKED_PARTITIONS = 1
    """It must revoke partitions first."""
    UNRELEASED_PARTITIONS = 2
    """It waits for partitions that other members still own."""


@dataclass(frozen=True, slots=True)
class ClassicProtocols:
    """The data of a consumer group's member that uses the classic protocol."""

    session_timeout_ms: int
    protocols: tuple[SupportedProtocol, ...]
    """At least one; the first one counts."""


@dataclass(frozen=True, slots=True)
class ConsumerSubscription:
    """A member's own data. Topic names are sorted and unique."""

    instance_id: str | None
    rack_id: str | None
    client_id: str
    client_host: str
    topic_names: tuple[str, ...]
    topic_regex: str | None
    rebalance_timeout_ms: int
    server_assignor: str | None
    classic: ClassicProtocols | None = None
    """None for a member of the consumer protocol."""


@dataclass(frozen=True, slots=True)
class CurrentAssignment:
    """A member's present assignment, and the partitions that it must revoke.

    An epoch of -2: a static member that pauses.
    """

    epoch: int = 0
    previous_epoch: int = 0
    state: MemberState = MemberState.STABLE
    assigned: Assignment = field(default_factory=dict)
    pending_revocation: Assignment = field(default_factory=dict)


class ConsumerGroupStored(NamedTuple):
    """A group's epoch, and a hash of its topics at that epoch."""

    group_id: str
    epoch: int
    metadata_hash: int


class ConsumerGroupRemoved(NamedTuple):
    """A group is removed, or has become one of the classic protocol."""

    group_id: str


class ConsumerMemberStored(NamedTuple):
    """A member's subscription."""

    group_id: str
    member_id: str
    subscription: ConsumerSubscription


class ConsumerMemberRemoved(NamedTuple):
    """A member is removed."""

    group_id: str
    member_id: str


class TargetEpochStored(NamedTuple):
    """The group epoch of the target assignment."""

    group_id: str
    epoch: int


class TargetEpochRemoved(NamedTuple):
    """The group has no target assignment."""

    group_id: str


class TargetStored(NamedTuple):
    """A member's target assignment."""

    group_id: str
    member_id: str
    assignment: Assignment


class TargetRemoved(NamedTuple):
    """A member has no target assignment."""

    group_id: str
    member_id: str


class CurrentStored(NamedTuple):
    """A member's current assignment."""

    group_id: str
    member_id: str
    current: CurrentAssignment


class CurrentRemoved(NamedTuple):
    """A member has no current assignment."""

    group_id: str
    member_id: str


ConsumerGroupRecord: TypeAlias = (
    ConsumerGroupStored
    | ConsumerGroupRemoved
    | ConsumerMemberStored
    | ConsumerMemberRemoved
    | TargetEpochStored
    | TargetEpochRemoved
    | TargetStored
    | TargetRemoved
    | CurrentStored
    | CurrentRemoved
)


class ConsumerGroupKey(Message, versions=(3, 6)):
    """The key of a group (version 3), or of its target assignment's epoch (6)."""

    group_id: str = string()


class ConsumerMemberKey(Message, versions=(5, 8)):
    """The key of a member (version 5), its target assignment (7) or its current one (8)."""

    group_id: str = string()
    member_id: str = string()


class ConsumerGroupMetadataValue(Message, versions=(0, 0), flexible=0):
    """A group."""

    epoch: int = int32()
    metadata_hash: int = int64(tag=0)


class ClassicProtocol(Struct):
    """An assignor that a member supports."""

    name: str = string()
    metadata: Buffer = binary()


class ClassicMemberMetadata(Struct):
    """The data of a member that uses the classic protocol."""

    session_timeout_ms: int = int32()
    supported_protocols: list[ClassicProtocol] = array(ClassicProtocol)


class ConsumerGroupMemberMetadataValue(Message, versions=(0, 0), flexible=0):
    """A member."""

    instance_id: str | None = string(nullable="0+", default=None)
    rack_id: str | None = string(nullable="0+", default=None)
    client_id: str = string()
    client_host: str = string()
    subscribed_topic_names: list[str] = array(string)
    subscribed_topic_regex: str | None = string(nullable="0+", default=None)
    rebalance_timeout_ms: int = int32(default=-1)
    server_assignor: str | None = string(nullable="0+", default=None)
    classic_member_metadata: ClassicMemberMetadata | None = struct(
        ClassicMemberMetadata, nullable="0+", tag=0
    )


class TargetAssignmentMetadataValue(Message, versions=(0, 0), flexible=0):
    """The epoch of a group's target assignment."""

    assignment_epoch: int = int32()


class StoredTopicPartitions(Struct):
    """Partitions of one topic."""

    topic_id: UUID = uuid()
    partitions: list[int] = array(int32)


class TargetAssignmentMemberValue(Message, versions=(0, 0), flexible=0):
    """A member's target assignment."""

    topic_partitions: list[StoredTopicPartitions] = array(StoredTopicPartitions)


class CurrentMemberAssignmentValue(Message, versions=(0, 0), flexible=0):
    """A member's current assignment."""

    member_epoch: int = int32()
    previous_member_epoch: int = int32()
    state: int = int8()
    assigned_partitions: list[StoredTopicPartitions] = array(StoredTopicPartitions)
    partitions_pending_revocation: list[StoredTopicPartitions] = array(StoredTopicPartitions)


def encode_consumer_record(record: ConsumerGroupRecord) -> tuple[bytes, bytes | None]:
    """The key and the value of a record; a tombstone's value is None."""
    match record:
        case ConsumerGroupStored(group_id, epoch, metadata_hash):
            group = ConsumerGroupMetadataValue(epoch=epoch, metadata_hash=metadata_hash)
            return _group_key(group_id, _GROUP), encoded(group, 0)
        case ConsumerGroupRemoved(group_id):
            return _group_key(group_id, _GROUP), None
        case ConsumerMemberStored(group_id, member_id, subscription):
            return _member_key(group_id, member_id, _MEMBER), _member_value(subscription)
        case ConsumerMemberRemoved(group_id, member_id):
            return _member_key(group_id, member_id, _MEMBER), None
        case TargetEpochStored(group_id, epoch):
            target_epoch = TargetAssignmentMetadataValue(assignment_epoch=epoch)
            return _group_key(group_id, _TARGET_EPOCH), encoded(target_epoch, 0)
        case TargetEpochRemoved(group_id):
            return _group_key(group_id, _TARGET_EPOCH), None
        case TargetStored(group_id, member_id, assignment):
            target = TargetAssignmentMemberValue(topic_partitions=_laid_out(assignment))
            return _member_key(group_id, member_id, _TARGET), encoded(target, 0)
        case TargetRemoved(group_id, member_id):
            return _member_key(group_id, member_id, _TARGET), None
        case CurrentStored(group_id, member_id, current):
            return _member_key(group_id, member_id, _CURRENT), _current_value(current)
        case CurrentRemoved(group_id, member_id):
            return _member_key(group_id, member_id, _CURRENT), None


def decode_consumer_record(key: Buffer, version: int, value: Buffer | None) -> ConsumerGroupRecord:
    """The record with this key and value; `version` is one of CONSUMER_KEY_VERSIONS.

    Raises UnknownGroupRecord, MalformedMessage, UnsupportedVersion or struct.error.
    """
    if version in (_GROUP, _TARGET_EPOCH):
        group_id = decode(ConsumerGroupKey, key, version, VERSION.size).group_id
        if version == _GROUP:
            return _group_record(group_id, value)
        if value is None:
            return TargetEpochRemoved(group_id)
        epoch = versioned(TargetAssignmentMetadataValue, value)[0].assignment_epoch
        return TargetEpochStored(group_id, epoch)
    named = decode(ConsumerMemberKey, key, version, VERSION.size)
    group_id, member_id = named.group_id, named.member_id
    if version == _MEMBER:
        return _member_record(group_id, member_id, value)
    if version == _CURRENT:
        return _current_record(group_id, member_id, value)
    if value is None:
        return TargetRemoved(group_id, member_id)
    target = versioned(TargetAssignmentMemberValue, value)[0]
    return TargetStored(group_id, member_id, _assignment(target.topic_partitions))


def _group_record(group_id: str, value: Buffer | None) -> ConsumerGroupRecord:
    if value is None:
        return ConsumerGroupRemoved(group_id)
    found, _ = versioned(ConsumerGroupMetadataValue, value)
    return ConsumerGroupStored(group_id, found.epoch, found.metadata_hash)


def _member_record(group_id: str, member_id: str, value: Buffer | None) -> ConsumerGroupRecord:
    if value is None:
        return ConsumerMemberRemoved(group_id, member_id)
    found, _ = versioned(ConsumerGroupMemberMetadataValue, value)
    subscription = ConsumerSubscription(
        found.instance_id,
        found.rack_id,
        found.client_id,
        found.client_host,
        tuple(found.subscribed_topic_names),
        found.subscribed_topic_regex,
        found.rebalance_timeout_ms,
        found.server_assignor,
        _classic(found.classic_member_metadata),
    )
    return ConsumerMemberStored(group_id, member_id, subscription)


def _classic(found: ClassicMemberMetadata | None) -> ClassicProtocols | None:
    if found is None or not found.supported_protocols:
        return None
    protocols = [
        SupportedProtocol(each.name, bytes(each.metadata)) for each in found.supported_protocols
    ]
    return ClassicProtocols(found.session_timeout_ms, tuple(protocols))


def _current_record(group_id: str, member_id: str, value: Buffer | None) -> ConsumerGroupRecord:
    if value is None:
        return CurrentRemoved(group_id, member_id)
    found, _ = versioned(CurrentMemberAssignmentValue, value)
    try:
        state = MemberState(found.state)
    except ValueError as error:
        raise UnknownGroupRecord(f"a member has the unknown state {found.state}") from error
    current = CurrentAssignment(
        found.member_epoch,
        found.previous_member_epoch,
        state,
        _assignment(found.assigned_partitions),
        _assignment(found.partitions_pending_revocation),
    )
    return CurrentStored(group_id, member_id, current)


def _group_key(group_id: str, version: int) -> bytes:
    return encoded(ConsumerGroupKey(group_id=group_id), version)


def _member_key(group_id: str, member_id: str, version: int) -> bytes:
    return encoded(ConsumerMemberKey(group_id=group_id, member_id=member_id), version)


def _member_value(subscription: ConsumerSubscription) -> bytes:
    value = ConsumerGroupMemberMetadataValue(
        instance_id=subscription.instance_id,
        rack_id=subscription.rack_id,
        client_id=subscription.client_id,
        client_host=subscription.client_host,
        subscribed_topic_names=list(subscription.topic_names),
        subscribed_topic_regex=subscription.topic_regex,
        rebalance_timeout_ms=subscription.rebalance_timeout_ms,
        server_assignor=subscription.server_assignor,
        classic_member_metadata=_classic_metadata(subscription.classic),
    )
    return encoded(value, 0)


def _classic_metadata(classic: ClassicProtocols | None) -> ClassicMemberMetadata | None:
    if classic is None:
        return None
    return ClassicMemberMetadata(
        session_timeout_ms=classic.session_timeout_ms,
        supported_protocols=[
            ClassicProtocol(name=each.name, metadata=each.metadata) for each in classic.protocols
        ],
    )


def _current_value(current: CurrentAssignment) -> bytes:
    value = CurrentMemberAssignmentValue(
        member_epoch=current.epoch,
        previous_member_epoch=current.previous_epoch,
        state=current.state.value,
        assigned_partitions=_laid_out(current.assigned),
        partitions_pending_revocation=_laid_out(current.pending_revocation),
    )
    return encoded(value, 0)


def _laid_out(assignment: Assignment) -> list[StoredTopicPartitions]:
    """Sorted, so that equal assignments have equal bytes."""
    return [
        StoredTopicPartitions(topic_id=topic_id, partitions=sorted(partitions))
        for topic_id, partitions in sorted(assignment.items())
    ]


def _assignment(topics: Iterable[StoredTopicPartitions]) -> Assignment:
    return {each.topic_id: frozenset(each.partitions) for each in topics if each.partitions}
