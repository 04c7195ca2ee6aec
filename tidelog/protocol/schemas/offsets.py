"""ListOffsets (2) and OffsetForLeaderEpoch (23): positions in partitions."""

from __future__ import annotations

from tidelog.protocol.fields import array, int8, int16, int32, int64, string
from tidelog.protocol.message import Request, Response, Struct


class ListOffsetsPartition(Struct):
    """A timestamp in milliseconds, or -1 latest, -2 earliest, -3 maximum timestamp, -4 earliest
    local, -5 latest tiered."""

    partition_index: int = int32()
    current_leader_epoch: int = int32("4+", default=-1)
    timestamp: int = int64()
    max_num_offsets: int = int32("0", default=1)


class ListOffsetsTopic(Struct):
    """One topic to look up."""

    name: str = string()
    partitions: list[ListOffsetsPartition] = array(ListOffsetsPartition)


class ListOffsetsRequest(Request["ListOffsetsResponse"], api_key=2, versions=(1, 11), flexible=6):
    """Find offsets by timestamp."""

    replica_id: int = int32()
    isolation_level: int = int8("2+")
    topics: list[ListOffsetsTopic] = array(ListOffsetsTopic)
    timeout_ms: int = int32("10+")


class ListOffsetsPartitionResponse(Struct):
    """The first offset at or after the timestamp; -1 for none."""

    partition_index: int = int32()
    error_code: int = int16()
    old_style_offsets: list[int] = array(int64, "0")
    timestamp: int = int64(default=-1)
    offset: int = int64(default=-1)
    leader_epoch: int = int32("4+", default=-1)


class ListOffsetsTopicResponse(Struct):
    """The offsets of one topic."""

    name: str = string()
    partitions: list[ListOffsetsPartitionResponse] = array(ListOffsetsPartitionResponse)


class ListOffsetsResponse(Response, api_key=2, versions=(1, 11), flexible=6):
    """Offsets by partition."""

    throttle_time_ms: int = int32("2+")
    topics: list[ListOffsetsTopicResponse] = array(ListOffsetsTopicResponse)


class OffsetForLeaderPartition(Struct):
    """The leader epoch whose end offset is requested."""

    partition: int = int32()
    current_leader_epoch: int = int32(default=-1)
    leader_epoch: int = int32()


class OffsetForLeaderTopic(Struct):
    """One topic to look up."""

    topic: str = string()
    partitions: list[OffsetForLeaderPartition] = array(OffsetForLeaderPartition)


class OffsetForLeaderEpochRequest(
    Request["OffsetForLeaderEpochResponse"], api_key=23, versions=(2, 4), flexible=4
):
    """Request the end offset of a leader epoch. Clients use it to detect truncation (KIP-320)."""

    replica_id: int = int32("3+", default=-2)
    topics: list[OffsetForLeaderTopic] = array(OffsetForLeaderTopic)


class EpochEndOffset(Struct):
    """The largest leader epoch not above the requested one, and its end offset."""

    error_code: int = int16()
    partition: int = int32()
    leader_epoch: int = int32(default=-1)
    end_offset: int = int64(default=-1)


class OffsetForLeaderTopicResult(Struct):
    """The answers for one topic."""

    topic: str = string()
    partitions: list[EpochEndOffset] = array(EpochEndOffset)


class OffsetForLeaderEpochResponse(Response, api_key=23, versions=(2, 4), flexible=4):
    """End offsets by partition."""

    throttle_time_ms: int = int32()
    topics: list[OffsetForLeaderTopicResult] = array(OffsetForLeaderTopicResult)
