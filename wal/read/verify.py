"""Verifies bytes from the store against the index. Pure.

Every reader of an extent calls it: fetches, rolls, merges, and readers of the bucket. An adopted
batch (H8) has no identity in its staged object. It is verified as staged, then stamped.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from tidelog.errors import CorruptObject
from tidelog.records.batch import (
    ATTRIBUTES_POSITION,
    CRC_POSITION,
    HEADER_SIZE,
    LENGTH_PREFIX_SIZE,
    MAGIC,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    TRANSACTIONAL_FLAG,
    BatchHeader,
    MalformedBatch,
    checksum,
    restamp_identity,
    stamp,
)
from tidelog.records.buffers import Buffer
from tidelog.wal.log.adoption import NO_LEADER_EPOCH, Adoption
from tidelog.wal.log.extents import Extent

_BASE_AND_LENGTH = struct.Struct(">qi")
_INT32 = struct.Struct(">i")
_MAGIC_POSITION = 16
_LAST_OFFSET_DELTA_POSITION = 23


class StoredBatches(NamedTuple):
    """The stored bytes of an extent, not verified."""

    extent: Extent
    data: Buffer


class VerifiedBatches(NamedTuple):
    """The batches of an extent, in the form that consumers receive."""

    extent: Extent
    data: Buffer
    positions: list[int]
    """The start of each batch in the data."""


def verify(extent: Extent, data: Buffer) -> VerifiedBatches:
    """The batches in the stored bytes of an extent. An adopted batch is stamped in a copy.

    Raises CorruptObject if the length, an offset or a checksum differs from the index or the batch.
    """
    if extent.adoption is None:
        return VerifiedBatches(extent, data, _batches_in(extent, data))
    verify_staged(extent, data)
    return VerifiedBatches(extent, _stamped(extent, extent.adoption, data), [0])


def verify_staged(extent: Extent, data: Buffer) -> BatchHeader:
    """The header of a staged batch, before it is stamped.

    Raises CorruptObject if it differs from the extent.
    """
    key, where = extent.key, f"at position {extent.position}"
    _check_length(extent, data)
    try:
        header = BatchHeader.parse(data)
    except MalformedBatch as error:
        raise CorruptObject(key, f"{where}: {error}") from None
    if (
        (header.base_offset, header.leader_epoch) != (0, NO_LEADER_EPOCH)
        or header.size_bytes != extent.length
        or header.last_offset_delta != extent.last_offset - extent.base_offset
        or header.max_timestamp != extent.max_timestamp
        or header.producer_id != NO_PRODUCER_ID
        or header.attributes & TRANSACTIONAL_FLAG
    ):
        raise CorruptObject(
            key,
            f"the staged batch {where} is not the one of offsets {extent.base_offset} to"
            f" {extent.last_offset}",
        )
    if checksum(data, 0, len(data)) != header.crc:
        raise CorruptObject(key, f"the checksum of the staged batch {where} is wrong")
    extent.check_crcs(header.crc.to_bytes(4, "big"))
    return header


def _stamped(extent: Extent, adoption: Adoption, data: Buffer) -> Buffer:
    batch = bytearray(data)
    stamp(batch, 0, extent.base_offset, adoption.leader_epoch)
    restamp_identity(
        batch,
        0,
        producer_id=adoption.producer_id,
        producer_epoch=adoption.producer_epoch,
        base_sequence=NO_SEQUENCE,
        is_transactional=True,
    )
    return batch


def _batches_in(extent: Extent, data: Buffer) -> list[int]:
    """The starts of the extent's batches, after a check of each checksum."""
    _check_length(extent, data)
    size, position, expected = len(data), 0, extent.base_offset
    positions: list[int] = []
    crcs = bytearray()
    while position < size:
        if size - position < HEADER_SIZE:
            raise _corrupt(extent, position, "is cut")
        base_offset, length = _BASE_AND_LENGTH.unpack_from(data, position)
        following = position + LENGTH_PREFIX_SIZE + length
        if base_offset != expected or data[position + _MAGIC_POSITION] != MAGIC:
            raise _corrupt(extent, position, f"begins at offset {base_offset}, expected {expected}")
        if length < HEADER_SIZE - LENGTH_PREFIX_SIZE or following > size:
            raise _corrupt(extent, position, f"has length {length}")
        crc = data[position + CRC_POSITION : position + ATTRIBUTES_POSITION]
        if int.from_bytes(crc, "big") != checksum(data, position, following):
            raise _corrupt(extent, position, "has a wrong checksum")
        positions.append(position)
        crcs += crc
        expected += _INT32.unpack_from(data, position + _LAST_OFFSET_DELTA_POSITION)[0] + 1
        position = following
    if expected != extent.last_offset + 1:
        raise CorruptObject(
            extent.key,
            f"record batches end at offset {expected - 1}, expected {extent.last_offset}",
        )
    extent.check_crcs(crcs)
    return positions


def _check_length(extent: Extent, data: Buffer) -> None:
    if len(data) != extent.length:
        raise CorruptObject(
            extent.key,
            f"{len(data)} of {extent.length} bytes at position {extent.position}",
        )


def _corrupt(extent: Extent, position: int, why: str) -> CorruptObject:
    return CorruptObject(
        extent.key, f"the record batch at position {extent.position + position} {why}"
    )
