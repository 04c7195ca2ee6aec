"""Transaction markers."""

from __future__ import annotations

import pytest
from aiokafka.record.memory_records import MemoryRecords

from tidelog.records.batch import BatchHeader, MalformedBatch
from tidelog.records.control import Marker, MarkerType, control_batch, parse_marker
from tidelog.records.records import NewRecord, decode_records, encode_batch


@pytest.mark.parametrize("kind", MarkerType)
def test_a_marker_comes_back(kind: MarkerType) -> None:
    batch = control_batch(
        kind,
        producer_id=77,
        producer_epoch=4,
        coordinator_epoch=9,
        timestamp=1_234,
        base_offset=50,
        leader_epoch=3,
    )
    assert parse_marker(bytes(2) + batch, 2) == Marker(kind, 9)
    header = BatchHeader.parse(batch)
    assert (header.base_offset, header.last_offset, header.leader_epoch) == (50, 50, 3)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (77, 4, -1)
    assert header.is_control
    assert header.is_transactional
    assert header.max_timestamp == 1_234


def test_other_implementations_read_the_marker() -> None:
    batch = control_batch(
        MarkerType.COMMIT, producer_id=1, producer_epoch=0, coordinator_epoch=6, timestamp=5
    )
    theirs = MemoryRecords(bytes(batch)).next_batch()
    assert theirs is not None
    assert theirs.is_control_batch
    (record,) = theirs
    assert record.key == b"\0\0\0\1"
    assert record.value == b"\0\0\0\0\0\6"


def test_applications_do_not_see_markers() -> None:
    marker = control_batch(
        MarkerType.ABORT, producer_id=1, producer_epoch=0, coordinator_epoch=0, timestamp=5
    )
    data = encode_batch([NewRecord(b"v")])
    assert [record.value for record in decode_records(marker + data + marker)] == [b"v"]


def test_control_records_of_other_kinds_are_no_markers() -> None:
    batch = encode_batch([NewRecord(b"", b"\0\0\0\2")], is_control=True)
    assert parse_marker(batch) is None


@pytest.mark.parametrize(
    "record",
    [NewRecord(b"\0\0\0\0\0\0"), NewRecord(None, b"\0\0\0\1"), NewRecord(b"\0", b"\0\0\0\1")],
)
def test_a_malformed_marker_is_refused(record: NewRecord) -> None:
    with pytest.raises(MalformedBatch):
        parse_marker(encode_batch([record], is_control=True))


def test_data_is_no_marker() -> None:
    with pytest.raises(MalformedBatch, match="no control batch"):
        parse_marker(encode_batch([NewRecord(b"v")]))
