"""Record batches and names for the WAL's tests; their records mean nothing."""

from __future__ import annotations

from uuid import UUID

from tidelog.identifiers import BrokerId, Epoch, Incarnation, LeaderEpoch, Slot, TopicPartition
from tidelog.records.batch import (
    CONTROL_FLAG,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    TRANSACTIONAL_FLAG,
    BatchHeader,
    build_batch,
)
from tidelog.wal.object_format import ObjectHeader, ObjectKind


def topic_partition(number: int) -> TopicPartition:
    """One of many partitions, in a topic of three."""
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
    """A batch's bytes and header; `content` stands for its records."""
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


def header(slot: int, previous_crc: int = 0, epoch: int = 1, created_ms: int = 0) -> ObjectHeader:
    """A WAL object's header, with a writer id that says the slot."""
    return ObjectHeader(
        ObjectKind.DATA,
        incarnation(epoch),
        Slot(slot),
        created_ms,
        slot.to_bytes(16, "little"),
        previous_crc,
    )
