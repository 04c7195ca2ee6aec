"""OffsetCommit (8), OffsetFetch (9) and OffsetDelete (47): the offsets of groups."""

from __future__ import annotations

from uuid import UUID

from tidelog.protocol.fields import array, boolean, int16, int32, int64, string, uuid
from tidelog.protocol.message import Request, Response, Struct


class OffsetCommitRequestPartition(Struct):
    """The next offset to consume, with the metadata of the client."""

    partition_index: int = int32()
    committed_offset: int = int64()
    committed_leader_epoch: int = int32("6+", default=-1)
    commit_timestamp: int = int64("1", default=-1)
    committed_metadata: str | None = string(nullable="0+")


class OffsetCommitRequestTopic(Struct):
    """The offsets of one topic; named up to version 9, by id from 10."""

    name: str = string("0-9")
    topic_id: UUID = uuid("10+")
    partitions: list[OffsetCommitRequestPartition] = array(OffsetCommitRequestPartition)


class OffsetCommitRequest(Request["OffsetCommitResponse"], api_key=8, versions=(2, 10), flexible=8):
    """Commit offsets of a group. Up to version 4 with a retention time, which brokers ignore."""

    group_id: str = string()
    generation_id_or_member_epoch: int = int32(default=-1)
    member_id: str = string()
    group_instance_id: str | None = string("7+", nullable="0+", default=None)
    retention_time_ms: int = int64("2-4", default=-1)
    topics: list[OffsetCommitRequestTopic] = array(OffsetCommitRequestTopic)


class OffsetCommitResponsePartition(Struct):
    partition_index: int = int32()
    error_code: int = int16()


class OffsetCommitResponseTopic(Struct):
    name: str = string("0-9")
    topic_id: UUID = uuid("10+")
    partitions: list[OffsetCommitResponsePartition] = array(OffsetCommitResponsePartition)


class OffsetCommitResponse(Response, api_key=8, versions=(2, 10), flexible=8):
    throttle_time_ms: int = int32("3+")
    topics: list[OffsetCommitResponseTopic] = array(OffsetCommitResponseTopic)


class OffsetFetchRequestTopic(Struct):
    """One topic of the only group, up to version 7."""

    name: str = string()
    partition_indexes: list[int] = array(int32)


class OffsetFetchRequestTopics(Struct):
    """One topic of a group, from version 8; named up to version 9, by id from 10."""

    name: str = string("8-9")
    topic_id: UUID = uuid("10+")
    partition_indexes: list[int] = array(int32)


class OffsetFetchRequestGroup(Struct):
    """One group; None as `topics` requests all."""

    group_id: str = string()
    member_id: str | None = string("9+", nullable="0+", default=None)
    member_epoch: int = int32("9+", default=-1)
    topics: list[OffsetFetchRequestTopics] | None = array(OffsetFetchRequestTopics, nullable="0+")


class OffsetFetchRequest(Request["OffsetFetchResponse"], api_key=9, versions=(1, 10), flexible=6):
    """Fetch committed offsets: of one group up to version 7, of several from 8."""

    group_id: str = string("0-7")
    topics: list[OffsetFetchRequestTopic] | None = array(
        OffsetFetchRequestTopic, "0-7", nullable="2-7"
    )
    groups: list[OffsetFetchRequestGroup] = array(OffsetFetchRequestGroup, "8+")
    require_stable: bool = boolean("7+")


class OffsetFetchResponsePartition(Struct):
    """A committed offset, up to version 7; -1 for none."""

    partition_index: int = int32()
    committed_offset: int = int64()
    committed_leader_epoch: int = int32("5-7", default=-1)
    metadata: str | None = string(nullable="0+")
    error_code: int = int16()


class OffsetFetchResponseTopic(Struct):
    """The offsets of one topic, up to version 7."""

    name: str = string()
    partitions: list[OffsetFetchResponsePartition] = array(OffsetFetchResponsePartition)


class OffsetFetchResponsePartitions(Struct):
    """A committed offset, from version 8; -1 for none."""

    partition_index: int = int32()
    committed_offset: int = int64()
    committed_leader_epoch: int = int32(default=-1)
    metadata: str | None = string(nullable="0+")
    error_code: int = int16()


class OffsetFetchResponseTopics(Struct):
    """The offsets of one topic, from version 8."""

    name: str = string("8-9")
    topic_id: UUID = uuid("10+")
    partitions: list[OffsetFetchResponsePartitions] = array(OffsetFetchResponsePartitions)


class OffsetFetchResponseGroup(Struct):
    """The offsets of one group."""

    group_id: str = string()
    topics: list[OffsetFetchResponseTopics] = array(OffsetFetchResponseTopics)
    error_code: int = int16()


class OffsetFetchResponse(Response, api_key=9, versions=(1, 10), flexible=6):
    """Committed offsets: `topics` up to version 7, `groups` from 8."""

    throttle_time_ms: int = int32("3+")
    topics: list[OffsetFetchResponseTopic] = array(OffsetFetchResponseTopic, "0-7")
    error_code: int = int16("2-7")
    groups: list[OffsetFetchResponseGroup] = array(OffsetFetchResponseGroup, "8+")


class OffsetDeleteRequestPartition(Struct):
    """A partition whose offset to delete."""

    partition_index: int = int32()


class OffsetDeleteRequestTopic(Struct):
    """The partitions of one topic."""

    name: str = string()
    partitions: list[OffsetDeleteRequestPartition] = array(OffsetDeleteRequestPartition)


class OffsetDeleteRequest(Request["OffsetDeleteResponse"], api_key=47, versions=(0, 0)):
    """Delete committed offsets of a group."""

    group_id: str = string()
    topics: list[OffsetDeleteRequestTopic] = array(OffsetDeleteRequestTopic)


class OffsetDeleteResponsePartition(Struct):
    partition_index: int = int32()
    error_code: int = int16()


class OffsetDeleteResponseTopic(Struct):
    name: str = string()
    partitions: list[OffsetDeleteResponsePartition] = array(OffsetDeleteResponsePartition)


class OffsetDeleteResponse(Response, api_key=47, versions=(0, 0)):
    error_code: int = int16()
    throttle_time_ms: int = int32()
    topics: list[OffsetDeleteResponseTopic] = array(OffsetDeleteResponseTopic)
