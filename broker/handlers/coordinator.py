"""FindCoordinator (10): which broker coordinates a group. Every broker answers."""

from __future__ import annotations

from tidelog.broker.dispatch import RequestContext
from tidelog.broker.error_responses import error_response
from tidelog.broker.internal_topics import GROUP_TOPIC, create_group_topic
from tidelog.broker.metadata_change import ChangeFailed
from tidelog.broker.placement import NoLiveBroker
from tidelog.broker.services import Services
from tidelog.coordinator.cluster.state import ClusterState
from tidelog.coordinator.hashing import partition_for
from tidelog.identifiers import TopicPartition
from tidelog.protocol.error_codes import ErrorCode
from tidelog.protocol.message import Response
from tidelog.protocol.schemas.coordinators import (
    Coordinator,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)

GROUP, TRANSACTION = 0, 1
BATCHES_FROM = 4
NO_BROKER = -1


async def find_coordinator(
    broker: Services, request: FindCoordinatorRequest, context: RequestContext
) -> Response | None:
    """The coordinators of the keys; the first such question creates the topic that they lead."""
    version = context.api_version
    if request.key_type not in (GROUP, TRANSACTION):
        why = f"key type {request.key_type} is not served"
        return error_response(request, version, ErrorCode.INVALID_REQUEST, why)
    if request.key_type == TRANSACTION:
        why = "this version of Tidelog does not coordinate transactions"
        return error_response(request, version, ErrorCode.COORDINATOR_NOT_AVAILABLE, why)
    try:
        await create_group_topic(broker)
    except (ChangeFailed, NoLiveBroker) as error:
        return error_response(request, version, ErrorCode.COORDINATOR_NOT_AVAILABLE, str(error))
    state = broker.metadata.state
    if version >= BATCHES_FROM:
        found = [_coordinator(state, GROUP_TOPIC, key) for key in request.coordinator_keys]
        return FindCoordinatorResponse(coordinators=found)
    one = _coordinator(state, GROUP_TOPIC, request.key)
    return FindCoordinatorResponse(
        error_code=one.error_code,
        error_message=one.error_message,
        node_id=one.node_id,
        host=one.host,
        port=one.port,
    )


def _coordinator(state: ClusterState, topic_name: str, key: str) -> Coordinator:
    """The leader of the partition that the key falls into."""
    topic = state.topic_named(topic_name)
    tenure = None
    if topic is not None:
        number = partition_for(key, topic.partition_count)
        tenure = state.leader(TopicPartition(topic.topic_id, number))
    leader = None if tenure is None else state.brokers.get(tenure.incarnation.epoch)
    if leader is None or leader.fenced:
        return Coordinator(
            key=key,
            node_id=NO_BROKER,
            port=NO_BROKER,
            error_code=ErrorCode.COORDINATOR_NOT_AVAILABLE,
            error_message="the coordinator has ended and nobody has taken over yet",
        )
    return Coordinator(
        key=key,
        node_id=leader.broker_id,
        host=leader.host,
        port=leader.port,
        error_message=None,
    )
