"""Control batches: the markers that end a transaction in a partition (KIP-98)."""

from __future__ import annotations

from enum import IntEnum
from struct import Struct
from typing import NamedTuple

from tidelog.records.batch import BatchHeader, MalformedBatch
from tidelog.records.buffers import Buffer
from tidelog.records.records import NewRecord, decode_batch, encode_batch

_KEY = Struct(">hh")
_VALUE = Struct(">hi")
_VERSION = 0


class MarkerType(IntEnum):
    """How a transaction ended."""

    ABORT = 0
    COMMIT = 1


class Marker(NamedTuple):
    """The end of a producer's transaction; the batch's header names the producer."""

    type: MarkerType
    coordinator_epoch: int


def control_batch(
    marker_type: MarkerType,
    *,
    producer_id: int,
    producer_epoch: int,
    coordinator_epoch: int,
    timestamp: int,
    base_offset: int = 0,
    leader_epoch: int = -1,
) -> bytearray:
    """A control batch with one transaction marker."""
    record = NewRecord(
        key=_KEY.pack(_VERSION, marker_type),
        value=_VALUE.pack(_VERSION, coordinator_epoch),
        timestamp=timestamp,
    )
    return encode_batch(
        [record],
        base_offset=base_offset,
        leader_epoch=leader_epoch,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        is_transactional=True,
        is_control=True,
    )


def parse_marker(buffer: Buffer, position: int = 0) -> Marker | None:
    """The marker in the control batch at a position; None for other kinds of control records.

    Raises MalformedBatch, also for a data batch.
    """
    header = BatchHeader.parse(buffer, position)
    if not header.is_control:
        raise MalformedBatch(f"the batch at position {position} is no control batch")
    records = list(decode_batch(buffer, position, header))
    record = records[0] if len(records) == 1 else None
    if record is None or record.key is None or len(record.key) < _KEY.size:
        raise MalformedBatch(
            f"the control batch at position {position} does not hold one control record"
        )
    _, kind = _KEY.unpack_from(record.key)
    if kind not in (MarkerType.ABORT, MarkerType.COMMIT):
        return None
    if record.value is None or len(record.value) < _VALUE.size:
        raise MalformedBatch(f"the marker at position {position} has no coordinator epoch")
    _, coordinator_epoch = _VALUE.unpack_from(record.value)
    return Marker(MarkerType(kind), coordinator_epoch)
