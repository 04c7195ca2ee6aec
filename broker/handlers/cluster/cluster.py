"""DescribeCluster, DescribeLogDirs and ElectLeaders."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping

from tidelog.broker.handlers.error_responses import error_response
from tidelog.broker.handlers.request_context import RequestContext
from tidelog.broker.handlers.services import ClusterServices
from tidelog.broker.topics.topic_view import CLUSTER_OPERATIONS, OPERATIONS_NOT_ASKED
from tidelog.coordinator.cluster.records.topics import Topic
from tidelog.coordinator.cluster.state.state import ClusterState
from tidelog.errors import TidelogError
from tidelog.identifiers import TopicId, TopicPartition
from tidelog.protocol.error_codes import ErrorCode
from tidelog.protocol.message import Response
from tidelog.protocol.schemas.cluster.metadata import (
    DescribeClusterBroker,
    DescribeClusterRequest,
    DescribeClusterResponse,
)
from tidelog.protocol.schemas.cluster.replicas import (
    DescribeLogDirsPartition,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    DescribeLogDirsResult,
    DescribeLogDirsTopic,
    ElectLeadersRequest,
    ElectLeadersResponse,
    PartitionElectionResult,
    ReplicaElectionResult,
)

logger = logging.getLogger(__name__)

SLICE_TOPICS = 64
SLICE_PARTITIONS = 1024
BROKER_ENDPOINTS, CONTROLLER_ENDPOINTS = 1, 2
PREFERRED_ELECTION, UNCLEAN_ELECTION = 0, 1


async def describe_cluster(
    broker: ClusterServices, request: DescribeClusterRequest, context: RequestContext
) -> Response | None:
    """The brokers. Any broker may act as the controller; the answering one does."""
    if request.endpoint_type != BROKER_ENDPOINTS:
        known = request.endpoint_type == CONTROLLER_ENDPOINTS
        return error_response(
            request,
            context.api_version,
            ErrorCode.MISMATCHED_ENDPOINT_TYPE if known else ErrorCode.UNSUPPORTED_ENDPOINT_TYPE,
            "this is a broker; there are no controllers",
        )
    state = broker.metadata.state
    infos = list(state.live_brokers())
    if request.include_fenced_brokers:
        live = set(state.live_epochs)
        infos += [info for info in state.fenced_not_retired() if info.broker_id not in live]
    return DescribeClusterResponse(
        cluster_id=state.cluster_id,
        controller_id=broker.incarnation.broker_id,
        brokers=[
            DescribeClusterBroker(
                broker_id=info.broker_id,
                host=endpoint.host,
                port=endpoint.port,
                rack=info.rack,
                is_fenced=info.fenced,
            )
            for info in infos
            if (endpoint := info.endpoint(context.listener)) is not None
        ],
        cluster_authorized_operations=CLUSTER_OPERATIONS
        if request.include_cluster_authorized_operations
        else OPERATIONS_NOT_ASKED,
        broker_epoch=broker.incarnation.epoch,
    )


async def describe_log_dirs(
    broker: ClusterServices, request: DescribeLogDirsRequest, _context: RequestContext
) -> DescribeLogDirsResponse:
    """The bucket as the only log directory, with the partitions that this broker leads.

    A partition's size is the bytes of its records in the WAL and in segments.
    """
    state = broker.metadata.state
    over, list_of = broker.turns.over, broker.turns.list_of
    asked: dict[str, set[int]] = {}
    async for each in over(request.topics or (), SLICE_TOPICS):
        asked.setdefault(each.topic, set()).update(each.partitions)
    found: list[DescribeLogDirsTopic] = []
    names = asked if request.topics is not None else (t.name for t in state.topics.values())
    async for name in over(sorted(names), SLICE_TOPICS):
        topic = state.topic_named(name)
        if topic is None:
            continue
        in_wal = _in_wal(broker, topic, None if request.topics is None else asked[name])
        sizes = await list_of(in_wal, SLICE_PARTITIONS)
        if not sizes:
            continue
        in_table = await _stored_bytes(broker, topic.topic_id)
        partitions = [
            DescribeLogDirsPartition(
                partition_index=number, partition_size=size + in_table.get(number, 0)
            )
            for number, size in sizes
        ]
        found.append(DescribeLogDirsTopic(name=name, partitions=partitions))
    return DescribeLogDirsResponse(
        results=[DescribeLogDirsResult(log_dir=broker.store_url, topics=found)]
    )


def _in_wal(
    broker: ClusterServices, topic: Topic, asked: set[int] | None
) -> Iterator[tuple[int, int]]:
    """The requested partitions that this broker leads, with their bytes in the WAL."""
    for number in range(topic.partition_count):
        if asked is None or number in asked:
            size = broker.partitions.wal_bytes(TopicPartition(topic.topic_id, number))
            if size is not None:
                yield number, size


async def _stored_bytes(broker: ClusterServices, topic_id: TopicId) -> Mapping[int, int]:
    try:
        return await broker.tables.stored_bytes(topic_id)
    except TidelogError as error:
        # The answer lists the partitions nevertheless, with their bytes in the WAL.
        logger.warning(
            "a table's size is unknown", extra={"topic_id": str(topic_id), "why": str(error)}
        )
        return {}


async def elect_leaders(
    broker: ClusterServices, request: ElectLeadersRequest, context: RequestContext
) -> Response | None:
    """Elect nothing: a partition's owner leads it.

    As in Kafka, a request for all partitions does not list those that need no election.
    """
    if request.election_type not in (PREFERRED_ELECTION, UNCLEAN_ELECTION):
        return error_response(
            request,
            context.api_version,
            ErrorCode.INVALID_REQUEST,
            f"there is no election type {request.election_type}",
        )
    state = broker.metadata.state
    return ElectLeadersResponse(
        replica_election_results=[
            ReplicaElectionResult(
                topic=topic.topic,
                partition_result=[
                    _elected(state, topic.topic, partition, request.election_type)
                    for partition in topic.partitions
                ],
            )
            for topic in request.topic_partitions or ()
        ]
    )


def _elected(
    state: ClusterState, name: str, partition: int, election_type: int
) -> PartitionElectionResult:
    topic = state.topic_named(name)
    leader = state.leader(TopicPartition(topic.topic_id, partition)) if topic else None
    if leader is None:
        code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        message = f"there is no partition {name[:249]}-{partition}"
    elif state.is_live(leader.incarnation.epoch):
        code = ErrorCode.ELECTION_NOT_NEEDED
        message = "the partition's owner leads it"
    else:
        code = (
            ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE
            if election_type == PREFERRED_ELECTION
            else ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE
        )
        message = "the partition's owner is fenced and no broker has taken over yet"
    return PartitionElectionResult(partition_id=partition, error_code=code, error_message=message)
