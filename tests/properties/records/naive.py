"""A second reader of produced records, which is obviously right: a cursor and exceptions.

It shares only the rules with the package. It is slow, and only for default limits.
"""

from __future__ import annotations

import io
import struct
import zlib
from dataclasses import dataclass

import cramjam
import crc32c
import lz4.frame
import zstandard

MICROSECONDS_BOUND = 9_223_372_036_854_775


class Wrong(Exception):
    """The bytes break a rule."""


@dataclass
class NaiveRecord:
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]]


class Cursor:
    def __init__(self, data: bytes) -> None:
        self.stream = io.BytesIO(data)
        self.size = len(data)

    def left(self) -> int:
        return self.size - self.stream.tell()

    def take(self, count: int) -> bytes:
        if count < 0 or count > self.left():
            raise Wrong("too short")
        return self.stream.read(count)

    def number(self, bits: int) -> int:
        unsigned = 0
        for index in range(5 if bits == 32 else 10):
            (byte,) = self.take(1)
            unsigned += (byte % 128) * 128**index
            if byte < 128:
                if unsigned >= 2**bits:
                    raise Wrong("too many bits")
                return unsigned // 2 if unsigned % 2 == 0 else -(unsigned // 2) - 1
        raise Wrong("too many bytes")

    def text(self) -> bytes | None:
        length = self.number(32)
        if length == -1:
            return None
        return self.take(length)


def read_if_right(request: bytes, now_ms: int) -> list[NaiveRecord] | None:
    """The records of a request of exactly one batch, or None if the batch is not valid."""
    try:
        return read(request, now_ms)
    except Wrong:
        return None


def read(request: bytes, now_ms: int) -> list[NaiveRecord]:
    """The records of a request of exactly one batch. Raises Wrong."""
    if len(request) < 61:
        raise Wrong("no header")
    base_offset, length, _, magic, crc = struct.unpack(">qiibI", request[:21])
    fields = struct.unpack(">hiqqqhii", request[21:61])
    attributes, last_delta, base_timestamp, _, producer_id, epoch, sequence, count = fields
    if magic != 2 or length != len(request) - 12 or base_offset != 0:
        raise Wrong("frame")
    if crc32c.crc32c(request[21:]) != crc:
        raise Wrong("checksum")
    if attributes & ~0b10111 or attributes & 7 > 4:
        raise Wrong("attributes")
    if count < 1 or last_delta + 1 != count:
        raise Wrong("count")
    if producer_id < -1 or (producer_id >= 0 and min(epoch, sequence) < 0):
        raise Wrong("producer")
    if producer_id == -1 and attributes & 16:
        raise Wrong("a transaction without a producer")
    cursor = Cursor(_plain(attributes & 7, request[61:]))
    records = [_record(Cursor(_body(cursor)), index, base_timestamp) for index in range(count)]
    if cursor.left():
        raise Wrong("bytes behind the records")
    for record in records:
        if not -MICROSECONDS_BOUND <= record.timestamp <= MICROSECONDS_BOUND:
            raise Wrong("timestamp")
        if record.timestamp > now_ms + 3_600_000:
            raise Wrong("timestamp in the future")
    return records


def _plain(codec: int, data: bytes) -> bytes:
    try:
        if codec == 0:
            return data
        if codec == 1:
            return _gzip(data)
        if codec == 2:
            return _snappy(data)
        if codec == 3:
            plain, used = lz4.frame.decompress(data, return_bytes_read=True)
            if used != len(data):
                raise Wrong("bytes behind the frame")
            return plain
        decompressor = zstandard.ZstdDecompressor().decompressobj()
        plain = decompressor.decompress(data)
        if not decompressor.eof or decompressor.unused_data:
            raise Wrong("frame")
    except Wrong:
        raise
    except Exception as error:
        raise Wrong("codec") from error
    return plain


def _gzip(data: bytes) -> bytes:
    plain = b""
    while True:
        member = zlib.decompressobj(31)
        plain += member.decompress(data)
        if not member.eof:
            raise Wrong("cut off")
        data = member.unused_data
        if not data:
            return plain


def _snappy(data: bytes) -> bytes:
    if not data.startswith(b"\x82SNAPPY\0"):
        return bytes(cramjam.snappy.decompress_raw(data))
    if data[8:16] != b"\0\0\0\1" * 2:
        raise Wrong("version")
    cursor = Cursor(data[16:])
    plain = b""
    while cursor.left():
        (size,) = struct.unpack(">i", cursor.take(4))
        plain += bytes(cramjam.snappy.decompress_raw(cursor.take(size)))
    return plain


def _body(cursor: Cursor) -> bytes:
    return cursor.take(cursor.number(32))


def _record(cursor: Cursor, index: int, base_timestamp: int) -> NaiveRecord:
    if cursor.take(1) != b"\0":
        raise Wrong("attributes")
    timestamp = base_timestamp + cursor.number(64)
    if cursor.number(32) != index:
        raise Wrong("offset delta")
    key = cursor.text()
    value = cursor.text()
    count = cursor.number(32)
    if not 0 <= count <= 1024:
        raise Wrong("header count")
    headers = []
    for _ in range(count):
        name = cursor.text()
        if name is None:
            raise Wrong("null header key")
        try:
            headers.append((name.decode(), cursor.text()))
        except UnicodeDecodeError as error:
            raise Wrong("header key") from error
    if cursor.left():
        raise Wrong("bytes behind the record")
    return NaiveRecord(timestamp, key, value, headers)
