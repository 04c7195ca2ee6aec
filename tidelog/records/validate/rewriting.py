"""Rewrites valid batches into their topic's form: timestamps and codec."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from tidelog.records.batch import (
    COMPRESSION_MASK,
    HEADER_SIZE,
    LOG_APPEND_TIME_FLAG,
    BatchHeader,
    TimestampType,
    build_batch,
    restamp_timestamps,
)
from tidelog.records.buffers import Buffer
from tidelog.records.compression import Compression, compress, decompress
from tidelog.records.validate.rules import BatchInfo, BatchLimits, InvalidBatch
from tidelog.records.validate.validation import too_large, validate


class AcceptedBatches(NamedTuple):
    """Records of one partition in the form to be stored."""

    buffer: Buffer
    """The request's own buffer if no batch changed."""
    batches: list[BatchInfo]
    """Their positions are in that buffer; no batch needs another rewrite."""


def accept_batches(
    requests: Sequence[Buffer],
    limits: BatchLimits | Sequence[BatchLimits],
    now_ms: int,
    *,
    small_only: bool = False,
) -> list[AcceptedBatches | InvalidBatch]:
    """`validate` and, where needed, `rewrite`: the whole preparation for the append.

    As in Kafka, a batch that the topic's codec makes larger than `max.message.bytes` is refused.
    """
    each = [limits] * len(requests) if isinstance(limits, BatchLimits) else limits
    verdicts = validate(requests, each, now_ms, small_only=small_only)
    return [
        verdict if isinstance(verdict, InvalidBatch) else _finish(request, verdict, rules)
        for request, verdict, rules in zip(requests, verdicts, each, strict=True)
    ]


def _finish(
    request: Buffer, batches: list[BatchInfo], limits: BatchLimits
) -> AcceptedBatches | InvalidBatch:
    # A list, not a generator: thousands of requests a second have mostly one batch.
    if not [True for batch in batches if batch.needs_rewrite]:
        return AcceptedBatches(request, batches)
    joined = bytearray()
    placed: list[BatchInfo] = []
    for batch in batches:
        rewritten, info = rewrite(request, batch, limits)
        if info.length > limits.batch_bytes_max:
            return too_large(info.length, limits)
        placed.append(info._replace(position=len(joined)))
        joined = rewritten if not joined else joined + rewritten
    return AcceptedBatches(joined, placed)


def rewrite(buffer: Buffer, info: BatchInfo, limits: BatchLimits) -> tuple[bytearray, BatchInfo]:
    """The valid batch as its topic stores it, and its new description at position 0.

    Timestamp type and maximum come from `info`. The codec becomes `limits.compression` unless that
    is None.
    """
    start, end = info.position, info.position + info.length
    codec = info.codec if limits.compression is None else limits.compression
    if codec is info.codec:
        batch = bytearray(memoryview(buffer)[start:end])
        restamp_timestamps(batch, 0, info.timestamp_type, info.max_timestamp)
    else:
        batch = _recompress(memoryview(buffer)[start:end], info, codec, limits)
    return batch, info._replace(position=0, length=len(batch), codec=codec, needs_rewrite=False)


def _recompress(
    batch: memoryview, info: BatchInfo, codec: Compression, limits: BatchLimits
) -> bytearray:
    header = BatchHeader.parse(batch)
    records = decompress(info.codec, batch[HEADER_SIZE:], limits.decompressed_bytes_max)
    attributes = header.attributes & ~(COMPRESSION_MASK | LOG_APPEND_TIME_FLAG) | codec
    if info.timestamp_type is TimestampType.LOG_APPEND_TIME:
        attributes |= LOG_APPEND_TIME_FLAG
    return build_batch(
        compress(codec, records, limits.compression_level),
        attributes=attributes,
        last_offset_delta=header.last_offset_delta,
        base_timestamp=header.base_timestamp,
        max_timestamp=info.max_timestamp,
        record_count=header.record_count,
        base_offset=header.base_offset,
        leader_epoch=header.leader_epoch,
        producer_id=header.producer_id,
        producer_epoch=header.producer_epoch,
        base_sequence=header.base_sequence,
    )
