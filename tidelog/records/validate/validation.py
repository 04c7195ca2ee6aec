"""Validates produced record batches, and brings them into the form of their topic, before offsets
are assigned.

Every client must be able to read an acknowledged record for ever, also as a table row. So every
record is checked, compressed ones after a bounded decompression. Kafka's checks give Kafka's
errors.

Tidelog refuses more than Kafka, which stores records that some readers or tables cannot keep:

- offset deltas that are not consecutive;
- record attributes, unknown batch attributes and bits beyond a number's width that are not zero;
- lengths below -1, and bytes after the batch;
- header keys that are not UTF-8, and more than RECORD_HEADERS_MAX headers a record;
- timestamps that microseconds cannot hold.

Like Kafka, it accepts a batch whose header has a wrong maximum timestamp: librdkafka (which starts
from 0) and KafkaJS send some. Its `BatchInfo` has the true maximum and `needs_rewrite`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from tidelog.named_tuples import new_tuple
from tidelog.records.batch import (
    COMPRESSION_MASK,
    CONTROL_FLAG,
    HEADER_SIZE,
    LOG_APPEND_TIME_FLAG,
    MAGIC,
    NO_PRODUCER_ID,
    TRANSACTIONAL_FLAG,
    BatchHeader,
    MalformedBatch,
    TimestampType,
    build_batch,
    checksum,
    restamp_timestamps,
)
from tidelog.records.buffers import Buffer
from tidelog.records.compression import (
    Compression,
    CorruptCompression,
    DecompressedTooLarge,
    compress,
    decompress,
)
from tidelog.records.validate.examination import BatchSurvey, Section, examine
from tidelog.records.validate.rules import (
    SMALL_BYTES,
    SMALL_RATIO,
    BatchErrorCode,
    BatchInfo,
    BatchLimits,
    InvalidBatch,
    LargeBatch,
    RecordError,
)

__all__ = [
    "AcceptedBatches",
    "BatchErrorCode",
    "BatchInfo",
    "BatchLimits",
    "InvalidBatch",
    "RecordError",
    "accept_batches",
    "rewrite",
    "validate",
]

_GROUP_BYTES_MAX = 4 * 1024 * 1024
_GROUP_RECORDS_MAX = 1 << 16
_MAGIC_POSITION = 16
_CODECS = tuple(Compression)


def validate(
    requests: Sequence[Buffer],
    limits: BatchLimits | Sequence[BatchLimits],
    now_ms: int,
    *,
    small_only: bool = False,
) -> list[list[BatchInfo] | InvalidBatch]:
    """For each request's records of one partition: its batches, or the refusal.

    `limits` apply to all requests, or one to each. `now_ms` bounds the timestamps and is the log
    append time. The function is pure and thread-safe and leaves the requests unchanged. Validating
    many requests together is far cheaper than one by one. It decompresses some 4 MiB at a time, or
    one batch. With `small_only`, a request with a large batch gets LargeBatch.
    """
    each = [limits] * len(requests) if isinstance(limits, BatchLimits) else limits
    verdicts: list[list[BatchInfo] | InvalidBatch] = []
    group: list[_PendingBatch] = []
    size = records = 0
    for request, rules in zip(requests, each, strict=True):
        batches = _read_batches(request, rules)
        if isinstance(batches, InvalidBatch):
            verdicts.append(batches)
            continue
        verdicts.append([])
        for position, header in batches:
            section = _open(request, position, header, rules, small_only=small_only)
            if isinstance(section, InvalidBatch):
                verdicts[-1] = section
                break
            group.append(new_tuple(_PendingBatch, (len(verdicts) - 1, position, header, section)))
            size += section.end - section.start
            records += section.record_count
            if size > _GROUP_BYTES_MAX or records > _GROUP_RECORDS_MAX:
                _settle(group, verdicts, now_ms)
                group, size, records = [], 0, 0
    _settle(group, verdicts, now_ms)
    return verdicts


class _PendingBatch(NamedTuple):
    """A batch whose records are examined together with those of others."""

    verdict: int
    position: int
    header: BatchHeader
    section: Section


def _settle(
    group: list[_PendingBatch], verdicts: list[list[BatchInfo] | InvalidBatch], now_ms: int
) -> None:
    surveys = examine([entry.section for entry in group], now_ms)
    for entry, survey in zip(group, surveys, strict=True):
        batches = verdicts[entry.verdict]
        if isinstance(batches, InvalidBatch):
            continue
        if isinstance(survey, InvalidBatch):
            verdicts[entry.verdict] = survey
        else:
            batches.append(_describe(entry, survey, now_ms))


def _describe(entry: _PendingBatch, survey: BatchSurvey, now_ms: int) -> BatchInfo:
    header, limits = entry.header, entry.section.limits
    codec = _CODECS[header.attributes & COMPRESSION_MASK]
    first, greatest, greatest_index = survey
    if limits.timestamp_type is TimestampType.LOG_APPEND_TIME:
        first = greatest = now_ms
        greatest_index = 0
    needs_rewrite = (
        limits.timestamp_type is TimestampType.LOG_APPEND_TIME
        or greatest != header.max_timestamp
        or (limits.compression is not None and limits.compression is not codec)
    )
    return new_tuple(
        BatchInfo,
        (
            entry.position,
            header.size_bytes,
            header,
            codec,
            limits.timestamp_type,
            first,
            greatest,
            greatest_index,
            needs_rewrite,
        ),
    )


def _read_batches(
    request: Buffer, limits: BatchLimits
) -> list[tuple[int, BatchHeader]] | InvalidBatch:
    """The batches of a request, after checks of their headers and checksums."""
    batches: list[tuple[int, BatchHeader]] = []
    position, end = 0, len(request)
    while position < end or not batches:
        if len(batches) == limits.batches_max:
            return _invalid(f"more than {limits.batches_max} record batches for one partition")
        if end - position < HEADER_SIZE:
            return _invalid(f"{end - position} bytes are no record batch")
        try:
            header = BatchHeader.parse(request, position)
        except MalformedBatch as error:
            if request[position + _MAGIC_POSITION] != MAGIC:
                return _invalid(str(error))
            return InvalidBatch(BatchErrorCode.CORRUPT_MESSAGE, str(error))
        size_bytes = header.size_bytes
        following = position + size_bytes
        if following > end:
            return _invalid(f"a batch of {size_bytes} bytes is cut off")
        if size_bytes > limits.batch_bytes_max:
            return _too_large(size_bytes, limits)
        if checksum(request, position, following) != header.crc:
            message = f"the record batch does not match its checksum {header.crc}"
            return InvalidBatch(BatchErrorCode.CORRUPT_MESSAGE, message)
        refusal = _check_header(header, limits)
        if refusal is not None:
            return refusal
        batches.append((position, header))
        position = following
    return batches


def _check_header(header: BatchHeader, limits: BatchLimits) -> InvalidBatch | None:
    attributes, count = header.attributes, header.record_count
    if attributes & ~(COMPRESSION_MASK | TRANSACTIONAL_FLAG):
        if attributes & CONTROL_FLAG:
            return _invalid("clients must not write control records")
        if attributes & LOG_APPEND_TIME_FLAG:
            message = "producers must not set the timestamp type to LogAppendTime"
            return InvalidBatch(BatchErrorCode.INVALID_TIMESTAMP, message)
        return _invalid(f"batch attributes {attributes:#x} have bits that producers must not set")
    codec = attributes & COMPRESSION_MASK
    if codec > Compression.ZSTD or (codec == Compression.ZSTD and not limits.zstd_allowed):
        message = f"compression codec {codec} is not supported in this version of Produce"
        return InvalidBatch(BatchErrorCode.UNSUPPORTED_COMPRESSION_TYPE, message)
    if header.base_offset:
        return _invalid(f"the base offset should be 0, not {header.base_offset}")
    if count < 1 or header.last_offset_delta != count - 1:
        return _invalid(f"{count} records with a last offset delta of {header.last_offset_delta}")
    if header.producer_id > NO_PRODUCER_ID:
        if header.base_sequence < 0 or header.producer_epoch < 0:
            return _invalid(
                f"sequence {header.base_sequence} and epoch {header.producer_epoch}"
                f" with producer id {header.producer_id}"
            )
    elif header.producer_id < NO_PRODUCER_ID or attributes & TRANSACTIONAL_FLAG:
        return _invalid(f"producer id {header.producer_id} with attributes {attributes:#x}")
    return None


def _open(
    request: Buffer, position: int, header: BatchHeader, limits: BatchLimits, *, small_only: bool
) -> Section | InvalidBatch:
    """The batch's records, decompressed."""
    start, end = position + HEADER_SIZE, position + header.size_bytes
    buffer = request
    codec = _CODECS[header.attributes & COMPRESSION_MASK]
    if codec is not Compression.NONE:
        small_max = SMALL_BYTES + SMALL_RATIO * (end - start)
        postponed = small_only and small_max < limits.decompressed_bytes_max
        size_max = small_max if postponed else limits.decompressed_bytes_max
        try:
            buffer = decompress(codec, memoryview(request)[start:end], size_max)
        except DecompressedTooLarge as error:
            if postponed:
                return LargeBatch(BatchErrorCode.MESSAGE_TOO_LARGE, str(error))
            return InvalidBatch(BatchErrorCode.MESSAGE_TOO_LARGE, str(error))
        except CorruptCompression as error:
            return _invalid(str(error))
        start, end = 0, len(buffer)
    count, base = header.record_count, header.base_timestamp
    return new_tuple(Section, (buffer, start, end, count, base, limits))


def _invalid(message: str) -> InvalidBatch:
    return InvalidBatch(BatchErrorCode.INVALID_RECORD, message)


def _too_large(size_bytes: int, limits: BatchLimits) -> InvalidBatch:
    message = (
        f"a record batch of {size_bytes} bytes exceeds max.message.bytes,"
        f" which is {limits.batch_bytes_max}"
    )
    return InvalidBatch(BatchErrorCode.MESSAGE_TOO_LARGE, message)


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
    for batch in batches:
        if batch.needs_rewrite:
            break
    else:
        return new_tuple(AcceptedBatches, (request, batches))
    joined = bytearray()
    placed: list[BatchInfo] = []
    for batch in batches:
        rewritten, info = rewrite(request, batch, limits)
        if info.length > limits.batch_bytes_max:
            return _too_large(info.length, limits)
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
    header = BatchHeader.parse(batch)
    return batch, info._replace(
        position=0, length=len(batch), header=header, codec=codec, needs_rewrite=False
    )


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
