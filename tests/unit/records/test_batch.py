"""The header of a record batch: read, walked over, stamped."""

from __future__ import annotations

import crc32c
import numpy as np
import pytest

from tidelog.records.batch import (
    HEADER_SIZE,
    BatchHeader,
    MalformedBatch,
    TimestampType,
    advance_sequence,
    batch_positions,
    checksum,
    headers_of,
    iterate_batches,
    restamp_identity,
    restamp_timestamps,
    stamp,
)
from tidelog.records.compression import Compression
from tidelog.records.records import NewRecord, decode_records, encode_batch


def batch_of(count: int, **fields: object) -> bytearray:
    records = [NewRecord(b"v%d" % i, timestamp=1_000 + i) for i in range(count)]
    return encode_batch(records, **fields)


def is_sealed(batch: bytearray) -> bool:
    return BatchHeader.parse(batch).crc == crc32c.crc32c(bytes(batch[21:]))


def test_a_header_has_every_property_of_its_batch() -> None:
    batch = batch_of(
        3,
        compression=Compression.ZSTD,
        base_offset=70,
        leader_epoch=5,
        producer_id=9,
        producer_epoch=2,
        base_sequence=40,
        is_transactional=True,
    )
    header = BatchHeader.parse(bytes(5) + batch, 5)
    assert header.size_bytes == len(batch)
    assert (header.base_offset, header.last_offset, header.record_count) == (70, 72, 3)
    assert (header.leader_epoch, header.magic) == (5, 2)
    assert (header.producer_id, header.producer_epoch) == (9, 2)
    assert (header.base_sequence, header.last_sequence) == (40, 42)
    assert (header.base_timestamp, header.max_timestamp) == (1_000, 1_002)
    assert header.compression is Compression.ZSTD
    assert header.timestamp_type is TimestampType.CREATE_TIME
    assert header.is_transactional
    assert header.has_producer_id
    assert not header.is_control
    assert not header.has_delete_horizon
    assert is_sealed(batch)


def test_sequences_go_on_at_zero_after_the_greatest() -> None:
    assert advance_sequence(2**31 - 1, 1) == 0
    assert advance_sequence(2**31 - 3, 5) == 2
    header = BatchHeader.parse(
        batch_of(4, producer_id=1, producer_epoch=0, base_sequence=2**31 - 2)
    )
    assert header.last_sequence == 1


def test_without_a_producer_there_are_no_sequences() -> None:
    header = BatchHeader.parse(batch_of(4))
    assert header.last_sequence == -1
    assert not header.has_producer_id


@pytest.mark.parametrize(
    ("change", "position"),
    [(b"\x01", 16), (b"\x00", 16), (b"\x00\x00\x00\x30", 8), (b"\xff\xff\xff\xff", 8)],
)
def test_a_batch_of_another_format_is_refused(change: bytes, position: int) -> None:
    batch = batch_of(1)
    batch[position : position + len(change)] = change
    with pytest.raises(MalformedBatch):
        BatchHeader.parse(batch)


def test_a_header_must_lie_within_the_buffer() -> None:
    batch = batch_of(1)
    for buffer, position in ((batch, 8), (batch[:60], 0), (batch, -1)):
        with pytest.raises(MalformedBatch):
            BatchHeader.parse(buffer, position)


def test_unknown_codecs_are_refused_when_asked_for() -> None:
    batch = batch_of(1)
    batch[22] = 5
    with pytest.raises(MalformedBatch, match="codec 5"):
        _ = BatchHeader.parse(batch).compression


def test_batches_are_walked_over_up_to_a_cut_batch() -> None:
    batches = [batch_of(count, base_offset=10 * count) for count in (1, 2, 3)]
    joined = b"".join(batches)
    for cut in range(len(batches[2])):
        buffer = joined + batches[2][:cut]
        walked = list(iterate_batches(buffer))
        positions = batch_positions(buffer)
        assert [position for position, _ in walked] == positions.tolist()
        assert [header.base_offset for _, header in walked] == [10, 20, 30]


def test_a_walk_can_begin_and_end_within_the_buffer() -> None:
    one, two = batch_of(1), batch_of(2)
    buffer = b"??" + one + two + b"??"
    end = len(buffer) - 2
    assert batch_positions(buffer, 2, end).tolist() == [2, 2 + len(one)]
    assert [position for position, _ in iterate_batches(buffer, 2, end)] == [2, 2 + len(one)]
    assert batch_positions(buffer, 2, end - 1).tolist() == [2]


def test_a_walk_stops_at_an_impossible_length() -> None:
    batch = batch_of(1)
    batch[8:12] = bytes(4)
    with pytest.raises(MalformedBatch):
        batch_positions(batch + batch)
    with pytest.raises(MalformedBatch):
        list(iterate_batches(batch + batch))


def test_many_headers_at_once_equal_single_headers() -> None:
    buffer = b"".join(
        batch_of(count, base_offset=7 * count, producer_id=count, base_sequence=3, producer_epoch=1)
        for count in (1, 2, 200)
    )
    positions = batch_positions(memoryview(buffer))
    together = headers_of(buffer, positions)
    assert together.dtype.names == BatchHeader._fields
    singly = [BatchHeader.parse(buffer, position) for position in positions.tolist()]
    assert [BatchHeader._make(row) for row in together.tolist()] == singly


def test_no_positions_give_no_headers() -> None:
    assert len(headers_of(b"", np.empty(0, np.int64))) == 0
    with pytest.raises(IndexError):
        headers_of(bytes(HEADER_SIZE), np.array([1]))


def test_stamping_a_place_leaves_the_checksum_valid() -> None:
    buffer = bytearray(3) + batch_of(2)
    stamp(buffer, 3, 2**40, 17)
    header = BatchHeader.parse(buffer, 3)
    assert (header.base_offset, header.leader_epoch, header.last_offset) == (2**40, 17, 2**40 + 1)
    assert header.crc == checksum(buffer, 3, len(buffer))
    assert [record.offset for record in decode_records(buffer[3:])] == [2**40, 2**40 + 1]


def test_stamping_the_append_time_dates_all_records() -> None:
    batch = batch_of(3)
    restamp_timestamps(memoryview(batch), 0, TimestampType.LOG_APPEND_TIME, 5_555)
    assert is_sealed(batch)
    assert {(r.timestamp, r.timestamp_type) for r in decode_records(batch)} == {
        (5_555, TimestampType.LOG_APPEND_TIME)
    }
    restamp_timestamps(batch, 0, TimestampType.CREATE_TIME, 1_002)
    assert batch == batch_of(3)


def test_stamping_an_identity_leaves_all_else() -> None:
    batch = batch_of(3)
    restamp_identity(
        batch, 0, producer_id=4, producer_epoch=1, base_sequence=-1, is_transactional=True
    )
    expected = batch_of(3, producer_id=4, producer_epoch=1, is_transactional=True)
    assert batch == expected
    restamp_identity(
        batch, 0, producer_id=-1, producer_epoch=-1, base_sequence=-1, is_transactional=False
    )
    assert batch == batch_of(3)
