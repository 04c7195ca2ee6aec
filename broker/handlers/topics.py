"""CreateTopics, DeleteTopics and CreatePartitions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from uuid import UUID

from tidelog.broker.dispatch import RequestContext
from tidelog.broker.metadata_change import ChangeFailed, change_metadata
from tidelog.broker.placement import NoLiveBroker, Placement
from tidelog.broker.services import Services
from tidelog.broker.settings import BrokerSettings, effective_topic_config
from tidelog.broker.topic_creation import (
    CreationPlan,
    TopicRefused,
    WantedTopic,
    named_owner,
)
from tidelog.coordinator.cluster.records import (
    PartitionsCreated,
    Record,
    TopicCreated,
    TopicDeleted,
)
from tidelog.coordinator.cluster.state import ClusterState
from tidelog.coordinator.cluster.transitions import PARTITIONS_PER_TOPIC_MAX
from tidelog.identifiers import TopicId
from tidelog.protocol.error_codes import ErrorCode
from tidelog.protocol.schemas.topics import (
    CreatableTopic,
    CreatableTopicConfigs,
    CreatableTopicResult,
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
    CreatePartitionsTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeletableTopicResult,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
)
from tidelog.protocol.wire import NULL_UUID

DELETE_BY_ID_FROM = 6
DELETION_DISABLED_CODE_FROM = 3
REPLICAS = 1
"""What is reported: the object store replicates, brokers do not."""

_TWICE = TopicRefused(ErrorCode.INVALID_REQUEST, "the request names the topic twice")


async def create_topics(
    broker: Services, request: CreateTopicsRequest, _context: RequestContext
) -> CreateTopicsResponse:
    """Create each topic that can be created. All of them come in one entry of the metadata log."""
    ids: dict[str, UUID] = {topic.name: broker.entropy.uuid() for topic in request.topics}
    results: list[CreatableTopicResult] = []

    def build(state: ClusterState) -> Sequence[Record]:
        nonlocal results
        results, records = _plan_topics(state, request.topics, ids, broker.settings)
        return records

    if request.validate_only:
        build(broker.metadata.state)
        for result in results:
            result.topic_id = NULL_UUID
        return CreateTopicsResponse(topics=results)
    try:
        await change_metadata(broker, build)
    except ChangeFailed as error:
        for position, result in enumerate(results):
            if result.error_code == ErrorCode.NONE:
                results[position] = _refused(result.name, error)
        if not results:
            results = [_refused(topic.name, error) for topic in request.topics]
    return CreateTopicsResponse(topics=results)


def _plan_topics(
    state: ClusterState,
    topics: Sequence[CreatableTopic],
    ids: Mapping[str, UUID],
    settings: BrokerSettings,
) -> tuple[list[CreatableTopicResult], Sequence[Record]]:
    """A result for each name, and the records that create those without an error."""
    times = Counter(topic.name for topic in topics)
    try:
        plan = CreationPlan(state, settings)
    except TopicRefused as error:
        return [_refused(name, error) for name in times], []
    results = [_refused(name, _TWICE) for name, count in times.items() if count > 1]
    for topic in topics:
        if times[topic.name] > 1:
            continue
        try:
            results.append(_created(plan.add(_wanted(topic), ids[topic.name]), settings))
        except TopicRefused as error:
            results.append(_refused(topic.name, error))
    return results, plan.records


def _wanted(topic: CreatableTopic) -> WantedTopic:
    assignments = None
    if topic.assignments:
        assignments = {each.partition_index: each.broker_ids for each in topic.assignments}
        if len(assignments) != len(topic.assignments):
            raise TopicRefused(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT, "a partition is assigned more than once"
            )
    return WantedTopic(
        topic.name,
        topic.num_partitions,
        topic.replication_factor,
        assignments,
        {config.name: config.value for config in topic.configs},
    )


def _created(record: TopicCreated, settings: BrokerSettings) -> CreatableTopicResult:
    config = effective_topic_config(record.configs, settings)
    entries = [config.entry(name) for name in sorted(config)]
    return CreatableTopicResult(
        name=record.name,
        topic_id=record.topic_id,
        error_message=None,
        num_partitions=len(record.owners),
        replication_factor=REPLICAS,
        configs=[
            CreatableTopicConfigs(
                name=entry.setting.name,
                value=entry.value,
                read_only=entry.read_only,
                config_source=entry.source,
            )
            for entry in entries
        ],
    )


def _refused(name: str, error: TopicRefused | ChangeFailed) -> CreatableTopicResult:
    return CreatableTopicResult(name=name, error_code=error.code, error_message=str(error))


async def delete_topics(
    broker: Services, request: DeleteTopicsRequest, context: RequestContext
) -> DeleteTopicsResponse:
    """Delete topics by name or id. Their data is collected later."""
    asked = (
        request.topics
        if context.api_version >= DELETE_BY_ID_FROM
        else [DeleteTopicState(name=name) for name in request.topic_names]
    )
    if not broker.settings.boolean("delete.topic.enable"):
        code = (
            ErrorCode.TOPIC_DELETION_DISABLED
            if context.api_version >= DELETION_DISABLED_CODE_FROM
            else ErrorCode.INVALID_REQUEST
        )
        refusal = TopicRefused(code, "delete.topic.enable is false")
        return DeleteTopicsResponse(responses=[_not_deleted(each, refusal) for each in asked])
    results: list[DeletableTopicResult] = []

    def build(state: ClusterState) -> Sequence[Record]:
        nonlocal results
        results, records = _plan_deletions(state, asked)
        return records

    try:
        await change_metadata(broker, build)
    except ChangeFailed as error:
        results = [_not_deleted(each, error) for each in asked]
    return DeleteTopicsResponse(responses=results)


def _plan_deletions(
    state: ClusterState, asked: Sequence[DeleteTopicState]
) -> tuple[list[DeletableTopicResult], list[Record]]:
    times = Counter((each.name, each.topic_id) for each in asked)
    results = []
    records: list[Record] = []
    gone: set[TopicId] = set()
    for (name, topic_id), count in times.items():
        state_asked = DeleteTopicState(name=name, topic_id=topic_id)
        try:
            found_id, found_name = _topic_to_delete(state, name, topic_id)
            if count > 1 or found_id in gone:
                raise TopicRefused(ErrorCode.INVALID_REQUEST, "the request names the topic twice")
        except TopicRefused as error:
            results.append(_not_deleted(state_asked, error))
        else:
            gone.add(found_id)
            records.append(TopicDeleted(found_id))
            results.append(
                DeletableTopicResult(name=found_name, topic_id=found_id, error_message=None)
            )
    return results, records


def _topic_to_delete(state: ClusterState, name: str | None, topic_id: UUID) -> tuple[TopicId, str]:
    if name is not None and topic_id != NULL_UUID:
        raise TopicRefused(ErrorCode.INVALID_REQUEST, "give a topic's name or its id, not both")
    if name is not None:
        topic = state.topic_named(name)
        if topic is None:
            raise TopicRefused(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {name[:249]}"
            )
    elif topic_id == NULL_UUID:
        raise TopicRefused(ErrorCode.INVALID_REQUEST, "neither a topic's name nor its id is given")
    else:
        topic = state.topics.get(topic_id)
        if topic is None:
            raise TopicRefused(
                ErrorCode.UNKNOWN_TOPIC_ID, f"there is no topic with the id {topic_id}"
            )
    if topic.internal:
        raise TopicRefused(
            ErrorCode.INVALID_TOPIC_EXCEPTION, f"{topic.name} is an internal topic; it stays"
        )
    return topic.topic_id, topic.name


def _not_deleted(
    asked: DeleteTopicState, error: TopicRefused | ChangeFailed
) -> DeletableTopicResult:
    return DeletableTopicResult(
        name=asked.name,
        topic_id=asked.topic_id,
        error_code=error.code,
        error_message=str(error),
    )


async def create_partitions(
    broker: Services, request: CreatePartitionsRequest, _context: RequestContext
) -> CreatePartitionsResponse:
    """Add partitions to each topic that can have them."""
    results: list[CreatePartitionsTopicResult] = []

    def build(state: ClusterState) -> Sequence[Record]:
        nonlocal results
        results, records = _plan_partitions(state, request.topics)
        return records

    if request.validate_only:
        build(broker.metadata.state)
        return CreatePartitionsResponse(results=results)
    try:
        await change_metadata(broker, build)
    except ChangeFailed as error:
        for position, result in enumerate(results):
            if result.error_code == ErrorCode.NONE:
                results[position] = _not_extended(result.name, error)
        if not results:
            results = [_not_extended(topic.name, error) for topic in request.topics]
    return CreatePartitionsResponse(results=results)


def _plan_partitions(
    state: ClusterState, topics: Sequence[CreatePartitionsTopic]
) -> tuple[list[CreatePartitionsTopicResult], list[Record]]:
    times = Counter(topic.name for topic in topics)
    results = [_not_extended(name, _TWICE) for name, count in times.items() if count > 1]
    records: list[Record] = []
    try:
        placement = Placement(state)
    except NoLiveBroker as error:
        nobody = TopicRefused(ErrorCode.INVALID_REPLICATION_FACTOR, str(error))
        return [_not_extended(name, nobody) for name in times], []
    for topic in topics:
        if times[topic.name] > 1:
            continue
        try:
            records.append(_plan_extension(state, placement, topic))
        except TopicRefused as error:
            results.append(_not_extended(topic.name, error))
        else:
            results.append(CreatePartitionsTopicResult(name=topic.name))
    return results, records


def _plan_extension(
    state: ClusterState, placement: Placement, wanted: CreatePartitionsTopic
) -> PartitionsCreated:
    topic = state.topic_named(wanted.name)
    if topic is None:
        raise TopicRefused(
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {wanted.name[:249]}"
        )
    if topic.internal:
        # Keys are spread over its partitions by their number: with another, none would be found.
        raise TopicRefused(
            ErrorCode.INVALID_TOPIC_EXCEPTION,
            f"{topic.name} is an internal topic; its number of partitions stays",
        )
    additional = wanted.count - topic.partition_count
    if additional <= 0:
        raise TopicRefused(
            ErrorCode.INVALID_PARTITIONS,
            f"topic {topic.name} has {topic.partition_count} partitions; {wanted.count} would not "
            "be an increase",
        )
    if wanted.count > PARTITIONS_PER_TOPIC_MAX:
        raise TopicRefused(
            ErrorCode.INVALID_PARTITIONS,
            f"{wanted.count} partitions: a topic may have at most {PARTITIONS_PER_TOPIC_MAX}",
        )
    if wanted.assignments is None:
        return PartitionsCreated(topic.topic_id, placement.assign(additional))
    if len(wanted.assignments) != additional:
        raise TopicRefused(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            f"{additional} partitions are to be added, but {len(wanted.assignments)} are assigned",
        )
    owners = [
        named_owner(state, topic.partition_count + position, each.broker_ids, REPLICAS)
        for position, each in enumerate(wanted.assignments)
    ]
    return PartitionsCreated(topic.topic_id, tuple(owners))


def _not_extended(name: str, error: TopicRefused | ChangeFailed) -> CreatePartitionsTopicResult:
    return CreatePartitionsTopicResult(name=name, error_code=error.code, error_message=str(error))
