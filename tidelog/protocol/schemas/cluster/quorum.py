"""DescribeQuorum (55): the voters of the metadata log."""

from __future__ import annotations

from uuid import UUID

from tidelog.protocol.fields import array, int16, int32, int64, string, uint16, uuid
from tidelog.protocol.message import Request, Response, Struct


class DescribeQuorumPartition(Struct):
    """One partition."""

    partition_index: int = int32()


class DescribeQuorumTopic(Struct):
    """The partitions of one topic."""

    topic_name: str = string()
    partitions: list[DescribeQuorumPartition] = array(DescribeQuorumPartition)


class DescribeQuorumRequest(
    Request["DescribeQuorumResponse"], api_key=55, versions=(0, 2), flexible=0
):
    """Request the voters and their offsets."""

    topics: list[DescribeQuorumTopic] = array(DescribeQuorumTopic)


class ReplicaState(Struct):
    """The log end of a voter or an observer."""

    replica_id: int = int32()
    replica_directory_id: UUID = uuid("2+")
    log_end_offset: int = int64()
    last_fetch_timestamp: int = int64("1+", default=-1)
    last_caught_up_timestamp: int = int64("1+", default=-1)


class DescribeQuorumPartitionResponse(Struct):
    """One partition's quorum."""

    partition_index: int = int32()
    error_code: int = int16()
    error_message: str | None = string("2+", nullable="2+")
    leader_id: int = int32()
    leader_epoch: int = int32()
    high_watermark: int = int64()
    current_voters: list[ReplicaState] = array(ReplicaState)
    observers: list[ReplicaState] = array(ReplicaState)


class DescribeQuorumTopicResponse(Struct):
    """The partitions of one topic."""

    topic_name: str = string()
    partitions: list[DescribeQuorumPartitionResponse] = array(DescribeQuorumPartitionResponse)


class QuorumListener(Struct):
    """An address of a node."""

    name: str = string("2+")
    host: str = string("2+")
    port: int = uint16("2+")


class QuorumNode(Struct):
    """A node that votes or observes."""

    node_id: int = int32("2+")
    listeners: list[QuorumListener] = array(QuorumListener, "2+")


class DescribeQuorumResponse(Response, api_key=55, versions=(0, 2), flexible=0):
    """The quorums."""

    error_code: int = int16()
    error_message: str | None = string("2+", nullable="2+")
    topics: list[DescribeQuorumTopicResponse] = array(DescribeQuorumTopicResponse)
    nodes: list[QuorumNode] = array(QuorumNode, "2+")
