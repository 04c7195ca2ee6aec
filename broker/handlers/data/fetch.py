"""Fetch (1): record batches for consumers, with long polls and fetch sessions."""

from __future__ import annotations

from collections.abc import Generator, Iterable

from tidelog.broker.authorization.access import Access
from tidelog.broker.handlers.request_context import RequestContext
from tidelog.broker.handlers.services import DataServices
from tidelog.broker.partitions.partitions import Partition, PartitionError, PartitionRegistry
from tidelog.broker.read.fetch_session import (
    FetchPlan,
    FetchSessionError,
    FetchTarget,
    InvalidSessionEpoch,
    PartitionKey,
    SessionNotFound,
    TopicKey,
)
from tidelog.broker.read.fetcher import FetchLimits, Isolation, PartitionRead
from tidelog.broker.telemetry.zones import Crossing, crossing
from tidelog.coordinator.cluster.state.incarnations import BrokerInfo
from tidelog.protocol.error_codes import ErrorCode
from tidelog.protocol.schemas.fetch import (
    AbortedTransaction,
    FetchablePartitionResponse,
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    LeaderIdAndEpoch,
    NodeEndpoint,
)
from tidelog.protocol.wire import STEP_ELEMENTS
from tidelog.security.acl_codes import AclOperation, ResourceType

API_NAME = "Fetch"
TOPIC_IDS_FROM = 13
_ASKED_WRONG_BROKER = (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH)


async def fetch(
    broker: DataServices, request: FetchRequest, context: RequestContext
) -> FetchResponse:
    """Read the requested partitions, at most `fetch.max.bytes`, within the client's wait time."""
    by_id = context.api_version >= TOPIC_IDS_FROM
    through = broker.turns.through
    targets = await through(_targets(request, by_id))
    try:
        plan = broker.fetch_sessions.plan(
            request.session_id,
            request.session_epoch,
            targets,
            _forgotten(request, by_id),
            by_id=by_id,
            now=broker.clock.monotonic(),
        )
    except FetchSessionError as error:
        return FetchResponse(error_code=_session_code(error))

    access = context.access

    def find(target: FetchTarget) -> Partition:
        topic, number = target.key
        if access is not None:
            _check_readable(broker, access, topic)
        if isinstance(topic, str):
            return broker.partitions.named(topic, number)
        return broker.partitions.identified(topic, number)

    bytes_max = min(request.max_bytes, broker.settings.integer("fetch.max.bytes"))
    quotas, client = broker.quotas, (context.principal.name, context.client_id)
    if quotas.active:
        bytes_max = min(bytes_max, quotas.of(*client).fetch_bytes_max)
    limits = FetchLimits(request.min_bytes, bytes_max, request.max_wait_ms)
    isolation = Isolation(request.isolation_level != 0)
    reads = await broker.fetcher.fetch(plan.targets, find, isolation, limits)
    throttle_ms = 0
    if quotas.active:
        size = sum(read.found.size_bytes for read in reads)
        throttle_ms, is_given = quotas.of(*client).fetch_ms(size, broker.clock.monotonic())
        if not is_given:
            # The client asks for the same again: nothing of this answer counts as told.
            session_id = broker.fetch_sessions.throttled(plan)
            return FetchResponse(session_id=session_id, throttle_time_ms=throttle_ms)
    _note(broker, reads, crossing(broker.rack, context.client_id, request.rack_id))
    leaders: dict[int, BrokerInfo] = {}
    return FetchResponse(
        throttle_time_ms=throttle_ms,
        session_id=plan.session_id,
        responses=await through(_responses(plan, reads, broker.partitions, leaders)),
        node_endpoints=[
            NodeEndpoint(
                node_id=leader_id, host=endpoint.host, port=endpoint.port, rack=leader.rack
            )
            for leader_id, leader in leaders.items()
            if (endpoint := leader.endpoint(context.listener)) is not None
        ],
    )


def _check_readable(broker: DataServices, access: Access, topic: TopicKey) -> None:
    """Raise PartitionError if the client may not read the topic.

    A waiting fetch asks again when it is answered, so changed rules hold for it too.
    """
    name = topic if isinstance(topic, str) else broker.partitions.topic_name(topic)
    if name is None or access.may(AclOperation.READ, ResourceType.TOPIC, name):
        return
    raise PartitionError(ErrorCode.TOPIC_AUTHORIZATION_FAILED, "the client may not read the topic")


def _note(broker: DataServices, reads: Iterable[PartitionRead], zone: Crossing) -> None:
    """Count the reads. Request a renewal of the view where a client knows a later leader epoch."""
    metrics = broker.metrics
    of_zone = metrics.fetched_zone_bytes.of(zone)
    for read in reads:
        metrics.fetched_bytes += read.found.size_bytes
        of_zone.value += read.found.size_bytes
        if read.code is ErrorCode.UNKNOWN_LEADER_EPOCH:
            broker.renewal.request()
        if read.code is not ErrorCode.NONE:
            metrics.api(API_NAME).errors.of(read.code.name).value += 1
            metrics.storage_faults += read.code is ErrorCode.KAFKA_STORAGE_ERROR


def _targets(request: FetchRequest, by_id: bool) -> Generator[None, None, list[FetchTarget]]:
    """The requested partitions, in steps. As in Kafka, the last entry of a partition counts."""
    targets: dict[PartitionKey, FetchTarget] = {}
    left = STEP_ELEMENTS
    for topic in request.topics:
        name = topic.topic_id if by_id else topic.topic
        for partition in topic.partitions:
            key = name, partition.partition
            targets[key] = FetchTarget(
                key,
                partition.fetch_offset,
                partition.partition_max_bytes,
                partition.current_leader_epoch,
                partition.last_fetched_epoch,
            )
            left -= 1
            if not left:
                left = STEP_ELEMENTS
                yield
    return list(targets.values())


def _forgotten(request: FetchRequest, by_id: bool) -> list[PartitionKey]:
    return [
        (topic.topic_id if by_id else topic.topic, number)
        for topic in request.forgotten_topics_data
        for number in topic.partitions
    ]


def _session_code(error: FetchSessionError) -> ErrorCode:
    if isinstance(error, SessionNotFound):
        return ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    if isinstance(error, InvalidSessionEpoch):
        return ErrorCode.INVALID_FETCH_SESSION_EPOCH
    return ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR


def _responses(
    plan: FetchPlan,
    reads: Iterable[PartitionRead],
    partitions: PartitionRegistry,
    leaders: dict[int, BrokerInfo],
) -> Generator[None, None, list[FetchableTopicResponse]]:
    """The answer's topics, in steps. Adds the brokers that it names as leaders to `leaders`."""
    topics: dict[TopicKey, FetchableTopicResponse] = {}
    served = []
    for number, read in enumerate(reads, 1):
        if number % STEP_ELEMENTS == 0:
            yield
        target = read.target
        has_records = read.found.size_bytes > 0
        if plan.session is not None:
            news = target.update_if_changed(
                records=has_records,
                error=read.code is not ErrorCode.NONE,
                high_watermark=read.high_watermark,
                log_start=read.log_start,
            )
            if plan.incremental and not news:
                continue
            if has_records:
                served.append(target.key)
        key, _ = target.key
        topic = topics.get(key)
        if topic is None:
            topic = FetchableTopicResponse()
            if isinstance(key, str):
                topic.topic = key
            else:
                topic.topic_id = key
            topics[key] = topic
        answer = _partition_response(read)
        if read.code in _ASKED_WRONG_BROKER:
            found = partitions.leader_elsewhere(*target.key)
            if found is not None:
                leader, epoch = found
                leaders[leader.broker_id] = leader
                answer.current_leader = LeaderIdAndEpoch(
                    leader_id=leader.broker_id, leader_epoch=epoch
                )
        topic.partitions.append(answer)
    if plan.session is not None:
        plan.session.serve_last(served)
    return list(topics.values())


def _partition_response(read: PartitionRead) -> FetchablePartitionResponse:
    aborted = None
    if read.aborted is not None:
        aborted = [
            AbortedTransaction(producer_id=each.producer_id, first_offset=each.first_offset)
            for each in read.aborted
        ]
    return FetchablePartitionResponse(
        partition_index=read.target.key[1],
        error_code=read.code,
        high_watermark=read.high_watermark,
        last_stable_offset=read.last_stable_offset,
        log_start_offset=read.log_start,
        aborted_transactions=aborted,
        records=read.found.buffers,
    )
