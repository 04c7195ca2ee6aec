"""Encodes and decodes single records, in plain Python.

For clients, tools, tests and the records of coordinators. Clients' records on the broker's hot
path do not pass through these functions.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Final, NamedTuple

from tidelog.records.batch import (
    CONTROL_FLAG,
    HEADER_SIZE,
    LOG_APPEND_TIME_FLAG,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    NO_TIMESTAMP,
    TRANSACTIONAL_FLAG,
    BatchHeader,
    MalformedBatch,
    TimestampType,
    build_batch,
    checksum,
    iterate_batches,
)
from tidelog.records.buffers import Buffer
from tidelog.records.compression import Compression, compress, decompress
from tidelog.records.parse.sequential import RecordLayout, read_layouts
from tidelog.records.validate.rules import ACCEPTED_BYTES_MAX

_VARINTS_KEPT: Final = 4096
"""Lengths and deltas are mostly small."""
Headers = Sequence[tuple[str, bytes | None]]


class NewRecord(NamedTuple):
    """A record to write."""

    value: bytes | None
    key: bytes | None = None
    headers: Headers = ()
    timestamp: int = NO_TIMESTAMP
    """Milliseconds since 1970, -1 for none."""


class Record(NamedTuple):
    """A record read from a batch."""

    offset: int
    timestamp: int
    timestamp_type: TimestampType
    key: bytes | None
    value: bytes | None
    headers: Headers


def encode_batch(
    records: Sequence[NewRecord],
    *,
    compression: Compression = Compression.NONE,
    level: int | None = None,
    timestamp_type: TimestampType = TimestampType.CREATE_TIME,
    base_offset: int = 0,
    leader_epoch: int = -1,
    producer_id: int = NO_PRODUCER_ID,
    producer_epoch: int = NO_PRODUCER_EPOCH,
    base_sequence: int = NO_SEQUENCE,
    is_transactional: bool = False,
    is_control: bool = False,
) -> bytearray:
    """One batch of at least one record, at consecutive offsets."""
    if not records:
        raise ValueError("a batch needs at least one record")
    base_timestamp = max_timestamp = records[0].timestamp
    section = bytearray()
    for index, record in enumerate(records):
        body = _encode_record(record, record.timestamp - base_timestamp, index)
        section += _varint(len(body))
        section += body
        max_timestamp = max(max_timestamp, record.timestamp)
    attributes = int(compression)
    attributes |= LOG_APPEND_TIME_FLAG * (timestamp_type is TimestampType.LOG_APPEND_TIME)
    attributes |= TRANSACTIONAL_FLAG * is_transactional | CONTROL_FLAG * is_control
    return build_batch(
        compress(compression, section, level),
        attributes=attributes,
        last_offset_delta=len(records) - 1,
        base_timestamp=base_timestamp,
        max_timestamp=max_timestamp,
        record_count=len(records),
        base_offset=base_offset,
        leader_epoch=leader_epoch,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
    )


def decode_records(
    buffer: Buffer, *, check_crc: bool = True, decompressed_bytes_max: int = ACCEPTED_BYTES_MAX
) -> Iterator[Record]:
    """The data records of all whole batches, in order, without control batches.

    A batch that the end cuts off, as in a Fetch response, is left out. Raises MalformedBatch,
    CorruptCompression and DecompressedTooLarge.
    """
    for position, header in iterate_batches(buffer):
        if header.is_control:
            continue
        yield from decode_batch(
            buffer,
            position,
            header,
            check_crc=check_crc,
            decompressed_bytes_max=decompressed_bytes_max,
        )


def decode_batch(
    buffer: Buffer,
    position: int,
    header: BatchHeader,
    *,
    check_crc: bool = True,
    decompressed_bytes_max: int = ACCEPTED_BYTES_MAX,
) -> Iterator[Record]:
    """The records of the batch at a position, control records included. Raises as
    `decode_records`.
    """
    end = position + header.size_bytes
    if check_crc and checksum(buffer, position, end) != header.crc:
        raise MalformedBatch(
            f"the batch at offset {header.base_offset} does not match its checksum"
        )
    section = memoryview(buffer)[position + HEADER_SIZE : end]
    data: Buffer = section
    if header.compression is not Compression.NONE:
        data = decompress(header.compression, section, decompressed_bytes_max)
    for layout in read_layouts(data, 0, len(data), header.record_count):
        timestamp = header.base_timestamp + layout.timestamp_delta
        if header.timestamp_type is TimestampType.LOG_APPEND_TIME:
            timestamp = header.max_timestamp
        yield _record(data, layout, header.base_offset, timestamp, header.timestamp_type)


def _record(
    data: Buffer,
    layout: RecordLayout,
    base_offset: int,
    timestamp: int,
    timestamp_type: TimestampType,
) -> Record:
    headers = [
        (
            str(data[header.key_start : header.key_start + header.key_length], "utf-8"),
            _nullable(data, header.value_start, header.value_length),
        )
        for header in layout.headers
    ]
    return Record(
        base_offset + layout.offset_delta,
        timestamp,
        timestamp_type,
        _nullable(data, layout.key_start, layout.key_length),
        _nullable(data, layout.value_start, layout.value_length),
        headers,
    )


def _nullable(data: Buffer, start: int, length: int) -> bytes | None:
    return None if length < 0 else bytes(data[start : start + length])


def _encode_record(record: NewRecord, timestamp_delta: int, offset_delta: int) -> bytearray:
    body = bytearray(1)
    body += _varint(timestamp_delta)
    body += _varint(offset_delta)
    _append_nullable(body, record.key)
    _append_nullable(body, record.value)
    body += _varint(len(record.headers))
    for key, value in record.headers:
        _append_nullable(body, key.encode())
        _append_nullable(body, value)
    return body


def _append_nullable(body: bytearray, value: bytes | None) -> None:
    body += _varint(-1 if value is None else len(value))
    body += value or b""


@lru_cache(maxsize=_VARINTS_KEPT)
def _varint(value: int) -> bytes:
    rest = (value << 1) ^ (value >> 63)
    out = bytearray()
    while rest > 127:
        out.append(rest & 127 | 128)
        rest >>= 7
    out.append(rest)
    return bytes(out)
