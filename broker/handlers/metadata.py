"""Metadata and DescribeTopicPartitions: which topics there are, and who leads their partitions."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

from tidelog.broker.dispatch import RequestContext
from tidelog.broker.error_responses import error_response
from tidelog.broker.metadata_change import ChangeFailed, change_metadata
from tidelog.broker.services import Services
from tidelog.broker.topic_creation import (
    INTERNAL_TOPICS,
    CreationPlan,
    TopicRefused,
    WantedTopic,
)
from tidelog.broker.topic_view import (
    CLUSTER_OPERATIONS,
    OPERATIONS_NOT_ASKED,
    TOPIC_OPERATIONS,
    partition_views,
    unknown_topic_code,
)
from tidelog.coordinator.cluster.records import Record
from tidelog.coordinator.cluster.state import ClusterState
from tidelog.coordinator.cluster.topics import Topic
from tidelog.protocol.error_codes import ErrorCode
from tidelog.protocol.message import Response
from tidelog.protocol.schemas.metadata import (
    Cursor,
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    DescribeTopicPartitionsResponsePartition,
    DescribeTopicPartitionsResponseTopic,
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from tidelog.protocol.wire import NULL_UUID

logger = logging.getLogger(__name__)

TOPICS_BY_ID_FROM = 12


async def metadata(
    broker: Services, request: MetadataRequest, context: RequestContext
) -> Response | None:
    """The brokers and the topics asked for; those that do not exist are created, where both the
    client and auto.create.topics.enable allow it."""
    version = context.api_version
    asked = _asked(request, version)
    if version < TOPICS_BY_ID_FROM and any(
        topic.name is None or topic.topic_id != NULL_UUID for topic in asked or ()
    ):
        return error_response(
            request, version, ErrorCode.INVALID_REQUEST, "topics by id need version 12"
        )
    failed: dict[str, ErrorCode] = {}
    if (
        asked is not None
        and request.allow_auto_topic_creation
        and broker.settings.boolean("auto.create.topics.enable")
    ):
        failed = await _create_missing(broker, [each.name for each in asked if each.name])
    state = broker.metadata.state
    if asked is None:
        topics = [_described(state, topic) for topic in state.topics.values()]
    else:
        topics = [_found(state, each, failed) for each in _distinct(asked)]
    if request.include_topic_authorized_operations:
        for topic in topics:
            topic.topic_authorized_operations = TOPIC_OPERATIONS
    return MetadataResponse(
        brokers=[
            MetadataResponseBroker(node_id=info.broker_id, host=info.host, port=info.port)
            for info in state.live_brokers()
        ],
        cluster_id=state.cluster_id,
        controller_id=broker.incarnation.broker_id,
        topics=topics,
        cluster_authorized_operations=CLUSTER_OPERATIONS
        if request.include_cluster_authorized_operations
        else OPERATIONS_NOT_ASKED,
    )


def _asked(request: MetadataRequest, version: int) -> list[MetadataRequestTopic] | None:
    """None: all topics."""
    if version == 0 and not request.topics:
        return None
    return request.topics


def _distinct(asked: Sequence[MetadataRequestTopic]) -> list[MetadataRequestTopic]:
    return list({(topic.topic_id, topic.name): topic for topic in asked}.values())


async def _create_missing(broker: Services, names: Sequence[str]) -> dict[str, ErrorCode]:
    """Create the topics of these names that do not exist; the errors of those that could not be."""
    known = broker.metadata.state
    ids = {
        name: broker.entropy.uuid()
        for name in dict.fromkeys(names)
        if known.topic_named(name) is None and name not in INTERNAL_TOPICS
    }
    if not ids:
        return {}
    failed: dict[str, ErrorCode] = {}

    def build(state: ClusterState) -> Sequence[Record]:
        nonlocal failed
        failed = {}
        plan = CreationPlan(state, broker.settings)
        for name, topic_id in ids.items():
            if state.topic_named(name) is not None:
                continue
            try:
                plan.add(WantedTopic(name), topic_id)
            except TopicRefused as error:
                failed[name] = error.code
        return plan.records

    try:
        await change_metadata(broker, build)
    except (ChangeFailed, TopicRefused) as error:
        logger.warning("topics were not created", extra={"topics": list(ids), "why": str(error)})
        return dict.fromkeys(ids, ErrorCode.LEADER_NOT_AVAILABLE)
    return failed


def _found(
    state: ClusterState, asked: MetadataRequestTopic, failed: Mapping[str, ErrorCode]
) -> MetadataResponseTopic:
    if asked.topic_id != NULL_UUID:
        topic = state.topics.get(asked.topic_id)
        if topic is None:
            return MetadataResponseTopic(
                error_code=ErrorCode.UNKNOWN_TOPIC_ID, name=None, topic_id=asked.topic_id
            )
        return _described(state, topic)
    if asked.name is None:
        return MetadataResponseTopic(error_code=ErrorCode.UNKNOWN_TOPIC_ID, name=None)
    topic = state.topic_named(asked.name)
    if topic is None:
        code = failed.get(asked.name, unknown_topic_code(asked.name))
        return MetadataResponseTopic(error_code=code, name=asked.name)
    return _described(state, topic)


def _described(state: ClusterState, topic: Topic) -> MetadataResponseTopic:
    return MetadataResponseTopic(
        name=topic.name,
        topic_id=topic.topic_id,
        is_internal=topic.internal,
        partitions=[
            MetadataResponsePartition(
                error_code=view.error_code,
                partition_index=view.index,
                leader_id=view.leader_id,
                leader_epoch=view.leader_epoch,
                replica_nodes=view.replicas,
                isr_nodes=view.in_sync,
                offline_replicas=view.offline,
            )
            for view in partition_views(state, topic, 0, topic.partition_count)
        ],
    )


async def describe_topic_partitions(
    broker: Services, request: DescribeTopicPartitionsRequest, context: RequestContext
) -> Response | None:
    """One page of the topics asked for (of all, if none is named), in order of names."""
    state = broker.metadata.state
    cursor = request.cursor
    everything = not request.topics
    names = {topic.name for topic in (state.topics.values() if everything else request.topics)}
    if cursor is not None:
        fault = _cursor_fault(cursor, names, everything)
        if fault is not None:
            return error_response(request, context.api_version, ErrorCode.INVALID_REQUEST, fault)
        names = {name for name in names if name >= cursor.topic_name}
    limit = broker.settings.integer("max.request.partition.size.limit")
    room = max(1, min(limit, request.response_partition_limit))
    response = DescribeTopicPartitionsResponse()
    for name in sorted(names):
        if room == 0:
            response.next_cursor = Cursor(topic_name=name, partition_index=0)
            break
        topic = state.topic_named(name)
        if topic is None:
            response.topics.append(
                DescribeTopicPartitionsResponseTopic(name=name, error_code=unknown_topic_code(name))
            )
            continue
        start = cursor.partition_index if cursor and cursor.topic_name == name else 0
        described = _page(state, topic, start, start + room)
        response.topics.append(described)
        room -= len(described.partitions)
        end = start + len(described.partitions)
        if end < topic.partition_count:
            response.next_cursor = Cursor(topic_name=name, partition_index=end)
            break
    return response


def _cursor_fault(cursor: Cursor, names: set[str], everything: bool) -> str | None:
    if cursor.partition_index < 0:
        return f"the cursor names partition {cursor.partition_index}"
    if not everything and cursor.topic_name not in names:
        return f"the cursor names topic {cursor.topic_name}, which is not asked for"
    return None


def _page(
    state: ClusterState, topic: Topic, start: int, end: int
) -> DescribeTopicPartitionsResponseTopic:
    return DescribeTopicPartitionsResponseTopic(
        name=topic.name,
        topic_id=topic.topic_id,
        is_internal=topic.internal,
        partitions=[
            DescribeTopicPartitionsResponsePartition(
                error_code=view.error_code,
                partition_index=view.index,
                leader_id=view.leader_id,
                leader_epoch=view.leader_epoch,
                replica_nodes=view.replicas,
                isr_nodes=view.in_sync,
                eligible_leader_replicas=[],
                last_known_elr=[],
                offline_replicas=view.offline,
            )
            for view in partition_views(state, topic, start, end)
        ],
        topic_authorized_operations=TOPIC_OPERATIONS,
    )
