"""DescribeCluster, UnregisterBroker and DescribeLogDirs."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping

from tidelog.broker.authorization.access import cluster_operations
from tidelog.broker.handlers.error_responses import error_response
from tidelog.broker.handlers.request_context import RequestContext
from tidelog.broker.handlers.services import ClusterServices
from tidelog.broker.topics.topic_view import OPERATIONS_NOT_ASKED
from tidelog.coordinator.cluster.membership.draining import not_live
from tidelog.coordinator.cluster.records.topics import Topic
from tidelog.errors import TidelogError
from tidelog.identifiers import BrokerId, TopicId, TopicPartition
from tidelog.protocol.error_codes import ErrorCode
from tidelog.protocol.message import Response
from tidelog.protocol.schemas.cluster.metadata import (
    DescribeClusterBroker,
    DescribeClusterRequest,
    DescribeClusterResponse,
    UnregisterBrokerRequest,
    UnregisterBrokerResponse,
)
from tidelog.protocol.schemas.cluster.replicas import (
    DescribeLogDirsPartition,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    DescribeLogDirsResult,
    DescribeLogDirsTopic,
)
from tidelog.storage.object_store import StoreError

logger = logging.getLogger(__name__)

SLICE_TOPICS = 64
SLICE_PARTITIONS = 1024
BROKER_ENDPOINTS, CONTROLLER_ENDPOINTS = 1, 2


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
    await broker.renewal.renewed(even_if_alone=True)
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
        cluster_authorized_operations=cluster_operations(context.access)
        if request.include_cluster_authorized_operations
        else OPERATIONS_NOT_ASKED,
        broker_epoch=broker.incarnation.epoch,
    )


async def unregister_broker(
    broker: ClusterServices, request: UnregisterBrokerRequest, _context: RequestContext
) -> UnregisterBrokerResponse:
    """Forget a broker that has ended: its partitions go to the others before the answer.

    A live one is refused. It leaves when it is stopped, or when it is found dead and fenced.
    """
    await broker.renewal.renewed(even_if_alone=True)
    state, broker_id = broker.metadata.state, BrokerId(request.broker_id)
    live = state.broker(broker_id)
    if live is not None:
        return UnregisterBrokerResponse(
            error_code=ErrorCode.INVALID_REQUEST,
            error_message=f"broker {broker_id} lives: it is {live.process}, which serves"
            f" {live.host}:{live.port}. Stop that process first; a broker that has died is fenced"
            f" {live.session_timeout_ms} ms after its last sign of life",
        )
    waiting = [info for info in state.fenced_not_retired() if info.broker_id == broker_id]
    retired = any(wal.incarnation.broker_id == broker_id for wal in state.retired.values())
    if not waiting and not retired:
        return UnregisterBrokerResponse(
            error_code=ErrorCode.BROKER_ID_NOT_REGISTERED,
            error_message=not_live(state, broker_id),
        )
    try:
        for info in waiting:
            await broker.take_over(info.incarnation)
    except StoreError as error:
        return UnregisterBrokerResponse(
            error_code=ErrorCode.REQUEST_TIMED_OUT,
            error_message=f"broker {broker_id} still owns partitions: {error}",
        )
    return UnregisterBrokerResponse(error_message=None)


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
        results=[DescribeLogDirsResult(log_dir=broker.store.url, topics=found)]
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
