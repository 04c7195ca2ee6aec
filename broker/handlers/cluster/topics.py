"""CreateTopics, DeleteTopics and CreatePartitions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TypeVar
from uuid import UUID

from tidelog.broker.authorization.access import Access
from tidelog.broker.handlers.cluster.mutations import Mutations
from tidelog.broker.handlers.cluster.visible_topics import may_delete
from tidelog.broker.handlers.error_responses import error_response
from tidelog.broker.handlers.metadata_change import ChangeFailed, change_metadata
from tidelog.broker.handlers.request_context import RequestContext
from tidelog.broker.handlers.services import ClusterServices
from tidelog.broker.settings.settings import effective_topic_config
from tidelog.broker.topics.topic_creation import (
    DEFAULT,
    CreationPlan,
    Room,
    TopicRefused,
    WantedTopic,
    named_owner,
)
from tidelog.coordinator.cluster.membership.assignment import NoLiveBroker, Placement
from tidelog.coordinator.cluster.records.records import (
    PartitionsCreated,
    Record,
    TopicCreated,
    TopicDeleted,
)
from tidelog.coordinator.cluster.state.state import ClusterState
from tidelog.coordinator.cluster.state.topic_transitions import PARTITIONS_PER_TOPIC_MAX
from tidelog.identifiers import TopicId
from tidelog.protocol.error_codes import ErrorCode
from tidelog.protocol.message import Response
from tidelog.protocol.schemas.cluster.topics import (
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
CREATION_THROTTLED_FROM = 6
DELETION_THROTTLED_FROM = 5
EXTENSION_THROTTLED_FROM = 3
"""The versions from which on clients know THROTTLING_QUOTA_EXCEEDED."""
DELETION_DISABLED_CODE_FROM = 3
REQUEST_PARTITIONS_MAX = "create.partitions.request.max"
SLICE_TOPICS = 1024
PART_TOPICS = 32
"""Topics that a slice creates, deletes or extends."""
REPLICAS = 1
"""The reported replication factor: the object store replicates, brokers do not."""

T = TypeVar("T")

_FORBIDDEN = TopicRefused(ErrorCode.TOPIC_AUTHORIZATION_FAILED, "Topic authorization failed.")
_TWICE = TopicRefused(ErrorCode.INVALID_REQUEST, "the request names the topic twice")


async def create_topics(
    broker: ClusterServices, request: CreateTopicsRequest, context: RequestContext
) -> CreateTopicsResponse:
    """Create each topic that can be created.

    They are independent of each other: an entry of the metadata log holds PART_TOPICS at most.
    """
    times = await broker.turns.counted(topic.name for topic in request.topics)
    default_count = broker.settings.integer("num.partitions")
    counts = (_partitions_asked(topic, default_count) for topic in request.topics)
    excess = _excess(broker, sum(counts))
    if excess is not None:
        return CreateTopicsResponse(topics=[_refused(broker, name, excess) for name in times])
    results = [_refused(broker, name, _TWICE) for name, count in times.items() if count > 1]
    mutations = Mutations(broker, context, CREATION_THROTTLED_FROM)
    creations = _Creations(broker, mutations)
    wanted = [topic for topic in request.topics if times[topic.name] == 1]
    async for part in broker.turns.over(_parts(wanted), 1):
        if request.validate_only:
            results += creations.validated(part)
        else:
            results += await creations.made(part)
    return CreateTopicsResponse(topics=results, throttle_time_ms=mutations.throttle_ms)


def _partitions_asked(topic: CreatableTopic, default_count: int) -> int:
    if topic.assignments:
        return len(topic.assignments)
    return default_count if topic.num_partitions == DEFAULT else max(0, topic.num_partitions)


def _excess(broker: ClusterServices, partitions: int) -> TopicRefused | None:
    """Why a request with this many partitions is refused as a whole; None if it is not."""
    limit = broker.settings.integer(REQUEST_PARTITIONS_MAX)
    if partitions <= limit:
        return None
    return TopicRefused(
        ErrorCode.POLICY_VIOLATION,
        f"{partitions} partitions in one request; at most {limit} are created"
        f" ({REQUEST_PARTITIONS_MAX}): split them over several requests",
        REQUEST_PARTITIONS_MAX,
    )


def _parts(items: Sequence[T]) -> Iterator[Sequence[T]]:
    for begin in range(0, len(items), PART_TOPICS):
        yield items[begin : begin + PART_TOPICS]


class _Creations:
    """The creation of one request's topics."""

    def __init__(self, broker: ClusterServices, mutations: Mutations) -> None:
        self._broker = broker
        self._mutations = mutations
        self._validating: CreationPlan | TopicRefused | None = None
        self._configs: dict[frozenset[tuple[str, str]], list[CreatableTopicConfigs]] = {}
        """A cache: most topics of a request have the same settings."""

    def validated(self, topics: Sequence[CreatableTopic]) -> list[CreatableTopicResult]:
        """The results that the creation would have, after those of earlier calls."""
        if self._validating is None:
            self._validating = self._plan(self._broker.metadata.state)
        results = self._planned(self._validating, topics, dict.fromkeys(_names(topics), NULL_UUID))
        for result in results:
            result.topic_id = NULL_UUID
        return results

    async def made(self, topics: Sequence[CreatableTopic]) -> list[CreatableTopicResult]:
        """Create the topics; return the results."""
        ids: dict[str, UUID] = {name: self._broker.entropy.uuid() for name in _names(topics)}
        results: list[CreatableTopicResult] = []

        def build(state: ClusterState) -> Sequence[Record]:
            nonlocal results
            plan = self._plan(state)
            results = self._planned(plan, topics, ids)
            return plan.records if isinstance(plan, CreationPlan) else ()

        try:
            await change_metadata(self._broker, build)
        except ChangeFailed as error:
            for position, result in enumerate(results):
                if result.error_code == ErrorCode.NONE:
                    results[position] = _refused(self._broker, result.name, error)
            return results or [_refused(self._broker, topic.name, error) for topic in topics]
        return results

    def _plan(self, state: ClusterState) -> CreationPlan | TopicRefused:
        try:
            return CreationPlan(state, self._broker.settings, self._mutations.permit)
        except TopicRefused as error:
            return error

    def _planned(
        self,
        plan: CreationPlan | TopicRefused,
        topics: Sequence[CreatableTopic],
        ids: Mapping[str, UUID],
    ) -> list[CreatableTopicResult]:
        results = []
        for topic in topics:
            try:
                if isinstance(plan, TopicRefused):
                    raise plan
                record = plan.add(_wanted(topic), ids[topic.name])
            except TopicRefused as error:
                results.append(_refused(self._broker, topic.name, error))
            else:
                results.append(self._created(record))
        return results

    def _created(self, record: TopicCreated) -> CreatableTopicResult:
        return CreatableTopicResult(
            name=record.name,
            topic_id=record.topic_id,
            error_message=None,
            num_partitions=len(record.owners),
            replication_factor=REPLICAS,
            configs=self._described(record.configs),
        )

    def _described(self, configs: Mapping[str, str]) -> list[CreatableTopicConfigs]:
        key = frozenset(configs.items())
        known = self._configs.get(key)
        if known is None:
            config = effective_topic_config(configs, self._broker.settings)
            known = self._configs[key] = [
                CreatableTopicConfigs(
                    name=entry.setting.name,
                    value=entry.value,
                    read_only=entry.read_only,
                    config_source=entry.source,
                )
                for entry in map(config.entry, sorted(config))
            ]
        return known


def _names(topics: Sequence[CreatableTopic]) -> list[str]:
    return [topic.name for topic in topics]


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


def _refused(
    broker: ClusterServices, name: str, error: TopicRefused | ChangeFailed
) -> CreatableTopicResult:
    _count_limit(broker, error)
    return CreatableTopicResult(name=name, error_code=error.code, error_message=str(error))


def _count_limit(broker: ClusterServices, error: TopicRefused | ChangeFailed) -> None:
    if isinstance(error, TopicRefused) and error.limit is not None:
        broker.limits.met(error.limit, str(error))


async def delete_topics(
    broker: ClusterServices, request: DeleteTopicsRequest, context: RequestContext
) -> Response | None:
    """Delete topics by name or id. The collector deletes their data later."""
    version = context.api_version
    if not broker.settings.boolean("delete.topic.enable"):
        code = (
            ErrorCode.TOPIC_DELETION_DISABLED
            if version >= DELETION_DISABLED_CODE_FROM
            else ErrorCode.INVALID_REQUEST
        )
        return error_response(request, version, code, "delete.topic.enable is false")
    asked = (
        request.topics
        if version >= DELETE_BY_ID_FROM
        else [DeleteTopicState(name=name) for name in request.topic_names]
    )
    times = await broker.turns.counted((each.name, each.topic_id) for each in asked)
    mutations = Mutations(broker, context, DELETION_THROTTLED_FROM)
    deletions = _Deletions(broker, times, mutations, context.access)
    results: list[DeletableTopicResult] = []
    async for part in broker.turns.over(_parts(list(deletions.asked)), 1):
        results += await deletions.made(part)
    return DeleteTopicsResponse(responses=results, throttle_time_ms=mutations.throttle_ms)


class _Deletions:
    """The deletion of one request's topics."""

    def __init__(
        self,
        broker: ClusterServices,
        asked: Mapping[tuple[str | None, UUID], int],
        mutations: Mutations,
        access: Access | None,
    ) -> None:
        """`asked`: the named names and ids, and how often each occurs."""
        self._broker = broker
        self._mutations = mutations
        self._access = access
        self.asked = asked
        self._gone: frozenset[TopicId] = frozenset()

    async def made(self, part: Sequence[tuple[str | None, UUID]]) -> list[DeletableTopicResult]:
        """Delete the topics of a part; return the results."""
        results: list[DeletableTopicResult] = []
        records: list[TopicDeleted] = []

        def build(state: ClusterState) -> Sequence[Record]:
            nonlocal results, records
            results, records = self._planned(state, part)
            return records

        try:
            await change_metadata(self._broker, build)
        except ChangeFailed as error:
            named = (DeleteTopicState(name=name, topic_id=topic_id) for name, topic_id in part)
            return [_not_deleted(each, error) for each in named]
        self._gone |= {record.topic_id for record in records}
        return results

    def _planned(
        self, state: ClusterState, part: Sequence[tuple[str | None, UUID]]
    ) -> tuple[list[DeletableTopicResult], list[TopicDeleted]]:
        results = []
        records: list[TopicDeleted] = []
        gone = set(self._gone)
        for name, topic_id in part:
            try:
                if topic_id in gone:
                    raise _TWICE
                found_id, found_name = _topic_to_delete(state, name, topic_id)
                if not may_delete(self._access, found_name):
                    # The guard did not know the topic: another broker has just created it.
                    raise _FORBIDDEN
                if self.asked[name, topic_id] > 1 or found_id in gone:
                    raise _TWICE
                self._mutations.permit(found_id, state.topics[found_id].partition_count)
            except TopicRefused as error:
                results.append(_not_deleted(DeleteTopicState(name=name, topic_id=topic_id), error))
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
    broker: ClusterServices, request: CreatePartitionsRequest, context: RequestContext
) -> CreatePartitionsResponse:
    """Add partitions to each topic that can have them."""
    times = await broker.turns.counted(topic.name for topic in request.topics)
    state = broker.metadata.state
    more = (_additional(state, topic) for topic in request.topics)
    excess = _excess(broker, sum(await broker.turns.list_of(more, SLICE_TOPICS)))
    if excess is not None:
        return CreatePartitionsResponse(
            results=[_not_extended(broker, name, excess) for name in times]
        )
    results = [_not_extended(broker, name, _TWICE) for name, count in times.items() if count > 1]
    wanted = [topic for topic in request.topics if times[topic.name] == 1]
    mutations = Mutations(broker, context, EXTENSION_THROTTLED_FROM)
    async for part in broker.turns.over(_parts(wanted), 1):
        results += await _extended(broker, part, mutations, request.validate_only)
    return CreatePartitionsResponse(results=results, throttle_time_ms=mutations.throttle_ms)


def _additional(state: ClusterState, wanted: CreatePartitionsTopic) -> int:
    topic = state.topic_named(wanted.name)
    return 0 if topic is None else max(0, wanted.count - topic.partition_count)


async def _extended(
    broker: ClusterServices,
    topics: Sequence[CreatePartitionsTopic],
    mutations: Mutations,
    validate_only: bool,
) -> list[CreatePartitionsTopicResult]:
    results: list[CreatePartitionsTopicResult] = []

    def build(state: ClusterState) -> Sequence[Record]:
        nonlocal results
        results, records = _plan_partitions(broker, state, topics, mutations)
        return records

    if validate_only:
        build(broker.metadata.state)
        return results
    try:
        await change_metadata(broker, build)
    except ChangeFailed as error:
        for position, result in enumerate(results):
            if result.error_code == ErrorCode.NONE:
                results[position] = _not_extended(broker, result.name, error)
        return results or [_not_extended(broker, topic.name, error) for topic in topics]
    return results


def _plan_partitions(
    broker: ClusterServices,
    state: ClusterState,
    topics: Sequence[CreatePartitionsTopic],
    mutations: Mutations,
) -> tuple[list[CreatePartitionsTopicResult], list[Record]]:
    records: list[Record] = []
    try:
        placement = Placement(state)
    except NoLiveBroker as error:
        refused = TopicRefused(ErrorCode.INVALID_REPLICATION_FACTOR, str(error))
        return [_not_extended(broker, topic.name, refused) for topic in topics], []
    room = Room(state, broker.settings)
    results = []
    for topic in topics:
        try:
            room.check(0, _additional(state, topic))
            record = _plan_extension(state, placement, topic, mutations)
        except TopicRefused as error:
            results.append(_not_extended(broker, topic.name, error))
        else:
            room.take(0, len(record.owners))
            records.append(record)
            results.append(CreatePartitionsTopicResult(name=topic.name))
    return results, records


def _plan_extension(
    state: ClusterState,
    placement: Placement,
    wanted: CreatePartitionsTopic,
    mutations: Mutations,
) -> PartitionsCreated:
    topic = state.topic_named(wanted.name)
    if topic is None:
        raise TopicRefused(
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {wanted.name[:249]}"
        )
    if topic.internal:
        # The number of partitions determines a key's partition: with another, no key would be
        # found.
        raise TopicRefused(
            ErrorCode.INVALID_TOPIC_EXCEPTION,
            f"{topic.name} is an internal topic; its number of partitions stays",
        )
    additional = wanted.count - topic.partition_count
    if additional <= 0:
        raise TopicRefused(
            ErrorCode.INVALID_PARTITIONS,
            f"topic {topic.name} has {topic.partition_count} partitions; {wanted.count} would not "
            "be an increase: partitions are only added",
        )
    if wanted.count > PARTITIONS_PER_TOPIC_MAX:
        raise TopicRefused(
            ErrorCode.INVALID_PARTITIONS,
            f"{wanted.count} partitions: a topic may have at most {PARTITIONS_PER_TOPIC_MAX}",
        )
    if wanted.assignments is None:
        mutations.permit(topic.name, additional)
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
    mutations.permit(topic.name, additional)
    return PartitionsCreated(topic.topic_id, tuple(owners))


def _not_extended(
    broker: ClusterServices, name: str, error: TopicRefused | ChangeFailed
) -> CreatePartitionsTopicResult:
    _count_limit(broker, error)
    return CreatePartitionsTopicResult(name=name, error_code=error.code, error_message=str(error))
