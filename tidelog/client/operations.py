"""Produce, fetch, list offsets and init producer id: one request each, without retries.

If a refusal shows that the request went to the wrong broker, the client drops the topic's metadata.
A second call then finds the leader.
"""

from __future__ import annotations

import enum
from typing import NamedTuple

from tidelog.client.errors import ReadRefused, RequestRefused
from tidelog.client.pool import Client, CoordinatorKind
from tidelog.protocol.error_codes import ErrorCode
from tidelog.protocol.schemas.fetch import (
    AbortedTransaction,
    FetchPartition,
    FetchRequest,
    FetchTopic,
)
from tidelog.protocol.schemas.offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from tidelog.protocol.schemas.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from tidelog.protocol.schemas.transactions import InitProducerIdRequest
from tidelog.protocol.wire import Buffer

ACKS_ALL = -1
ACKS_NONE = 0

LATEST = -1
"""In place of a timestamp: the high watermark, or the last stable offset."""
EARLIEST = -2
"""In place of a timestamp: the log start."""
MAX_TIMESTAMP = -3
"""In place of a timestamp: the record with the largest one."""

_ASKED_THE_WRONG_BROKER = frozenset(
    {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.INCONSISTENT_TOPIC_ID,
    }
)


class IsolationLevel(enum.IntEnum):
    READ_UNCOMMITTED = 0
    READ_COMMITTED = 1


class Fetched(NamedTuple):
    """The record batches of a fetch, and the partition's offsets.

    The first batch may begin below the requested offset; the last one may be cut. The reader must
    leave out the records of the aborted transactions.
    """

    records: list[Buffer]
    high_watermark: int
    last_stable_offset: int
    log_start_offset: int
    aborted: list[AbortedTransaction]


class FoundOffset(NamedTuple):
    """An offset (-1: none), its record's timestamp and the leader epoch (-1 if unknown)."""

    offset: int
    timestamp_ms: int
    leader_epoch: int


class ProducerIdentity(NamedTuple):
    """An idempotent producer's id and epoch."""

    producer_id: int
    producer_epoch: int


async def produce(
    client: Client,
    topic: str,
    partition: int,
    batches: Buffer,
    *,
    acks: int = ACKS_ALL,
    transactional_id: str | None = None,
    timeout_ms: int | None = None,
) -> int:
    """Append record batches; returns the offset of the first record.

    With acks 0 the broker does not answer, and the offset is -1.

    Raises:
        RequestRefused: `outcome` tells whether the broker may have appended them.
        RequestFailed: `outcome` likewise.
    """
    found = await client.topic(topic)
    data = PartitionProduceData(index=partition, records=batches)
    request = ProduceRequest(
        transactional_id=transactional_id,
        acks=acks,
        timeout_ms=client.settings.request_timeout_ms if timeout_ms is None else timeout_ms,
        topic_data=[TopicProduceData(name=topic, topic_id=found.topic_id, partition_data=[data])],
    )
    if acks == ACKS_NONE:
        connection = await client.leader_connection(topic, partition)
        await connection.send(request, timeout_ms=timeout_ms)
        return -1
    response = await client.request_to_leader(topic, partition, request, timeout_ms)
    subject = f"produce to {topic}-{partition}"
    for result in (p for t in response.responses for p in t.partition_responses):
        _check(client, topic, subject, result.error_code, result.error_message)
        return result.base_offset
    raise RequestRefused(subject, ErrorCode.UNKNOWN_SERVER_ERROR, "the answer is empty")


async def fetch(
    client: Client,
    topic: str,
    partition: int,
    offset: int,
    *,
    max_bytes: int = 1024 * 1024,
    min_bytes: int = 1,
    max_wait_ms: int = 500,
    isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED,
) -> Fetched:
    """Fetch record batches from `offset` on, waiting up to `max_wait_ms` for `min_bytes`.

    Raises:
        RequestRefused: among others OFFSET_OUT_OF_RANGE.
        RequestFailed: no answer.
    """
    found = await client.topic(topic)
    wanted = FetchPartition(partition=partition, fetch_offset=offset, partition_max_bytes=max_bytes)
    request = FetchRequest(
        max_wait_ms=max_wait_ms,
        min_bytes=min_bytes,
        max_bytes=max_bytes,
        isolation_level=int(isolation),
        topics=[FetchTopic(topic=topic, topic_id=found.topic_id, partitions=[wanted])],
    )
    timeout_ms = client.settings.request_timeout_ms + max_wait_ms
    response = await client.request_to_leader(topic, partition, request, timeout_ms)
    subject = f"fetch from {topic}-{partition} at {offset}"
    _check(client, topic, subject, response.error_code, refused=ReadRefused)
    for result in (p for t in response.responses for p in t.partitions):
        _check(client, topic, subject, result.error_code, refused=ReadRefused)
        records = result.records
        assert not isinstance(records, list), "decoded records are one view"
        return Fetched(
            records=[records] if records else [],
            high_watermark=result.high_watermark,
            last_stable_offset=result.last_stable_offset,
            log_start_offset=result.log_start_offset,
            aborted=result.aborted_transactions or [],
        )
    raise RequestRefused(subject, ErrorCode.UNKNOWN_SERVER_ERROR, "the answer is empty")


async def list_offsets(
    client: Client,
    topic: str,
    partition: int,
    timestamp_ms: int,
    isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED,
) -> FoundOffset:
    """The first offset at or after a timestamp, or the one that LATEST, EARLIEST or MAX_TIMESTAMP
    name.

    Raises:
        RequestRefused, RequestFailed: no answer.
    """
    wanted = ListOffsetsPartition(partition_index=partition, timestamp=timestamp_ms)
    request = ListOffsetsRequest(
        replica_id=-1,
        isolation_level=int(isolation),
        topics=[ListOffsetsTopic(name=topic, partitions=[wanted])],
        timeout_ms=client.settings.request_timeout_ms,
    )
    response = await client.request_to_leader(topic, partition, request)
    subject = f"offsets of {topic}-{partition}"
    for result in (p for t in response.topics for p in t.partitions):
        _check(client, topic, subject, result.error_code, refused=ReadRefused)
        return FoundOffset(result.offset, result.timestamp, result.leader_epoch)
    raise RequestRefused(subject, ErrorCode.UNKNOWN_SERVER_ERROR, "the answer is empty")


async def init_producer_id(
    client: Client,
    transactional_id: str | None = None,
    *,
    transaction_timeout_ms: int = 60_000,
    current: ProducerIdentity | None = None,
) -> ProducerIdentity:
    """A producer id and epoch: new ones, or those of a transactional id.

    Earlier instances of the transactional id are fenced. `current` asks for the next epoch
    (KIP-360).

    Raises:
        RequestRefused, RequestFailed: no identity. A retry is safe.
    """
    producer_id, producer_epoch = current if current is not None else (-1, -1)
    request = InitProducerIdRequest(
        transactional_id=transactional_id,
        transaction_timeout_ms=transaction_timeout_ms,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
    )
    if transactional_id is None:
        response = await client.request_any(request)
    else:
        kind = CoordinatorKind.TRANSACTION
        response = await client.request_to_coordinator(kind, transactional_id, request)
    if response.error_code != ErrorCode.NONE:
        subject = f"identity of {transactional_id or 'a producer'}"
        raise RequestRefused(subject, response.error_code)
    return ProducerIdentity(response.producer_id, response.producer_epoch)


def _check(
    client: Client,
    topic: str,
    subject: str,
    code: int,
    message: str | None = None,
    refused: type[RequestRefused] = RequestRefused,
) -> None:
    """Raise an error code's refusal; drop the topic's metadata if the leader was wrong."""
    if code == ErrorCode.NONE:
        return
    if code in _ASKED_THE_WRONG_BROKER:
        client.forget(topic)
    raise refused(subject, code, message)
