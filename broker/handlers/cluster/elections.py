"""ElectLeaders: a preferred election moves partitions to the brokers that have too few.

A partition has one replica, with its owner, and names no preferred one. The preferred leaders are
those of a balanced cluster (`plan_election`): an election of all partitions leaves each broker its
fair share, and a draining one nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from tidelog.broker.handlers.error_responses import error_response
from tidelog.broker.handlers.request_context import RequestContext
from tidelog.broker.handlers.services import ClusterServices
from tidelog.broker.peers.moves import Move, MoveOutcome
from tidelog.coordinator.cluster.membership.assignment import plan_election
from tidelog.coordinator.cluster.state.state import ClusterState
from tidelog.identifiers import TopicPartition
from tidelog.protocol.error_codes import ErrorCode
from tidelog.protocol.message import Response
from tidelog.protocol.schemas.cluster.replicas import (
    ElectLeadersRequest,
    ElectLeadersResponse,
    PartitionElectionResult,
    ReplicaElectionResult,
)

PREFERRED_ELECTION, UNCLEAN_ELECTION = 0, 1
NOT_NEEDED = MoveOutcome(ErrorCode.ELECTION_NOT_NEEDED, "the partition's leader is the right one")


async def elect_leaders(
    broker: ClusterServices, request: ElectLeadersRequest, context: RequestContext
) -> Response | None:
    """Move the partitions whose owner has more than its fair share; answered when they have moved.

    As in Kafka, a request for all partitions does not list those that need no election.
    """
    if request.election_type not in (PREFERRED_ELECTION, UNCLEAN_ELECTION):
        return error_response(
            request,
            context.api_version,
            ErrorCode.INVALID_REQUEST,
            f"there is no election type {request.election_type}",
        )
    await broker.renewal.renewed(even_if_alone=True)
    state = broker.metadata.state
    asked = dict.fromkeys(_asked(state, request))
    moves = _moves(state, asked) if request.election_type == PREFERRED_ELECTION else {}
    moved = await broker.moves.move_in_groups(
        list(moves.values()), request.timeout_ms / 1000, broker.clock
    )
    lists_all = request.topic_partitions is not None
    results: dict[str, list[PartitionElectionResult]] = {}
    for name, number in asked:
        move = moves.get((name, number))
        outcome = moved[move] if move else _unmoved(state, name, number, request.election_type)
        if lists_all or outcome is not NOT_NEEDED:
            results.setdefault(name, []).append(
                PartitionElectionResult(
                    partition_id=number, error_code=outcome.code, error_message=outcome.message
                )
            )
    return ElectLeadersResponse(
        replica_election_results=[
            ReplicaElectionResult(topic=name, partition_result=found)
            for name, found in results.items()
        ]
    )


def _asked(state: ClusterState, request: ElectLeadersRequest) -> Iterator[tuple[str, int]]:
    if request.topic_partitions is None:
        for topic in state.topics.values():
            yield from ((topic.name, number) for number in range(topic.partition_count))
        return
    for each in request.topic_partitions:
        yield from ((each.topic, number) for number in each.partitions)


def _moves(state: ClusterState, asked: Iterable[tuple[str, int]]) -> Mapping[tuple[str, int], Move]:
    names = {
        TopicPartition(topic.topic_id, number): (name, number)
        for name, number in asked
        if (topic := state.topic_named(name)) is not None
    }
    return {
        names[place]: Move(*names[place], state.brokers[receiver].broker_id)
        for place, receiver in plan_election(state, names.keys()).items()
    }


def _unmoved(state: ClusterState, name: str, partition: int, election_type: int) -> MoveOutcome:
    topic = state.topic_named(name)
    leader = state.leader(TopicPartition(topic.topic_id, partition)) if topic else None
    if leader is None:
        return MoveOutcome(
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            f"there is no partition {name[:249]}-{partition}",
        )
    if state.is_live(leader.incarnation.epoch):
        return NOT_NEEDED
    return MoveOutcome(
        ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE
        if election_type == PREFERRED_ELECTION
        else ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE,
        "the partition's owner is fenced and no broker has taken over yet",
    )
