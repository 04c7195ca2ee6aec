"""The records of `__consumer_offsets`, with Kafka's own keys and values.

A key is its version (int16), which also determines the kind of record, and the fields of that
version. A value is likewise, or null if the record deletes its key (a tombstone).
"""

from __future__ import annotations

from dataclasses import dataclass
from struct import error as StructError
from typing import Final, NamedTuple, TypeAlias
from uuid import UUID

from tidelog.coordinator.group.records.consumer_records import (
    CONSUMER_KEY_VERSIONS,
    ConsumerGroupRecord,
    decode_consumer_record,
    encode_consumer_record,
)
from tidelog.coordinator.group.records.record_coding import VERSION, encoded, versioned
from tidelog.coordinator.group.records.record_coding import UnknownGroupRecord as UnknownGroupRecord
from tidelog.identifiers import TopicId
from tidelog.protocol.codec import decode
from tidelog.protocol.errors import MalformedMessage, UnsupportedVersion
from tidelog.protocol.fields import array, binary, int32, int64, string, uuid
from tidelog.protocol.message import Message, Struct
from tidelog.protocol.wire import NULL_UUID, Buffer

NO_TIMESTAMP: Final = -1
NO_PRODUCER_ID: Final = -1
"""The producer id of a record outside of transactions."""
NO_LEADER_EPOCH: Final = -1

_OFFSET_KEY_VERSIONS = (0, 1)
_GROUP_KEY_VERSION = 2
_OFFSET_VALUE_VERSION = 4
_OFFSET_VALUE_VERSION_WITHOUT_ID = 3
_OFFSET_VALUE_VERSION_WITH_EXPIRY = 1
"""Kafka's only version with an expiry time for each offset (OffsetCommit up to version 4)."""
_GROUP_VALUE_VERSION = 3
_REBALANCE_TIMEOUT_FROM = 1


class CommittedOffset(NamedTuple):
    """The next offset that a group consumes from a partition. Times in ms since 1970."""

    offset: int
    leader_epoch: int
    metadata: str
    commit_timestamp_ms: int
    expire_timestamp_ms: int = NO_TIMESTAMP
    """The offset's own expiry time; -1: the broker's retention counts."""
    topic_id: TopicId | None = None
    """The topic's id at the commit; None in records of the first release."""


@dataclass(frozen=True, slots=True)
class StoredMember:
    """A member of a stable group, with its subscription at its last join."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    subscription: bytes
    assignment: bytes


@dataclass(frozen=True, slots=True)
class StoredGroup:
    """A group as of its last assignment, or since it became empty.

    `protocol_type` is "" for a group that never had a member; protocol and leader are None without
    members.
    """

    protocol_type: str
    generation: int
    protocol: str | None
    leader: str | None
    state_timestamp_ms: int
    members: tuple[StoredMember, ...]


class OffsetStored(NamedTuple):
    """A committed offset."""

    group_id: str
    topic: str
    partition: int
    committed: CommittedOffset


class OffsetRemoved(NamedTuple):
    """A committed offset is removed."""

    group_id: str
    topic: str
    partition: int


class OffsetPending(NamedTuple):
    """An offset that counts if a producer's transaction commits."""

    producer_id: int
    group_id: str
    topic: str
    partition: int
    committed: CommittedOffset


class TransactionEnded(NamedTuple):
    """A producer's pending offsets count (commit) or are dropped.

    It represents a marker: it has no record of its own.
    """

    producer_id: int
    commit: bool


class GroupStored(NamedTuple):
    """The new state of a group."""

    group_id: str
    group: StoredGroup


class GroupRemoved(NamedTuple):
    """A group is removed. Its offsets have tombstones of their own."""

    group_id: str


GroupRecord: TypeAlias = (
    OffsetStored
    | OffsetRemoved
    | OffsetPending
    | TransactionEnded
    | GroupStored
    | GroupRemoved
    | ConsumerGroupRecord
)


class OffsetCommitKey(Message, versions=(0, 1)):
    """The key of a committed offset. Both versions are alike."""

    group: str = string()
    topic: str = string()
    partition: int = int32()


class OffsetCommitValue(Message, versions=(0, 4), flexible=4):
    """A committed offset. `own_expire_timestamp` is Tidelog's own."""

    offset: int = int64()
    leader_epoch: int = int32("3+", default=NO_LEADER_EPOCH)
    metadata: str = string()
    commit_timestamp: int = int64()
    expire_timestamp: int = int64("1", default=NO_TIMESTAMP)
    topic_id: UUID = uuid("4+", tag=0)
    own_expire_timestamp: int = int64("4+", default=NO_TIMESTAMP, tag=10_000)


class GroupMetadataKey(Message, versions=(2, 2)):
    """The key of a group."""

    group: str = string()


class MemberMetadata(Struct):
    """A member of a group."""

    member_id: str = string()
    group_instance_id: str | None = string("3+", nullable="3+", default=None)
    client_id: str = string()
    client_host: str = string()
    rebalance_timeout: int = int32("1+")
    session_timeout: int = int32()
    subscription: Buffer = binary()
    assignment: Buffer = binary()


class GroupMetadataValue(Message, versions=(0, 3)):
    """A group and its members."""

    protocol_type: str = string()
    generation: int = int32()
    protocol: str | None = string(nullable="0+")
    leader: str | None = string(nullable="0+")
    current_state_timestamp: int = int64("2+", default=NO_TIMESTAMP)
    members: list[MemberMetadata] = array(MemberMetadata)


def encode_record(record: GroupRecord) -> tuple[bytes, bytes | None]:
    """The key and the value of a record; a tombstone's value is None.

    Values have the version that Kafka's brokers write. A pending offset differs from a committed
    one only by its batch.
    """
    match record:
        case OffsetStored(group_id, topic, partition, committed):
            return _offset_key(group_id, topic, partition), _offset_value(committed)
        case OffsetPending(_, group_id, topic, partition, committed):
            return _offset_key(group_id, topic, partition), _offset_value(committed)
        case TransactionEnded(producer_id):
            raise AssertionError(f"the end of producer {producer_id}'s transaction is a marker")
        case OffsetRemoved(group_id, topic, partition):
            return _offset_key(group_id, topic, partition), None
        case GroupStored(group_id, group):
            return _group_key(group_id), _group_value(group)
        case GroupRemoved(group_id):
            return _group_key(group_id), None
        case _:
            return encode_consumer_record(record)


def decode_record(
    key: Buffer | None, value: Buffer | None, producer_id: int = NO_PRODUCER_ID
) -> GroupRecord:
    """The record with this key and value, in any version up to the newest known one.

    `producer_id` is that of a transactional batch. Raises UnknownGroupRecord.
    """
    if key is None:
        raise UnknownGroupRecord("a record of __consumer_offsets has no key")
    try:
        version = VERSION.unpack_from(key)[0]
        if version in _OFFSET_KEY_VERSIONS:
            offset_key = decode(OffsetCommitKey, key, version, VERSION.size)
            return _offset_record(offset_key, value, producer_id)
        if version == _GROUP_KEY_VERSION:
            return _group_record(decode(GroupMetadataKey, key, version, VERSION.size), value)
        if version in CONSUMER_KEY_VERSIONS:
            return decode_consumer_record(key, version, value)
    except (MalformedMessage, UnsupportedVersion, StructError) as error:
        raise UnknownGroupRecord(
            f"a record of __consumer_offsets does not decode: {error}"
        ) from error
    raise UnknownGroupRecord(f"__consumer_offsets has a key of the unknown version {version}")


def _offset_record(key: OffsetCommitKey, value: Buffer | None, producer_id: int) -> GroupRecord:
    if value is None:
        return OffsetRemoved(key.group, key.topic, key.partition)
    found, _ = versioned(OffsetCommitValue, value)
    committed = CommittedOffset(
        found.offset,
        found.leader_epoch,
        found.metadata,
        found.commit_timestamp,
        max(found.expire_timestamp, found.own_expire_timestamp),
        None if found.topic_id == NULL_UUID else found.topic_id,
    )
    if producer_id != NO_PRODUCER_ID:
        return OffsetPending(producer_id, key.group, key.topic, key.partition, committed)
    return OffsetStored(key.group, key.topic, key.partition, committed)


def _group_record(key: GroupMetadataKey, value: Buffer | None) -> GroupRecord:
    if value is None:
        return GroupRemoved(key.group)
    found, version = versioned(GroupMetadataValue, value)
    members = tuple(
        [
            StoredMember(
                member.member_id,
                member.group_instance_id,
                member.client_id,
                member.client_host,
                # Older values have one timeout for both.
                member.rebalance_timeout
                if version >= _REBALANCE_TIMEOUT_FROM
                else member.session_timeout,
                member.session_timeout,
                bytes(member.subscription),
                bytes(member.assignment),
            )
            for member in found.members
        ]
    )
    group = StoredGroup(
        found.protocol_type,
        found.generation,
        found.protocol,
        found.leader,
        found.current_state_timestamp,
        members,
    )
    return GroupStored(key.group, group)


def _offset_key(group_id: str, topic: str, partition: int) -> bytes:
    key = OffsetCommitKey(group=group_id, topic=topic, partition=partition)
    return encoded(key, _OFFSET_KEY_VERSIONS[-1])


def _group_key(group_id: str) -> bytes:
    return encoded(GroupMetadataKey(group=group_id), _GROUP_KEY_VERSION)


def _offset_value(committed: CommittedOffset) -> bytes:
    value = OffsetCommitValue(
        offset=committed.offset,
        leader_epoch=committed.leader_epoch,
        metadata=committed.metadata,
        commit_timestamp=committed.commit_timestamp_ms,
    )
    if committed.topic_id is not None:
        value.topic_id = committed.topic_id
        value.own_expire_timestamp = committed.expire_timestamp_ms
        return encoded(value, _OFFSET_VALUE_VERSION)
    if committed.expire_timestamp_ms == NO_TIMESTAMP:
        return encoded(value, _OFFSET_VALUE_VERSION_WITHOUT_ID)
    value.expire_timestamp = committed.expire_timestamp_ms
    return encoded(value, _OFFSET_VALUE_VERSION_WITH_EXPIRY)


def _group_value(group: StoredGroup) -> bytes:
    value = GroupMetadataValue(
        protocol_type=group.protocol_type,
        generation=group.generation,
        protocol=group.protocol,
        leader=group.leader,
        current_state_timestamp=group.state_timestamp_ms,
        members=[
            MemberMetadata(
                member_id=member.member_id,
                group_instance_id=member.instance_id,
                client_id=member.client_id,
                client_host=member.client_host,
                rebalance_timeout=member.rebalance_timeout_ms,
                session_timeout=member.session_timeout_ms,
                subscription=member.subscription,
                assignment=member.assignment,
            )
            for member in group.members
        ],
    )
    return encoded(value, _GROUP_VALUE_VERSION)
