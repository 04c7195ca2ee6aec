"""Metadata (3), DescribeCluster (60), UnregisterBroker (64) and DescribeTopicPartitions (75):
brokers and leaders.
"""

from __future__ import annotations

from uuid import UUID

from tidelog.protocol.fields import (
    OWN_TAGS_FROM,
    array,
    boolean,
    int8,
    int16,
    int32,
    int64,
    string,
    struct,
    uuid,
)
from tidelog.protocol.message import Request, Response, Struct

NO_BROKER_EPOCH = -1
"""The answering broker names no incarnation: it is a foreign one, or of an earlier release."""


class MetadataRequestTopic(Struct):
    """One topic, by name or (from version 10) by id."""

    topic_id: UUID = uuid("10+")
    name: str | None = string(nullable="10+")


class MetadataRequest(Request["MetadataResponse"], api_key=3, versions=(0, 13), flexible=9):
    """Describe topics; None as `topics` (in version 0: empty) requests all."""

    topics: list[MetadataRequestTopic] | None = array(MetadataRequestTopic, nullable="1+")
    allow_auto_topic_creation: bool = boolean("4+", default=True)
    include_cluster_authorized_operations: bool = boolean("8-10")
    include_topic_authorized_operations: bool = boolean("8+")


class MetadataResponseBroker(Struct):
    """A broker and its address for clients."""

    node_id: int = int32()
    host: str = string()
    port: int = int32()
    rack: str | None = string("1+", nullable="0+", default=None)


class MetadataResponsePartition(Struct):
    """The leader and the replicas of a partition."""

    error_code: int = int16()
    partition_index: int = int32()
    leader_id: int = int32()
    leader_epoch: int = int32("7+", default=-1)
    replica_nodes: list[int] = array(int32)
    isr_nodes: list[int] = array(int32)
    offline_replicas: list[int] = array(int32, "5+")


class MetadataResponseTopic(Struct):
    """A topic with its partitions. Operations are a bit field, -2^31 if not requested."""

    error_code: int = int16()
    name: str | None = string(nullable="12+")
    topic_id: UUID = uuid("10+")
    is_internal: bool = boolean("1+")
    partitions: list[MetadataResponsePartition] = array(MetadataResponsePartition)
    topic_authorized_operations: int = int32("8+", default=-(2**31))


class MetadataResponse(Response, api_key=3, versions=(0, 13), flexible=9):
    """The brokers and the requested topics."""

    throttle_time_ms: int = int32("3+")
    brokers: list[MetadataResponseBroker] = array(MetadataResponseBroker)
    cluster_id: str | None = string("2+", nullable="0+", default=None)
    controller_id: int = int32("1+", default=-1)
    topics: list[MetadataResponseTopic] = array(MetadataResponseTopic)
    cluster_authorized_operations: int = int32("8-10", default=-(2**31))
    error_code: int = int16("13+")


class DescribeClusterRequest(
    Request["DescribeClusterResponse"], api_key=60, versions=(0, 2), flexible=0
):
    """Describe the brokers."""

    include_cluster_authorized_operations: bool = boolean()
    endpoint_type: int = int8("1+", default=1)
    include_fenced_brokers: bool = boolean("2+")


class DescribeClusterBroker(Struct):
    """A broker and its address for clients."""

    broker_id: int = int32()
    host: str = string()
    port: int = int32()
    rack: str | None = string(nullable="0+", default=None)
    is_fenced: bool = boolean("2+")


class DescribeClusterResponse(Response, api_key=60, versions=(0, 2), flexible=0):
    """The brokers, the cluster id, and the broker shown as controller.

    `broker_epoch`, Tidelog's own, names the incarnation that answers.
    """

    throttle_time_ms: int = int32()
    error_code: int = int16()
    error_message: str | None = string(nullable="0+", default=None)
    endpoint_type: int = int8("1+", default=1)
    cluster_id: str = string()
    controller_id: int = int32(default=-1)
    brokers: list[DescribeClusterBroker] = array(DescribeClusterBroker)
    cluster_authorized_operations: int = int32(default=-(2**31))
    broker_epoch: int = int64(default=NO_BROKER_EPOCH, tag=OWN_TAGS_FROM)


class UnregisterBrokerRequest(
    Request["UnregisterBrokerResponse"], api_key=64, versions=(0, 0), flexible=0
):
    """Forget a broker that has ended."""

    broker_id: int = int32()


class UnregisterBrokerResponse(Response, api_key=64, versions=(0, 0), flexible=0):
    throttle_time_ms: int = int32()
    error_code: int = int16()
    error_message: str | None = string(nullable="0+")


class DescribeTopicPartitionsTopic(Struct):
    """A topic by name."""

    name: str = string()


class Cursor(Struct):
    """The beginning of the next page."""

    topic_name: str = string()
    partition_index: int = int32()


class DescribeTopicPartitionsRequest(
    Request["DescribeTopicPartitionsResponse"], api_key=75, versions=(0, 0), flexible=0
):
    """Describe topics page by page (KIP-966)."""

    topics: list[DescribeTopicPartitionsTopic] = array(DescribeTopicPartitionsTopic)
    response_partition_limit: int = int32(default=2000)
    cursor: Cursor | None = struct(Cursor, nullable="0+")


class DescribeTopicPartitionsResponsePartition(Struct):
    """The leader and the replicas of a partition."""

    error_code: int = int16()
    partition_index: int = int32()
    leader_id: int = int32()
    leader_epoch: int = int32(default=-1)
    replica_nodes: list[int] = array(int32)
    isr_nodes: list[int] = array(int32)
    eligible_leader_replicas: list[int] | None = array(int32, nullable="0+", default=None)
    last_known_elr: list[int] | None = array(int32, nullable="0+", default=None)
    offline_replicas: list[int] = array(int32)


class DescribeTopicPartitionsResponseTopic(Struct):
    """A topic with the partitions of this page."""

    error_code: int = int16()
    name: str | None = string(nullable="0+")
    topic_id: UUID = uuid()
    is_internal: bool = boolean()
    partitions: list[DescribeTopicPartitionsResponsePartition] = array(
        DescribeTopicPartitionsResponsePartition
    )
    topic_authorized_operations: int = int32(default=-(2**31))


class DescribeTopicPartitionsResponse(Response, api_key=75, versions=(0, 0), flexible=0):
    """One page; `next_cursor` is None on the last."""

    throttle_time_ms: int = int32()
    topics: list[DescribeTopicPartitionsResponseTopic] = array(DescribeTopicPartitionsResponseTopic)
    next_cursor: Cursor | None = struct(Cursor, nullable="0+")
