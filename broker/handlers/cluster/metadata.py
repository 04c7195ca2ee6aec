"""Metadata and DescribeTopicPartitions: the topics and the leaders of their partitions."""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from functools import partial
from heapq import nsmallest
from itertools import islice
from typing import NamedTuple

from tidelog.broker.authorization.access import Access, cluster_operations, operations_of
from tidelog.broker.handlers.cluster.mutations import Mutations
from tidelog.broker.handlers.cluster.visible_topics import may_create, visible_of
from tidelog.broker.handlers.error_responses import error_response
from tidelog.broker.handlers.metadata_change import ChangeFailed, change_metadata
from tidelog.broker.handlers.request_context import RequestContext
from tidelog.broker.handlers.services import ClusterServices
from tidelog.broker.topics.topic_creation import (
    INTERNAL_TOPICS,
    CreationPlan,
    TopicRefused,
    WantedTopic,
)
from tidelog.broker.topics.topic_view import (
    OPERATIONS_NOT_ASKED,
    Leaders,
    PartitionDescription,
    leaders_of,
    partition_view,
    partition_views,
    unknown_topic_code,
)
from tidelog.coordinator.cluster.records.records import Record
from tidelog.coordinator.cluster.records.topics import Topic, topic_name_fault
from tidelog.coordinator.cluster.state.state import ClusterState
from tidelog.protocol.error_codes import ErrorCode
from tidelog.protocol.made_list import made_list
from tidelog.protocol.message import Response
from tidelog.protocol.schemas.cluster.metadata import (
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
from tidelog.security.acl_codes import ResourceType

logger = logging.getLogger(__name__)

TOPICS_BY_ID_FROM = 12
LISTENER_NOT_FOUND_FROM = 6
REQUEST_CREATIONS_MAX = "auto.create.topics.request.max"
MINUTE_CREATIONS_MAX = "auto.create.topics.minute.max"
SLICE_NAMES = 2048
SLICE_TOPICS = 128
"""Topics that a slice looks up."""


async def metadata(
    broker: ClusterServices, request: MetadataRequest, context: RequestContext
) -> Response | None:
    """The brokers and the requested topics, when it is known who leads (`departures`).

    Missing topics are created if both the client and auto.create.topics.enable allow it.
    """
    version = context.api_version
    asked = _asked(request, version)
    if version < TOPICS_BY_ID_FROM and any(
        topic.name is None or topic.topic_id != NULL_UUID for topic in asked or ()
    ):
        return error_response(
            request, version, ErrorCode.INVALID_REQUEST, "topics by id need version 12"
        )
    known = broker.metadata.state
    refused: list[MetadataResponseTopic] = []
    failed: dict[str, ErrorCode] = {}
    await broker.departures.settled()
    if asked is not None:
        if await _names_unknown(broker, asked):
            await broker.renewal.renewed()
        known = broker.metadata.state
        asked, hidden = await visible_of(
            broker.turns,
            context.access,
            _distinct(asked),
            partial(_name, known),
            is_quiet=False,
        )
        refused = [_refused(each) for each in hidden]
    if (
        asked is not None
        and request.allow_auto_topic_creation
        and broker.settings.boolean("auto.create.topics.enable")
    ):
        failed = await _create_missing(broker, asked, context)
    state = broker.metadata.state
    operations = _operations(request, context.access)
    leaders = leaders_of(
        state,
        context.listener,
        ErrorCode.LISTENER_NOT_FOUND
        if version >= LISTENER_NOT_FOUND_FROM
        else ErrorCode.LEADER_NOT_AVAILABLE,
    )
    if asked is None:
        every = state.topics.values()
        seen, _ = await visible_of(
            broker.turns, context.access, every, lambda topic: topic.name, is_quiet=True
        )
        topics = made_list(seen, lambda topic: _described(leaders, topic, operations))
    else:
        asked, hidden = await visible_of(
            broker.turns, context.access, asked, partial(_new_name, known, state), is_quiet=False
        )
        refused += [_refused(each) for each in hidden]
        found = (_found(state, leaders, each, failed, operations) for each in asked)
        topics = await broker.turns.list_of(found, SLICE_TOPICS)
    return MetadataResponse(
        brokers=[
            MetadataResponseBroker(
                node_id=info.broker_id, host=endpoint.host, port=endpoint.port, rack=info.rack
            )
            for info in (*state.live_brokers(), *broker.departures.listed())
            if (endpoint := info.endpoint(context.listener)) is not None
        ],
        cluster_id=state.cluster_id,
        controller_id=broker.incarnation.broker_id,
        topics=[*topics, *refused] if refused else topics,
        cluster_authorized_operations=cluster_operations(context.access)
        if request.include_cluster_authorized_operations
        else OPERATIONS_NOT_ASKED,
    )


def _name(state: ClusterState, asked: MetadataRequestTopic) -> str | None:
    """The name of a requested topic; None for an id without a topic."""
    if asked.topic_id == NULL_UUID:
        return asked.name
    topic = state.topics.get(asked.topic_id)
    return None if topic is None else topic.name


def _new_name(known: ClusterState, state: ClusterState, asked: MetadataRequestTopic) -> str | None:
    """The name of a topic that is requested by id and that `known` lacks; None for others."""
    return None if _name(known, asked) is not None else _name(state, asked)


def _refused(asked: MetadataRequestTopic) -> MetadataResponseTopic:
    """The answer for a topic that the client may not see: it only repeats the request."""
    return MetadataResponseTopic(
        error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        name=asked.name if asked.topic_id == NULL_UUID else None,
        topic_id=asked.topic_id,
    )


def _operations(request: MetadataRequest, access: Access | None) -> Callable[[str], int]:
    """The bit field of the client's permissions on a topic, by its name."""
    if not request.include_topic_authorized_operations:
        return lambda _: OPERATIONS_NOT_ASKED
    return partial(operations_of, access, ResourceType.TOPIC)


def _asked(request: MetadataRequest, version: int) -> list[MetadataRequestTopic] | None:
    """The requested topics; None for all topics."""
    if version == 0 and not request.topics:
        return None
    return request.topics


async def _names_unknown(broker: ClusterServices, asked: Sequence[MetadataRequestTopic]) -> bool:
    """Whether the request names a topic that this broker does not know."""
    state = broker.metadata.state
    async for each in broker.turns.over(asked, SLICE_NAMES):
        by_name = None if each.name is None else state.topic_named(each.name)
        if by_name is None and each.topic_id not in state.topics:
            return True
    return False


def _distinct(asked: Sequence[MetadataRequestTopic]) -> list[MetadataRequestTopic]:
    return list({(topic.topic_id, topic.name): topic for topic in asked}.values())


async def _create_missing(
    broker: ClusterServices, asked: Sequence[MetadataRequestTopic], context: RequestContext
) -> dict[str, ErrorCode]:
    """Create the topics of these names that do not exist; return the errors of failed ones."""
    known = broker.metadata.state
    names = (each.name for each in asked if each.name and known.topic_named(each.name) is None)
    missing = await broker.turns.list_of(
        (name for name in names if _may_create(name)), SLICE_TOPICS
    )
    failed = {
        name: ErrorCode.TOPIC_AUTHORIZATION_FAILED
        for name in missing
        if not may_create(context.access, name)
    }
    missing = [name for name in dict.fromkeys(missing) if name not in failed]
    allowed = _allowed(broker, len(missing))
    failed |= dict.fromkeys(missing[allowed:], ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    # Clients ask for the topic again.
    mutations = Mutations(broker, context, 0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    for begin in range(0, allowed, SLICE_TOPICS):
        part = missing[begin : min(begin + SLICE_TOPICS, allowed)]
        failed |= await _create(broker, part, mutations)
    return failed


def _may_create(name: str) -> bool:
    return name not in INTERNAL_TOPICS and topic_name_fault(name) is None


def _allowed(broker: ClusterServices, missing: int) -> int:
    """The number of missing topics that the limits allow to create now."""
    settings, met = broker.settings, broker.limits.met
    of_request = min(missing, settings.integer(REQUEST_CREATIONS_MAX))
    minute_max = settings.integer(MINUTE_CREATIONS_MAX)
    allowed = broker.auto_creations.take(of_request, minute_max, broker.clock.monotonic())
    why = f"clients requested {missing} missing topics, and {allowed} of them are created"
    met(REQUEST_CREATIONS_MAX, why, missing - of_request)
    met(MINUTE_CREATIONS_MAX, why, of_request - allowed)
    return allowed


async def _create(
    broker: ClusterServices, names: Sequence[str], mutations: Mutations
) -> dict[str, ErrorCode]:
    ids = {name: broker.entropy.uuid() for name in names}
    refused: dict[str, TopicRefused] = {}

    def build(state: ClusterState) -> Sequence[Record]:
        refused.clear()
        plan = CreationPlan(state, broker.settings, mutations.permit)
        for name, random in ids.items():
            if state.topic_named(name) is not None:
                continue
            try:
                plan.add(WantedTopic(name), random)
            except TopicRefused as error:
                refused[name] = error
        return plan.records

    try:
        await change_metadata(broker, build)
    except (ChangeFailed, TopicRefused) as error:
        logger.warning("topics were not created", extra={"topics": list(ids), "why": str(error)})
        return dict.fromkeys(ids, ErrorCode.LEADER_NOT_AVAILABLE)
    for each in refused.values():
        if each.limit is not None:
            broker.limits.met(each.limit, str(each))
    return {name: each.code for name, each in refused.items()}


def _found(
    state: ClusterState,
    leaders: Leaders,
    asked: MetadataRequestTopic,
    failed: Mapping[str, ErrorCode],
    operations: Callable[[str], int],
) -> MetadataResponseTopic:
    if asked.topic_id != NULL_UUID:
        topic = state.topics.get(asked.topic_id)
        if topic is None:
            return MetadataResponseTopic(
                error_code=ErrorCode.UNKNOWN_TOPIC_ID,
                name=None,
                topic_id=asked.topic_id,
            )
        return _described(leaders, topic, operations)
    topic = None if asked.name is None else state.topic_named(asked.name)
    if topic is not None:
        return _described(leaders, topic, operations)
    code = ErrorCode.UNKNOWN_TOPIC_ID
    if asked.name is not None:
        code = failed.get(asked.name) or unknown_topic_code(asked.name)
    return MetadataResponseTopic(
        error_code=code,
        name=asked.name,
        topic_authorized_operations=operations(asked.name or ""),
    )


def _described(
    leaders: Leaders, topic: Topic, operations: Callable[[str], int]
) -> MetadataResponseTopic:
    return MetadataResponseTopic(
        name=topic.name,
        topic_id=topic.topic_id,
        is_internal=topic.internal,
        partitions=made_list(
            range(topic.partition_count),
            lambda index: _described_partition(partition_view(topic, index, leaders)),
        ),
        topic_authorized_operations=operations(topic.name),
    )


def _described_partition(view: PartitionDescription) -> MetadataResponsePartition:
    return MetadataResponsePartition(
        error_code=view.error_code,
        partition_index=view.number,
        leader_id=view.leader_id,
        leader_epoch=view.leader_epoch,
        replica_nodes=view.replicas,
        isr_nodes=view.in_sync,
        offline_replicas=view.offline,
    )


async def describe_topic_partitions(
    broker: ClusterServices, request: DescribeTopicPartitionsRequest, context: RequestContext
) -> Response | None:
    """One page of the requested topics (of all, if none is named), in order of names."""
    state = broker.metadata.state
    leaders = leaders_of(state, context.listener, ErrorCode.LISTENER_NOT_FOUND)
    cursor = request.cursor
    limit = broker.settings.integer("max.request.partition.size.limit")
    room = max(1, min(limit, request.response_partition_limit))
    names: Iterable[str] = (topic.name for topic in request.topics or state.topics.values())
    hidden: list[str] = []
    if context.access is not None:
        names, hidden = await visible_of(
            broker.turns, context.access, names, lambda name: name, is_quiet=not request.topics
        )
    # Each topic takes at least one place of the page.
    first = await broker.turns.through(_first(names, cursor, room + 1))
    if cursor is not None:
        is_asked_for = first.has_cursor or cursor.topic_name in hidden or not request.topics
        fault = _cursor_fault(cursor, is_asked_for)
        if fault is not None:
            return error_response(request, context.api_version, ErrorCode.INVALID_REQUEST, fault)
    response = DescribeTopicPartitionsResponse()
    for name in first.names:
        if room == 0:
            response.next_cursor = Cursor(topic_name=name, partition_index=0)
            break
        topic = state.topic_named(name)
        operations = operations_of(context.access, ResourceType.TOPIC, name)
        if topic is None:
            unknown = DescribeTopicPartitionsResponseTopic(
                name=name,
                error_code=unknown_topic_code(name),
                topic_authorized_operations=operations,
            )
            response.topics.append(unknown)
            room -= 1
            continue
        start = cursor.partition_index if cursor and cursor.topic_name == name else 0
        described = _page(leaders, topic, start, start + room, operations)
        response.topics.append(described)
        room -= max(1, len(described.partitions))
        end = start + len(described.partitions)
        if end < topic.partition_count:
            response.next_cursor = Cursor(topic_name=name, partition_index=end)
            break
    if request.topics:
        begin = "" if cursor is None else cursor.topic_name
        response.topics += [
            DescribeTopicPartitionsResponseTopic(
                name=name, error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED
            )
            for name in dict.fromkeys(hidden)
            if name >= begin
        ]
    return response


class _First(NamedTuple):
    """The first names from a cursor on, in order, and whether the cursor's topic is among all
    names."""

    names: list[str]
    has_cursor: bool


def _first(
    names: Iterable[str], cursor: Cursor | None, names_max: int
) -> Generator[None, None, _First]:
    """Select them in steps."""
    begin = "" if cursor is None else cursor.topic_name
    first: list[str] = []
    has_cursor = False
    iterator = iter(names)
    while chunk := set(islice(iterator, max(names_max, SLICE_NAMES))):
        has_cursor = has_cursor or begin in chunk
        first = nsmallest(names_max, {*first, *(name for name in chunk if name >= begin)})
        yield
    return _First(first, has_cursor)


def _cursor_fault(cursor: Cursor, is_asked_for: bool) -> str | None:
    if cursor.partition_index < 0:
        return f"the cursor names partition {cursor.partition_index}"
    if not is_asked_for:
        return f"the cursor names topic {cursor.topic_name}, which is not requested"
    return None


def _page(
    leaders: Leaders, topic: Topic, start: int, end: int, operations: int
) -> DescribeTopicPartitionsResponseTopic:
    return DescribeTopicPartitionsResponseTopic(
        name=topic.name,
        topic_id=topic.topic_id,
        is_internal=topic.internal,
        partitions=[
            DescribeTopicPartitionsResponsePartition(
                error_code=view.error_code,
                partition_index=view.number,
                leader_id=view.leader_id,
                leader_epoch=view.leader_epoch,
                replica_nodes=view.replicas,
                isr_nodes=view.in_sync,
                eligible_leader_replicas=[],
                last_known_elr=[],
                offline_replicas=view.offline,
            )
            for view in partition_views(leaders, topic, start, end)
        ],
        topic_authorized_operations=operations,
    )
