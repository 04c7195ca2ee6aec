"""The record batch of message format v2 (KIP-98): reading and patching its 61-byte header.

A batch is base offset (8 bytes), length of the rest (4), leader epoch (4), magic (1), CRC-32C of
the rest (4), then attributes, counts, timestamps and producer identity, then the records. Base
offset and leader epoch lie outside the checksum, so an append assigns offsets by patching 12 bytes.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import IntEnum
from struct import Struct
from typing import NamedTuple

import numpy as np
from awscrt.checksums import crc32c
from numpy.typing import NDArray

from tidelog.errors import TidelogError
from tidelog.records.buffers import Buffer, MutableBuffer
from tidelog.records.compression import Compression

HEADER_SIZE = 61
LENGTH_PREFIX_SIZE = 12
"""The bytes that the batch length does not count: base offset and length."""
BATCH_LENGTH_MIN = HEADER_SIZE - LENGTH_PREFIX_SIZE
MAGIC = 2
SEQUENCE_MAX = 2**31 - 1

NO_PRODUCER_ID = -1
NO_PRODUCER_EPOCH = -1
NO_SEQUENCE = -1
NO_TIMESTAMP = -1

COMPRESSION_MASK = 0x07
LOG_APPEND_TIME_FLAG = 0x08
TRANSACTIONAL_FLAG = 0x10
CONTROL_FLAG = 0x20
DELETE_HORIZON_FLAG = 0x40
"""Log compaction has stored a deletion time in the base timestamp (KIP-534)."""
KNOWN_ATTRIBUTES = 0x7F

CRC_POSITION = 17
ATTRIBUTES_POSITION = 21
"""The first byte that the checksum covers."""
MAX_TIMESTAMP_POSITION = 35
PRODUCER_POSITION = 43

_HEADER = Struct(">qiibIhiqqqhii")
_INT16 = Struct(">h")
_INT32 = Struct(">i")
_UINT32 = Struct(">I")
_INT64 = Struct(">q")
_PRODUCER = Struct(">qhi")

HEADER_DTYPE = np.dtype(
    [
        ("base_offset", ">i8"),
        ("batch_length", ">i4"),
        ("leader_epoch", ">i4"),
        ("magic", "i1"),
        ("crc", ">u4"),
        ("attributes", ">i2"),
        ("last_offset_delta", ">i4"),
        ("base_timestamp", ">i8"),
        ("max_timestamp", ">i8"),
        ("producer_id", ">i8"),
        ("producer_epoch", ">i2"),
        ("base_sequence", ">i4"),
        ("record_count", ">i4"),
    ]
)
"""A header as one row of a numpy structured array, with the names of `BatchHeader`."""


class MalformedBatch(TidelogError):
    """The bytes are no record batch of format v2. The bytes stay unchanged."""


class TimestampType(IntEnum):
    """The origin of a batch's timestamps: the producer, or the broker at the append."""

    CREATE_TIME = 0
    LOG_APPEND_TIME = 1


class BatchHeader(NamedTuple):
    """The fields of a batch's header, in wire order."""

    base_offset: int
    batch_length: int
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    @classmethod
    def parse(cls, buffer: Buffer, position: int = 0) -> BatchHeader:
        """The header at a position.

        Checks only that the bytes hold a header of format v2. Raises MalformedBatch.
        """
        if position < 0 or len(buffer) - position < HEADER_SIZE:
            raise MalformedBatch(
                f"a record batch header needs {HEADER_SIZE} bytes at position {position},"
                f" the buffer has {len(buffer)}"
            )
        # `_make` would count the fields again.
        header = tuple.__new__(cls, _HEADER.unpack_from(buffer, position))
        if header.magic != MAGIC or header.batch_length < BATCH_LENGTH_MIN:
            raise MalformedBatch(
                f"no record batch of format v2 at position {position}: magic {header.magic},"
                f" length {header.batch_length}"
            )
        return header

    @property
    def size_bytes(self) -> int:
        """The size of the whole batch, with its header."""
        return LENGTH_PREFIX_SIZE + self.batch_length

    @property
    def compression(self) -> Compression:
        """The records' codec. Raises MalformedBatch for the ids 5 to 7, which have no codec."""
        codec = self.attributes & COMPRESSION_MASK
        if codec > Compression.ZSTD:
            raise MalformedBatch(f"unknown compression codec {codec}")
        return Compression(codec)

    @property
    def timestamp_type(self) -> TimestampType:
        if self.attributes & LOG_APPEND_TIME_FLAG:
            return TimestampType.LOG_APPEND_TIME
        return TimestampType.CREATE_TIME

    @property
    def is_transactional(self) -> bool:
        return bool(self.attributes & TRANSACTIONAL_FLAG)

    @property
    def is_control(self) -> bool:
        return bool(self.attributes & CONTROL_FLAG)

    @property
    def has_delete_horizon(self) -> bool:
        return bool(self.attributes & DELETE_HORIZON_FLAG)

    @property
    def has_producer_id(self) -> bool:
        return self.producer_id > NO_PRODUCER_ID

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.last_offset_delta

    @property
    def last_sequence(self) -> int:
        """The sequence of the last record, or NO_SEQUENCE."""
        if self.base_sequence == NO_SEQUENCE:
            return NO_SEQUENCE
        return advance_sequence(self.base_sequence, self.last_offset_delta)


def advance_sequence(sequence: int, records: int) -> int:
    """The sequence number `records` after `sequence`; 0 follows 2147483647."""
    return (sequence + records) % (SEQUENCE_MAX + 1)


def iterate_batches(
    buffer: Buffer, start: int = 0, end: int | None = None
) -> Iterator[tuple[int, BatchHeader]]:
    """The position and header of each whole batch; a batch that the end cuts off is left out.

    A Fetch response may end in a cut batch. To detect one, compare the last batch's end with the
    buffer's. Raises MalformedBatch.
    """
    stop = len(buffer) if end is None else end
    position = start
    while stop - position >= HEADER_SIZE:
        header = BatchHeader.parse(buffer, position)
        following = position + header.size_bytes
        if following > stop:
            return
        yield position, header
        position = following


def batch_positions(buffer: Buffer, start: int = 0, end: int | None = None) -> NDArray[np.int64]:
    """The start of each whole batch, by lengths alone; a batch that the end cuts off is left out.

    Raises MalformedBatch for an impossible length. `headers_of` reads the headers.
    """
    stop = len(buffer) if end is None else end
    unpack = _INT32.unpack_from
    positions: list[int] = []
    position = start
    while stop - position >= HEADER_SIZE:
        length = unpack(buffer, position + 8)[0]
        if length < BATCH_LENGTH_MIN:
            raise MalformedBatch(f"a record batch at position {position} has length {length}")
        following = position + LENGTH_PREFIX_SIZE + length
        if following > stop:
            break
        positions.append(position)
        position = following
    return np.array(positions, np.int64)


def headers_of(buffer: Buffer, positions: NDArray[np.int64]) -> NDArray[np.void]:
    """The headers at many positions as one structured array (HEADER_DTYPE), in one gather.

    IndexError if a position leaves no room for a header.
    """
    if not len(positions):
        return np.empty(0, HEADER_DTYPE)
    # One unaligned row per byte position, so that a gather reads whole headers without a loop.
    rows = np.ndarray((max(0, len(buffer) - HEADER_SIZE + 1),), "V61", buffer, strides=(1,))
    headers: NDArray[np.void] = rows[positions].view(HEADER_DTYPE)
    return headers


def checksum(buffer: Buffer, position: int, end: int) -> int:
    """The CRC-32C of the batch at [position, end), for its header."""
    # crc32c releases the GIL above 5 KiB, and copies nothing.
    value: int = crc32c(memoryview(buffer)[position + ATTRIBUTES_POSITION : end])
    return value


def stamp(buffer: MutableBuffer, position: int, base_offset: int, leader_epoch: int) -> None:
    """Set the batch's base offset and leader epoch in place.

    Both fields lie outside the checksum.
    """
    _INT64.pack_into(buffer, position, base_offset)
    _INT32.pack_into(buffer, position + 12, leader_epoch)


def restamp_timestamps(
    buffer: MutableBuffer, position: int, timestamp_type: TimestampType, max_timestamp: int
) -> None:
    """Set timestamp type and maximum timestamp in place, and recompute the checksum.

    With LOG_APPEND_TIME the maximum is the timestamp of every record.
    """
    attributes = _INT16.unpack_from(buffer, position + ATTRIBUTES_POSITION)[0]
    attributes &= ~LOG_APPEND_TIME_FLAG
    if timestamp_type is TimestampType.LOG_APPEND_TIME:
        attributes |= LOG_APPEND_TIME_FLAG
    _INT16.pack_into(buffer, position + ATTRIBUTES_POSITION, attributes)
    _INT64.pack_into(buffer, position + MAX_TIMESTAMP_POSITION, max_timestamp)
    seal(buffer, position)


def restamp_identity(
    buffer: MutableBuffer,
    position: int,
    *,
    producer_id: int,
    producer_epoch: int,
    base_sequence: int,
    is_transactional: bool,
) -> None:
    """Set the batch's producer in place, and recompute the checksum."""
    attributes = _INT16.unpack_from(buffer, position + ATTRIBUTES_POSITION)[0]
    attributes &= ~TRANSACTIONAL_FLAG
    if is_transactional:
        attributes |= TRANSACTIONAL_FLAG
    _INT16.pack_into(buffer, position + ATTRIBUTES_POSITION, attributes)
    _PRODUCER.pack_into(
        buffer, position + PRODUCER_POSITION, producer_id, producer_epoch, base_sequence
    )
    seal(buffer, position)


def seal(buffer: MutableBuffer, position: int) -> None:
    """Compute the batch's checksum and store it in the header."""
    length = _INT32.unpack_from(buffer, position + 8)[0]
    crc = checksum(buffer, position, position + LENGTH_PREFIX_SIZE + length)
    _UINT32.pack_into(buffer, position + CRC_POSITION, crc)


def build_batch(
    section: Buffer,
    *,
    attributes: int,
    last_offset_delta: int,
    base_timestamp: int,
    max_timestamp: int,
    record_count: int,
    base_offset: int = 0,
    leader_epoch: int = -1,
    producer_id: int = NO_PRODUCER_ID,
    producer_epoch: int = NO_PRODUCER_EPOCH,
    base_sequence: int = NO_SEQUENCE,
) -> bytearray:
    """A batch from its header fields and its records, compressed as `attributes` say."""
    batch = bytearray(HEADER_SIZE + len(section))
    _HEADER.pack_into(
        batch,
        0,
        base_offset,
        len(batch) - LENGTH_PREFIX_SIZE,
        leader_epoch,
        MAGIC,
        0,
        attributes,
        last_offset_delta,
        base_timestamp,
        max_timestamp,
        producer_id,
        producer_epoch,
        base_sequence,
        record_count,
    )
    batch[HEADER_SIZE:] = section
    _UINT32.pack_into(batch, CRC_POSITION, checksum(batch, 0, len(batch)))
    return batch
