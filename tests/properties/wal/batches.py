"""Record batches and names for the WAL's tests. The records have no meaning."""

from __future__ import annotations

import struct
from uuid import UUID

from awscrt.checksums import crc32c

from tidelog.identifiers import (
    BrokerId,
    Epoch,
    Incarnation,
    LeaderEpoch,
    MetadataStamp,
    Slot,
    TopicPartition,
)
from tidelog.records.batch import (
    CONTROL_FLAG,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    TRANSACTIONAL_FLAG,
    BatchHeader,
    build_batch,
)
from tidelog.wal.format.object_format import (
    FOOTER_END_BYTES,
    STAMPED_HEADER_BYTES,
    ObjectHeader,
    ObjectKind,
    SlotStamps,
)
from tidelog.wal.write.buffer import AssembledSlot, SlotBuffer


def topic_partition(number: int) -> TopicPartition:
    """One of many partitions. Each topic has three."""
    return TopicPartition(UUID(int=(number // 3 + 1) << 64), number % 3)


def incarnation(epoch: int = 1) -> Incarnation:
    return Incarnation(BrokerId(7), Epoch(epoch))


EPOCH_0 = LeaderEpoch(0)


def batch(
    records: int = 1,
    *,
    producer: int = NO_PRODUCER_ID,
    epoch: int = NO_PRODUCER_EPOCH,
    sequence: int = NO_SEQUENCE,
    transactional: bool = False,
    timestamp: int = 1_000,
    content: bytes = b"records",
) -> tuple[bytes, BatchHeader]:
    """A batch's bytes and header. `content` takes the place of its records."""
    data = build_batch(
        content,
        attributes=TRANSACTIONAL_FLAG if transactional else 0,
        last_offset_delta=records - 1,
        base_timestamp=timestamp,
        max_timestamp=timestamp,
        record_count=records,
        producer_id=producer,
        producer_epoch=epoch,
        base_sequence=sequence,
    )
    return bytes(data), BatchHeader.parse(data)


def marker(producer: int, epoch: int, timestamp: int = 1_000) -> tuple[bytes, BatchHeader]:
    """A control batch."""
    data = build_batch(
        b"marker",
        attributes=TRANSACTIONAL_FLAG | CONTROL_FLAG,
        last_offset_delta=0,
        base_timestamp=timestamp,
        max_timestamp=timestamp,
        record_count=1,
        producer_id=producer,
        producer_epoch=epoch,
    )
    return bytes(data), BatchHeader.parse(data)


METADATA = MetadataStamp(1, 0x12345678)
"""The stamp of a metadata log that does not change."""


def stamps(durable_end: int = 0) -> SlotStamps:
    """The stamps of a writer with this many durable slots."""
    return SlotStamps(Slot(durable_end), METADATA)


def header(slot: int, previous_crc: int = 0, epoch: int = 1, created_ms: int = 0) -> ObjectHeader:
    """A WAL object's header, whose writer id contains the slot."""
    return ObjectHeader(
        ObjectKind.DATA,
        incarnation(epoch),
        Slot(slot),
        created_ms,
        slot.to_bytes(16, "little"),
        previous_crc,
    )


def assembled(buffer: SlotBuffer, plain: ObjectHeader) -> AssembledSlot:
    """A slot as a writer lays it out: with stamps."""
    return buffer.assemble(plain._replace(stamps=stamps()), dict.fromkeys(buffer.tenures, -1))


def of_newer_format(data: bytes, version: int = 9) -> bytes:
    """A stamped slot as a later release may write it: magic, version and checksums stay in their
    places."""
    newer = bytearray(data)
    footer = len(data) - FOOTER_END_BYTES
    (index_position,) = struct.unpack_from("<Q", data, footer)
    for place in (0, footer - STAMPED_HEADER_BYTES):
        struct.pack_into("<I", newer, place + 8, version)
        struct.pack_into("<I", newer, place + 60, crc32c(bytes(newer[place : place + 60])))
    number = struct.pack("<I", version)
    covered = bytes(newer[index_position : len(newer) - 16]) + number
    struct.pack_into("<I4s", newer, len(newer) - 16, crc32c(covered), number)
    return bytes(newer)
