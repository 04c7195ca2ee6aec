"""Reads the records of a batch one at a time, in plain Python.

It serves small batches and exact error messages. It also defines well-formed records: the
vectorised parser (`parsing`) must agree with it.

A record (KIP-82, KIP-98) is a zigzag varint length, then that many bytes: attributes (a zero byte),
timestamp delta (varlong), offset delta, key length and key, value length and value, header count,
and for each header key length, key, value length and value. A length of -1 is null.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from tidelog.records.batch import MalformedBatch
from tidelog.records.buffers import Buffer

VARINT_BYTES_MAX = 5
VARLONG_BYTES_MAX = 10
RECORD_BYTES_MIN = 7
"""A record without key, value or headers: its length and six fields of a byte each."""
HEADER_BYTES_MIN = 2
RECORD_HEADERS_MAX = 1024
"""Tidelog's limit: a few kilobytes of zstd could hold tens of millions of headers."""


class HeaderLayout(NamedTuple):
    """The positions of one record header's parts; a value length of -1 is null."""

    key_start: int
    key_length: int
    value_start: int
    value_length: int


class RecordLayout(NamedTuple):
    """The positions of one record's parts in the buffer; a length of -1 is null."""

    end: int
    timestamp_delta: int
    offset_delta: int
    key_start: int
    key_length: int
    value_start: int
    value_length: int
    headers: list[HeaderLayout]


def read_layouts(buffer: Buffer, start: int, end: int, count: int) -> Iterator[RecordLayout]:
    """The layouts of the records that fill [start, end) exactly, one by one.

    On reaching a malformed record, raises MalformedBatch, which names its index.
    """
    if count < 0 or count * RECORD_BYTES_MIN > end - start:
        raise MalformedBatch(f"{end - start} bytes cannot hold {count} records")
    position = start
    for index in range(count):
        try:
            layout = read_layout(buffer, position, end)
        except MalformedBatch as error:
            raise MalformedBatch(f"record {index}: {error}") from None
        yield layout
        position = layout.end
    if position != end:
        raise MalformedBatch(f"{end - position} bytes behind the last of {count} records")


def read_layout(buffer: Buffer, position: int, batch_end: int) -> RecordLayout:
    """The layout of the record at a position, its length first. Raises MalformedBatch."""
    length, position = _read_varint(buffer, position, batch_end)
    end = position + length
    if length < 1 or end > batch_end:
        raise MalformedBatch(f"a length of {length} does not fit the batch")
    if buffer[position]:
        # Kafka defines no attribute bits, so Tidelog could not keep a bit's meaning.
        raise MalformedBatch(f"attributes are {buffer[position]}, not 0")
    timestamp_delta, position = _read_varint(buffer, position + 1, end, VARLONG_BYTES_MAX)
    offset_delta, position = _read_varint(buffer, position, end)
    key_length, key_start = _read_length(buffer, position, end)
    value_length, value_start = _read_length(buffer, key_start + max(key_length, 0), end)
    count, position = _read_varint(buffer, value_start + max(value_length, 0), end)
    if count < 0 or count * HEADER_BYTES_MIN > end - position or count > RECORD_HEADERS_MAX:
        raise MalformedBatch(f"a count of {count} headers does not fit")
    headers = read_header_layouts(buffer, position, end, count)
    position = headers[-1].value_start + max(headers[-1].value_length, 0) if headers else position
    if position != end:
        raise MalformedBatch(f"{end - position} bytes behind its last field")
    return RecordLayout(
        end,
        timestamp_delta,
        offset_delta,
        key_start,
        key_length,
        value_start,
        value_length,
        headers,
    )


def read_header_layouts(buffer: Buffer, position: int, end: int, count: int) -> list[HeaderLayout]:
    """The layouts of a record's next `count` headers, none beyond `end`. Raises MalformedBatch."""
    headers: list[HeaderLayout] = []
    for _ in range(count):
        key_length, key_start = _read_length(buffer, position, end)
        if key_length < 0:
            raise MalformedBatch("a header key is null")
        position = key_start + key_length
        if key_length and not is_utf8(buffer[key_start:position]):
            raise MalformedBatch("a header key is not UTF-8")
        value_length, value_start = _read_length(buffer, position, end)
        headers.append(HeaderLayout(key_start, key_length, value_start, value_length))
        position = value_start + max(value_length, 0)
    return headers


def is_utf8(text: Buffer) -> bool:
    """True if the bytes are strict UTF-8 (no surrogates, shortest forms)."""
    try:
        str(text, "utf-8")
    except UnicodeDecodeError:
        return False
    return True


def _read_length(buffer: Buffer, position: int, end: int) -> tuple[int, int]:
    """The length of nullable bytes, and their start."""
    if position < end:
        byte = buffer[position]
        if byte < 0x80 and not byte & 1 and byte >> 1 < end - position:  # short, and it fits
            return byte >> 1, position + 1
    length, position = _read_varint(buffer, position, end)
    if length < -1 or length > end - position:
        raise MalformedBatch(f"a length of {length} does not fit")
    return length, position


def _read_varint(
    buffer: Buffer, position: int, end: int, bytes_max: int = VARINT_BYTES_MAX
) -> tuple[int, int]:
    """A zigzag varint of 32 bits (64 with VARLONG_BYTES_MAX), and its end.

    More bits are refused: Kafka drops them, other readers do not.
    """
    if position < end:
        byte = buffer[position]
        if byte < 0x80:  # the common case
            return (byte >> 1) ^ -(byte & 1), position + 1
    value = shift = 0
    for following in range(position + 1, min(position + bytes_max, end) + 1):
        byte = buffer[following - 1]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            if value >> (32 if bytes_max == VARINT_BYTES_MAX else 64):
                break
            return (value >> 1) ^ -(value & 1), following
        shift += 7
    raise MalformedBatch("a number is cut off or has too many bits")
