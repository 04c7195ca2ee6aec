"""FlushTopics (20000), Tidelog's own: answered when the tables have all decided records."""

from __future__ import annotations

import asyncio
from typing import NamedTuple

from tidelog.broker.handlers.request_context import RequestContext
from tidelog.broker.handlers.services import DataServices
from tidelog.broker.partitions.partitions import Partition, PartitionError
from tidelog.errors import TidelogError
from tidelog.protocol.error_codes import ErrorCode
from tidelog.protocol.schemas.own.flush import (
    FlushPartitionResult,
    FlushTopicResult,
    FlushTopicsRequest,
    FlushTopicsResponse,
)

SLICE_PARTITIONS = 64


class _Begun(NamedTuple):
    """A partition with a requested roll."""

    partition: Partition
    result: FlushPartitionResult
    done: asyncio.Future[None]


async def flush_topics(
    broker: DataServices, request: FlushTopicsRequest, context: RequestContext
) -> FlushTopicsResponse:
    """Roll every record that is decided now.

    If an open transaction holds back more, the answer has its offset.
    """
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
        # A successor may have acknowledged records that this table would lack (B3).
        if not broker.may_serve_reads():
            raise PartitionError(
                ErrorCode.NOT_LEADER_OR_FOLLOWER, "the broker's lease is not fresh"
            )
        partition = broker.partitions.named(topic, number)
        if partition.is_internal:
            raise PartitionError(
                ErrorCode.INVALID_TOPIC_EXCEPTION, f"{topic} is an internal topic and has no table"
            )
    except PartitionError as error:
        result.error_code, result.error_message = error.code, str(error)
        return result
    log = partition.log
    result.high_watermark, stable = log.high_watermark, log.last_stable_offset
    if stable < log.high_watermark:
        result.held_at_offset = stable
        # The log may begin after the transaction's first offset.
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
        # This request no longer waits for it; the roll continues.
        done.cancel()
        failure = broker.roller.failure_of(partition)
        result.error_code = ErrorCode.REQUEST_TIMED_OUT
        result.error_message = "the roll takes longer" if failure is None else str(failure)
        return
    error = done.exception()
    if isinstance(error, PartitionError):
        result.error_code, result.error_message = error.code, str(error)
    elif isinstance(error, TidelogError):
        result.error_code, result.error_message = ErrorCode.KAFKA_STORAGE_ERROR, str(error)
    elif error is not None:
        raise error
