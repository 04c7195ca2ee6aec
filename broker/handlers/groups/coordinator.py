"""FindCoordinator (10): the broker that coordinates a group or a transactional id.

Every broker answers.
"""

from __future__ import annotations

from tidelog.broker.handlers.error_responses import error_response
from tidelog.broker.handlers.internal_topics import create_internal_topic
from tidelog.broker.handlers.metadata_change import ChangeFailed
from tidelog.broker.handlers.request_context import RequestContext
from tidelog.broker.handlers.services import GroupServices
from tidelog.coordinator.cluster.membership.assignment import NoLiveBroker
from tidelog.coordinator.cluster.state.state import ClusterState
from tidelog.coordinator.hashing import partition_for
from tidelog.coordinator.internal_topics import GROUP_TOPIC, TRANSACTION_TOPIC
from tidelog.identifiers import TopicPartition
from tidelog.protocol.error_codes import ErrorCode
from tidelog.protocol.message import Response
from tidelog.protocol.schemas.coordinators import (
    Coordinator,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)

_TOPICS = {0: GROUP_TOPIC, 1: TRANSACTION_TOPIC}
"""The internal topic whose partition leaders coordinate the keys of a type."""
BATCHES_FROM = 4
NO_BROKER = -1


async def find_coordinator(
    broker: GroupServices, request: FindCoordinatorRequest, context: RequestContext
) -> Response | None:
    """The keys' coordinators, when it is known who they are (`departures`).

    The first request creates their internal topic.
    """
    version = context.api_version
    topic = _TOPICS.get(request.key_type)
    if topic is None:
        why = f"key type {request.key_type} is not served"
        return error_response(request, version, ErrorCode.INVALID_REQUEST, why)
    await broker.departures.settled()
    try:
        await create_internal_topic(broker, topic)
    except (ChangeFailed, NoLiveBroker) as error:
        return error_response(request, version, ErrorCode.COORDINATOR_NOT_AVAILABLE, str(error))
    state, listener = broker.metadata.state, context.listener
    if version >= BATCHES_FROM:
        found = [_coordinator(state, topic, key, listener) for key in request.coordinator_keys]
        return FindCoordinatorResponse(coordinators=found)
    one = _coordinator(state, topic, request.key, listener)
    return FindCoordinatorResponse(
        error_code=one.error_code,
        error_message=one.error_message,
        node_id=one.node_id,
        host=one.host,
        port=one.port,
    )


def _coordinator(state: ClusterState, topic_name: str, key: str, listener: str) -> Coordinator:
    """The leader of the key's partition, at its address of this listener."""
    topic = state.topic_named(topic_name)
    tenure = None
    if topic is not None:
        number = partition_for(key, topic.partition_count)
        tenure = state.leader(TopicPartition(topic.topic_id, number))
    leader = None if tenure is None else state.brokers.get(tenure.incarnation.epoch)
    if leader is None or leader.fenced:
        return _no_coordinator(key, "the coordinator has ended and no broker has taken over yet")
    endpoint = leader.endpoint(listener)
    if endpoint is None:
        return _no_coordinator(
            key, f"the coordinator, broker {leader.broker_id}, has no listener {listener}"
        )
    return Coordinator(
        key=key,
        node_id=leader.broker_id,
        host=endpoint.host,
        port=endpoint.port,
        error_message=None,
    )


def _no_coordinator(key: str, why: str) -> Coordinator:
    return Coordinator(
        key=key,
        node_id=NO_BROKER,
        port=NO_BROKER,
        error_code=ErrorCode.COORDINATOR_NOT_AVAILABLE,
        error_message=why,
    )
