"""AlterReplicaLogDirs, AlterPartitionReassignments and ListPartitionReassignments.

A partition has one replica, with its owner, in the only log directory, which is the bucket. A
reassignment moves that replica to another broker. It is under way from the moment at which the
giver stops to serve the partition until the receiver serves it.
"""

from __future__ import annotations

from collections.abc import Mapping

from tidelog.broker.handlers.request_context import RequestContext
from tidelog.broker.handlers.services import ClusterServices
from tidelog.broker.peers.moves import Move, MoveOutcome
from tidelog.broker.peers.requests import PeerUnreachable
from tidelog.broker.topics.topic_creation import TopicRefused, named_owner
from tidelog.coordinator.cluster.state.state import ClusterState
from tidelog.identifiers import BrokerId, TopicPartition
from tidelog.protocol.error_codes import ErrorCode
from tidelog.protocol.schemas.cluster.replicas import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    AlterReplicaLogDirPartitionResult,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsResponse,
    AlterReplicaLogDirTopicResult,
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    OngoingPartitionReassignment,
    OngoingTopicReassignment,
    ReassignablePartition,
    ReassignablePartitionResponse,
    ReassignableTopicResponse,
)


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
    if path != broker.store.url:
        return ErrorCode.LOG_DIR_NOT_FOUND
    place = _place(broker.metadata.state, name, number)
    if place is None:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    if broker.partitions.wal_bytes(place) is None:
        return ErrorCode.REPLICA_NOT_AVAILABLE
    return ErrorCode.NONE


async def list_partition_reassignments(
    broker: ClusterServices, request: ListPartitionReassignmentsRequest, _context: RequestContext
) -> ListPartitionReassignmentsResponse:
    """The moves that are under way, of all brokers or of this one. An error lists none of them."""
    # The renewal waits for the entries of moves that this broker is giving.
    moves = await broker.moves.under_way(passes_on=False)
    await broker.renewal.renewed(even_if_alone=True)
    try:
        moves |= await broker.moves.under_way(passes_on=not request.is_forwarded)
    except PeerUnreachable as error:
        return ListPartitionReassignmentsResponse(
            error_code=ErrorCode.REQUEST_TIMED_OUT, error_message=str(error)
        )
    asked = None
    if request.topics is not None:
        asked = {(topic.name, n) for topic in request.topics for n in topic.partition_indexes}
    topics: dict[str, list[OngoingPartitionReassignment]] = {}
    for move in sorted(moves):
        if asked is None or (move.topic, move.partition) in asked:
            topics.setdefault(move.topic, []).append(
                OngoingPartitionReassignment(
                    partition_index=move.partition,
                    replicas=[move.receiver, move.giver],
                    adding_replicas=[move.receiver],
                    removing_replicas=[move.giver],
                )
            )
    return ListPartitionReassignmentsResponse(
        error_message=None,
        topics=[
            OngoingTopicReassignment(name=name, partitions=found) for name, found in topics.items()
        ],
    )


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
