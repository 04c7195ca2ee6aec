"""AlterReplicaLogDirs, AlterPartitionReassignments, ListPartitionReassignments and DescribeQuorum.

The answers are those of a cluster without replication. A partition has one replica, with its owner,
in the only log directory, which is the bucket. A request for the existing state succeeds.
"""

from __future__ import annotations

from collections.abc import Sequence

from tidelog.broker.handlers.request_context import RequestContext
from tidelog.broker.handlers.services import ClusterServices
from tidelog.broker.topics.topic_creation import TopicRefused, named_owner
from tidelog.coordinator.cluster.state.state import ClusterState
from tidelog.identifiers import TopicPartition
from tidelog.protocol.error_codes import ErrorCode
from tidelog.protocol.schemas.quorum import (
    DescribeQuorumPartitionResponse,
    DescribeQuorumRequest,
    DescribeQuorumResponse,
    DescribeQuorumTopicResponse,
    QuorumListener,
    QuorumNode,
    ReplicaState,
)
from tidelog.protocol.schemas.replicas import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    AlterReplicaLogDirPartitionResult,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsResponse,
    AlterReplicaLogDirTopicResult,
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    ReassignablePartition,
    ReassignablePartitionResponse,
    ReassignableTopicResponse,
)

METADATA_TOPIC = "__cluster_metadata"
METADATA_PARTITION = 0


async def alter_replica_log_dirs(
    broker: ClusterServices, request: AlterReplicaLogDirsRequest, _context: RequestContext
) -> AlterReplicaLogDirsResponse:
    """Move nothing: every replica lies in the bucket."""
    return AlterReplicaLogDirsResponse(
        results=[
            AlterReplicaLogDirTopicResult(
                topic_name=topic.name,
                partitions=[
                    AlterReplicaLogDirPartitionResult(
                        partition_index=number,
                        error_code=_moved(broker, directory.path, topic.name, number),
                    )
                    for number in topic.partitions
                ],
            )
            for directory in request.dirs
            for topic in directory.topics
        ]
    )


def _moved(broker: ClusterServices, path: str, name: str, number: int) -> ErrorCode:
    if path != broker.store_url:
        return ErrorCode.LOG_DIR_NOT_FOUND
    place = _place(broker.metadata.state, name, number)
    if place is None:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    if broker.partitions.wal_bytes(place) is None:
        return ErrorCode.REPLICA_NOT_AVAILABLE
    return ErrorCode.NONE


async def list_partition_reassignments(
    _broker: ClusterServices, _request: ListPartitionReassignmentsRequest, _context: RequestContext
) -> ListPartitionReassignmentsResponse:
    """No reassignment: a partition has no replicas to move."""
    return ListPartitionReassignmentsResponse(error_message=None)


async def alter_partition_reassignments(
    broker: ClusterServices, request: AlterPartitionReassignmentsRequest, _context: RequestContext
) -> AlterPartitionReassignmentsResponse:
    """Leave each partition where it is.

    As at creation, replicas beside its owner are ignored.
    """
    state = broker.metadata.state
    return AlterPartitionReassignmentsResponse(
        error_message=None,
        responses=[
            ReassignableTopicResponse(
                name=topic.name,
                partitions=[_reassigned(state, topic.name, each) for each in topic.partitions],
            )
            for topic in request.topics
        ],
    )


def _reassigned(
    state: ClusterState, name: str, asked: ReassignablePartition
) -> ReassignablePartitionResponse:
    number = asked.partition_index
    place = _place(state, name, number)
    code, message = ErrorCode.NONE, None
    if place is None:
        code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        message = f"there is no partition {name[:249]}-{number}"
    elif asked.replicas is None:
        code = ErrorCode.NO_REASSIGNMENT_IN_PROGRESS
        message = "no partition is being reassigned"
    else:
        code, message = _assigned(state, place, asked.replicas)
    return ReassignablePartitionResponse(
        partition_index=number, error_code=code, error_message=message
    )


def _assigned(
    state: ClusterState, place: TopicPartition, replicas: Sequence[int]
) -> tuple[ErrorCode, str | None]:
    try:
        wanted = named_owner(state, place.partition, replicas, None)
    except TopicRefused as refused:
        return refused.code, str(refused)
    leader = state.leader(place)
    if leader is not None and leader.incarnation.epoch == wanted:
        return ErrorCode.NONE, None
    return (
        ErrorCode.INVALID_REPLICA_ASSIGNMENT,
        f"partition {place.partition} is led by another broker than {replicas[0]}, and brokers do"
        " not give partitions away yet; nothing was changed",
    )


def _place(state: ClusterState, name: str, number: int) -> TopicPartition | None:
    topic = state.topic_named(name)
    if topic is None or not 0 <= number < topic.partition_count:
        return None
    return TopicPartition(topic.topic_id, number)


async def describe_quorum(
    broker: ClusterServices, request: DescribeQuorumRequest, _context: RequestContext
) -> DescribeQuorumResponse:
    """One voter, this broker, and the metadata log, which is always durable."""
    host, port = broker.advertised
    listener = QuorumListener(name="PLAINTEXT", host=host, port=port)
    return DescribeQuorumResponse(
        error_message=None,
        topics=[
            DescribeQuorumTopicResponse(
                topic_name=topic.topic_name,
                partitions=[
                    _quorum(broker, topic.topic_name, each.partition_index)
                    for each in topic.partitions
                ],
            )
            for topic in request.topics
        ],
        nodes=[QuorumNode(node_id=broker.incarnation.broker_id, listeners=[listener])],
    )


def _quorum(broker: ClusterServices, name: str, number: int) -> DescribeQuorumPartitionResponse:
    if (name, number) != (METADATA_TOPIC, METADATA_PARTITION):
        return DescribeQuorumPartitionResponse(
            partition_index=number,
            error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            error_message=f"{METADATA_TOPIC}-{METADATA_PARTITION} alone has a quorum",
            leader_id=-1,
        )
    me, end = broker.incarnation, broker.metadata.state.sequence + 1
    voter = ReplicaState(
        replica_id=me.broker_id, log_end_offset=end, last_caught_up_timestamp=broker.clock.time_ms()
    )
    return DescribeQuorumPartitionResponse(
        partition_index=number,
        error_message=None,
        leader_id=me.broker_id,
        leader_epoch=me.epoch,
        high_watermark=end,
        current_voters=[voter],
    )
