"""ListOffsets (2), OffsetForLeaderEpoch (23) and DeleteRecords (21): positions in partitions."""

from __future__ import annotations

import asyncio

from tidelog.broker.handlers.request_context import RequestContext
from tidelog.broker.handlers.services import DataServices
from tidelog.broker.partitions.partitions import Partition, PartitionError
from tidelog.broker.read.fetcher import Isolation, epoch_error
from tidelog.broker.tables.tables import NoTable
from tidelog.broker.topics.topic_creation import INTERNAL_TOPICS
from tidelog.errors import TidelogError
from tidelog.identifiers import LeaderEpoch, Offset
from tidelog.protocol.error_codes import ErrorCode
from tidelog.protocol.schemas.cluster.topics import (
    DeleteRecordsPartition,
    DeleteRecordsPartitionResult,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopicResult,
)
from tidelog.protocol.schemas.offsets import (
    EpochEndOffset,
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopicResult,
)

LATEST = -1
EARLIEST = -2
MAX_TIMESTAMP = -3
EARLIEST_LOCAL = -4
LATEST_TIERED = -5
TO_HIGH_WATERMARK = -1
SLICE_NAMED = 512
SLICE_PARTITIONS = 64
"""Partitions that a slice looks up."""
KNOWN_FROM = {LATEST: 0, EARLIEST: 0, MAX_TIMESTAMP: 7, EARLIEST_LOCAL: 8, LATEST_TIERED: 9}
"""The version of ListOffsets that introduced each."""


async def list_offsets(
    broker: DataServices, request: ListOffsetsRequest, context: RequestContext
) -> ListOffsetsResponse:
    """Offsets by timestamp, or of the log's ends at the isolation level.

    As in Kafka, a partition named more than once is refused, and answered once.
    """
    isolation = Isolation(request.isolation_level != 0)
    places = ((topic.name, each) for topic in request.topics for each in topic.partitions)
    asked: dict[tuple[str, int], ListOffsetsPartition] = {}
    twice: set[tuple[str, int]] = set()
    async for name, partition in broker.turns.over(places, SLICE_NAMED):
        place = name, partition.partition_index
        if place in asked:
            twice.add(place)
        asked[place] = partition
    topics: dict[str, ListOffsetsTopicResponse] = {}
    async for (name, number), partition in broker.turns.over(asked.items(), SLICE_PARTITIONS):
        if (name, number) in twice:
            answer = ListOffsetsPartitionResponse(
                partition_index=number, error_code=ErrorCode.INVALID_REQUEST
            )
        else:
            answer = await _list_offset(broker, name, partition, isolation, context.api_version)
        if name not in topics:
            topics[name] = ListOffsetsTopicResponse(name=name)
        topics[name].partitions.append(answer)
    return ListOffsetsResponse(topics=list(topics.values()))


async def _list_offset(
    broker: DataServices,
    topic: str,
    asked: ListOffsetsPartition,
    isolation: Isolation,
    api_version: int,
) -> ListOffsetsPartitionResponse:
    answer = ListOffsetsPartitionResponse(partition_index=asked.partition_index)
    if asked.timestamp < 0 and api_version < KNOWN_FROM.get(asked.timestamp, api_version + 1):
        answer.error_code = ErrorCode.UNSUPPORTED_VERSION
        return answer
    try:
        partition = _readable(broker, topic, asked.partition_index)
        answer.error_code = epoch_error(asked.current_leader_epoch, partition.log.leader_epoch)
        if answer.error_code == ErrorCode.UNKNOWN_LEADER_EPOCH:
            broker.renewal.request()
        if answer.error_code == ErrorCode.NONE:
            await _look_up(broker, partition, asked.timestamp, isolation, answer)
    except PartitionError as error:
        answer.error_code = error.code
    except NoTable:
        # The topic was deleted during the look-up.
        answer.error_code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    except TidelogError as error:
        place = f"{topic}-{asked.partition_index}"
        broker.read_faults.met("offsets cannot be looked up", place, error)
        broker.metrics.storage_faults += 1
        answer.error_code = ErrorCode.KAFKA_STORAGE_ERROR
    return answer


async def _look_up(
    broker: DataServices,
    partition: Partition,
    timestamp: int,
    isolation: Isolation,
    answer: ListOffsetsPartitionResponse,
) -> None:
    log = partition.log
    committed = isolation is Isolation.READ_COMMITTED
    upper = log.last_stable_offset if committed else log.high_watermark
    if timestamp in (EARLIEST, EARLIEST_LOCAL):
        answer.offset = partition.first_offset
    elif timestamp == LATEST:
        answer.offset = upper
    elif timestamp == LATEST_TIERED:
        # No records are tiered in Kafka's sense: there is one store.
        answer.offset = -1
        return
    else:
        lookup = broker.offset_lookup
        if timestamp == MAX_TIMESTAMP:
            found = await lookup.of_maximum(partition, upper)
        else:
            found = await lookup.at_or_after(partition, timestamp, upper)
        if found is None:
            return
        answer.timestamp, answer.offset = found
    answer.leader_epoch = log.leader_epoch_of(answer.offset)


async def offset_for_leader_epoch(
    broker: DataServices, request: OffsetForLeaderEpochRequest, context: RequestContext
) -> OffsetForLeaderEpochResponse:
    """The end of a leader epoch, for clients that check for truncation (KIP-320)."""
    return OffsetForLeaderEpochResponse(
        topics=[
            OffsetForLeaderTopicResult(
                topic=topic.topic,
                partitions=[_epoch_end(broker, topic.topic, asked) for asked in topic.partitions],
            )
            for topic in request.topics
        ]
    )


def _epoch_end(broker: DataServices, topic: str, asked: OffsetForLeaderPartition) -> EpochEndOffset:
    answer = EpochEndOffset(partition=asked.partition)
    try:
        log = _readable(broker, topic, asked.partition).log
    except PartitionError as error:
        answer.error_code = error.code
        return answer
    answer.error_code = epoch_error(asked.current_leader_epoch, log.leader_epoch)
    if answer.error_code == ErrorCode.NONE:
        answer.leader_epoch, answer.end_offset = log.end_offset_for_epoch(
            LeaderEpoch(asked.leader_epoch)
        )
    return answer


def _readable(broker: DataServices, topic: str, number: int) -> Partition:
    """The partition, if this broker may answer reads now (B3). Raises PartitionError."""
    if not broker.may_serve_reads():
        raise PartitionError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "the broker's lease is not fresh")
    return broker.partitions.named(topic, number)


async def delete_records(
    broker: DataServices, request: DeleteRecordsRequest, context: RequestContext
) -> DeleteRecordsResponse:
    """Move log starts up; answered when durable."""
    topics = []
    for topic in request.topics:
        results = await asyncio.gather(
            *(
                _delete_records(broker, topic.name, asked, request.timeout_ms)
                for asked in topic.partitions
            )
        )
        topics.append(DeleteRecordsTopicResult(name=topic.name, partitions=results))
    return DeleteRecordsResponse(topics=topics)


async def _delete_records(
    broker: DataServices, topic: str, asked: DeleteRecordsPartition, timeout_ms: int
) -> DeleteRecordsPartitionResult:
    result = DeleteRecordsPartitionResult(partition_index=asked.partition_index, low_watermark=-1)
    try:
        partition = broker.partitions.named(topic, asked.partition_index)
        if topic in INTERNAL_TOPICS:
            result.error_code = ErrorCode.INVALID_TOPIC_EXCEPTION
            return result
        log = partition.log
        policies = broker.topic_config(log.partition.topic_id).items_of("cleanup.policy")
        if policies == ("compact",):
            # Readers of a compacted log rely on the latest record of each key.
            result.error_code = ErrorCode.POLICY_VIOLATION
            return result
        offset = log.high_watermark if asked.offset == TO_HIGH_WATERMARK else asked.offset
        if not 0 <= offset <= log.high_watermark:
            result.error_code = ErrorCode.OFFSET_OUT_OF_RANGE
            return result
        async with asyncio.timeout(max(timeout_ms, 1) / 1000):
            result.low_watermark = await broker.appender.delete_records(partition, Offset(offset))
    except PartitionError as error:
        result.error_code = error.code
    except TimeoutError:
        result.error_code = ErrorCode.REQUEST_TIMED_OUT
    except TidelogError:
        result.error_code = ErrorCode.NOT_LEADER_OR_FOLLOWER
    return result
