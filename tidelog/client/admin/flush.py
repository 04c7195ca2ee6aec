"""Flushes a topic's decided records into its table."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from tidelog.client.errors import RequestRefused
from tidelog.client.pool import Client
from tidelog.protocol.error_codes import ErrorCode
from tidelog.protocol.schemas.own.flush import FlushPartitionResult, FlushTopic, FlushTopicsRequest

ANSWER_MARGIN_MS = 5000
"""The client waits this much longer than the broker."""


@dataclass(frozen=True, slots=True)
class FlushedPartition:
    """The result of a flush for one partition.

    `held_at` is the start of the open transaction that holds back later records, or None. `refusal`
    is the reason why the table lacks some decided records, or None.
    """

    partition: int
    table_next: int
    high_watermark: int
    held_at: int | None
    held_by: int | None
    """The producer id of that transaction."""
    refusal: RequestRefused | None


async def flush_topic(client: Client, topic: str, timeout_ms: int) -> list[FlushedPartition]:
    """Flush all records that are decided now into the table; returns the result of each partition.

    Raises:
        RequestRefused: the topic does not exist.
        RequestFailed: a partition has no leader, or a leader did not answer. A retry is safe.
    """
    found = await client.topic(topic)
    by_leader: dict[int, list[int]] = defaultdict(list)
    for number, partition in found.partitions.items():
        by_leader[partition.leader_id].append(number)

    async def ask(leader: int, numbers: Sequence[int]) -> list[FlushPartitionResult]:
        request = FlushTopicsRequest(
            timeout_ms=timeout_ms, topics=[FlushTopic(name=topic, partitions=list(numbers))]
        )
        response = await client.request_broker(leader, request, timeout_ms + ANSWER_MARGIN_MS)
        return [each for result in response.topics for each in result.partitions]

    answers = await asyncio.gather(*(ask(*each) for each in by_leader.items()))
    results = [_flushed(topic, each) for answer in answers for each in answer]
    if any(result.refusal is not None for result in results):
        client.forget(topic)
    return sorted(results, key=lambda result: result.partition)


def _flushed(topic: str, result: FlushPartitionResult) -> FlushedPartition:
    refusal = None
    if result.error_code != ErrorCode.NONE:
        subject = f"flush of {topic}-{result.partition_index}"
        refusal = RequestRefused(subject, result.error_code, result.error_message)
    return FlushedPartition(
        partition=result.partition_index,
        table_next=result.table_next_offset,
        high_watermark=result.high_watermark,
        held_at=None if result.held_at_offset < 0 else result.held_at_offset,
        held_by=None if result.held_by_producer_id < 0 else result.held_by_producer_id,
        refusal=refusal,
    )
