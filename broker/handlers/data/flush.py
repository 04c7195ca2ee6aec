"""FlushTopics (20000), Tidelog's own: answered when the tables have what is decided."""

from __future__ import annotations

import asyncio
from typing import NamedTuple

from tidelog.broker.handlers.request_context import RequestContext
from tidelog.broker.handlers.services import DataServices
from tidelog.broker.partitions.partitions import Partition, PartitionError
from tidelog.errors import TidelogError
from tidelog.protocol.error_codes import ErrorCode
from tidelog.protocol.schemas.flush import (
    FlushPartitionResult,
    FlushTopicResult,
    FlushTopicsRequest,
    FlushTopicsResponse,
)

SLICE_PARTITIONS = 64


class _Begun(NamedTuple):
    """A partition whose roll was asked for."""

    partition: Partition
    result: FlushPartitionResult
    done: asyncio.Future[None]


async def flush_topics(
    broker: DataServices, request: FlushTopicsRequest, context: RequestContext
) -> FlushTopicsResponse:
    """All that is decided now is rolled; where an open transaction holds more back, the answer
    says at which offset."""
    begun: list[_Begun] = []
    topics = [FlushTopicResult(name=topic.name) for topic in request.topics]
    wanted = (
        (result, number)
        for result, topic in zip(topics, request.topics, strict=True)
        for number in topic.partitions
    )
    async for result, number in broker.turns.over(wanted, SLICE_PARTITIONS):
        result.partitions.append(_begin(broker, result.name, number, begun))
    if begun:
        await asyncio.wait([each.done for each in begun], timeout=max(request.timeout_ms, 0) / 1000)
    async for each in broker.turns.over(begun, SLICE_PARTITIONS):
        _conclude(broker, each)
    return FlushTopicsResponse(topics=topics)


def _begin(
    broker: DataServices, topic: str, number: int, begun: list[_Begun]
) -> FlushPartitionResult:
    result = FlushPartitionResult(partition_index=number)
    try:
        # A successor may have acknowledged more, and that would not be in the table (B3).
        if not broker.may_serve_reads():
            raise PartitionError(
                ErrorCode.NOT_LEADER_OR_FOLLOWER, "the broker's lease is not fresh"
            )
        partition = broker.partitions.named(topic, number)
        if partition.is_internal:
            raise PartitionError(
                ErrorCode.INVALID_TOPIC_EXCEPTION, f"the records of {topic} are kept in no table"
            )
    except PartitionError as error:
        result.error_code, result.error_message = error.code, str(error)
        return result
    log = partition.log
    result.high_watermark, stable = log.high_watermark, log.last_stable_offset
    if stable < log.high_watermark:
        result.held_at_offset = stable
        # The log may begin behind the transaction's first offset.
        result.held_by_producer_id = next(
            (
                each.producer_id
                for each in log.producers
                if each.has_open_transaction and each.transaction_first_offset <= stable
            ),
            -1,
        )
    begun.append(_Begun(partition, result, broker.roller.flush(partition)))
    return result


def _conclude(broker: DataServices, begun: _Begun) -> None:
    partition, result, done = begun
    result.table_next_offset = partition.log.table_next
    if not done.done():
        # Nobody waits for it any more; the roll goes on.
        done.cancel()
        hindrance = broker.roller.hindrance(partition)
        result.error_code = ErrorCode.REQUEST_TIMED_OUT
        result.error_message = "it takes longer" if hindrance is None else str(hindrance)
        return
    error = done.exception()
    if isinstance(error, PartitionError):
        result.error_code, result.error_message = error.code, str(error)
    elif isinstance(error, TidelogError):
        result.error_code, result.error_message = ErrorCode.KAFKA_STORAGE_ERROR, str(error)
    elif error is not None:
        raise error
