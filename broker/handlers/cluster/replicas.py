"""AlterReplicaLogDirs, AlterPartitionReassignments, ListPartitionReassignments and DescribeQuorum.

A partition has one replica, with its owner, in the only log directory, which is the bucket. A
reassignment moves that replica to another broker, and is over when it is answered.
"""

from __future__ import annotations

from collections.abc import Mapping

from tidelog.broker.handlers.request_context import RequestContext
from tidelog.broker.handlers.services import ClusterServices
from tidelog.broker.peers.moves import Move, MoveOutcome
from tidelog.broker.topics.topic_creation import TopicRefused, named_owner
from tidelog.coordinator.cluster.state.state import ClusterState
from tidelog.identifiers import BrokerId, TopicPartition
from tidelog.protocol.error_codes import ErrorCode
from tidelog.protocol.schemas.cluster.quorum import (
    DescribeQuorumPartitionResponse,
    DescribeQuorumRequest,
    DescribeQuorumResponse,
    DescribeQuorumTopicResponse,
    QuorumListener,
    QuorumNode,
    ReplicaState,
)
from tidelog.protocol.schemas.cluster.replicas import (
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
    """No reassignment: each is over when it is answered."""
    return ListPartitionReassignmentsResponse(error_message=None)


async def alter_partition_reassignments(
    broker: ClusterServices, request: AlterPartitionReassignmentsRequest, _context: RequestContext
) -> AlterPartitionReassignmentsResponse:
    """Move each partition to the first of its new replicas; the others are ignored, as at creation.

    Answered when the metadata log has the moves. The receivers open the partitions then.
    """
    await broker.renewal.renewed()
    state = broker.metadata.state
    moves: dict[tuple[str, int], Move | MoveOutcome] = {
        (topic.name, each.partition_index): _wanted(state, topic.name, each)
        for topic in request.topics
        for each in topic.partitions
    }
    wanted = [each for each in moves.values() if isinstance(each, Move)]
    outcomes = await broker.moves.move(wanted, passes_on=not request.is_forwarded)
    return AlterPartitionReassignmentsResponse(
        error_message=None,
        responses=[
            ReassignableTopicResponse(
                name=topic.name,
                partitions=[
                    _reassigned(
                        each.partition_index, moves[topic.name, each.partition_index], outcomes
                    )
                    for each in topic.partitions
                ],
            )
            for topic in request.topics
        ],
    )


def _wanted(state: ClusterState, name: str, asked: ReassignablePartition) -> Move | MoveOutcome:
    number = asked.partition_index
    if asked.replicas is None:
        if _place(state, name, number) is not None:
            return MoveOutcome(
                ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, "no partition is being reassigned"
            )
        return MoveOutcome(
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no partition {name[:249]}-{number}"
        )
    if _place(state, name, number) is not None:
        try:
            named_owner(state, number, asked.replicas, None)
        except TopicRefused as refused:
            return MoveOutcome(refused.code, str(refused))
    return Move(name, number, BrokerId(asked.replicas[0] if asked.replicas else -1))


def _reassigned(
    number: int, move: Move | MoveOutcome, outcomes: Mapping[Move, MoveOutcome]
) -> ReassignablePartitionResponse:
    outcome = outcomes[move] if isinstance(move, Move) else move
    return ReassignablePartitionResponse(
        partition_index=number, error_code=outcome.code, error_message=outcome.message
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
    listeners = [
        QuorumListener(name=each.name, host=each.advertised[0], port=each.advertised[1])
        for each in broker.listeners
    ]
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
        nodes=[QuorumNode(node_id=broker.incarnation.broker_id, listeners=listeners)],
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
