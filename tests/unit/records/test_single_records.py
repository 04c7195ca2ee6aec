"""Single records written and read in plain Python."""

from __future__ import annotations

import pytest

from tidelog.records.batch import MalformedBatch, TimestampType
from tidelog.records.compression import Compression, DecompressedTooLarge
from tidelog.records.records import NewRecord, Record, decode_records, encode_batch


def test_null_and_empty_stay_apart() -> None:
    records = [
        NewRecord(None, b"", [("null", None), ("empty", b"")], 5),
        NewRecord(b"", None, (), 3),
    ]
    assert list(decode_records(encode_batch(records, base_offset=9))) == [
        Record(9, 5, TimestampType.CREATE_TIME, b"", None, [("null", None), ("empty", b"")]),
        Record(10, 3, TimestampType.CREATE_TIME, None, b"", []),
    ]


def test_a_batch_cut_off_by_the_end_is_left_out() -> None:
    one, two = encode_batch([NewRecord(b"1")]), encode_batch([NewRecord(b"2")])
    for cut in range(len(two)):
        assert [record.value for record in decode_records(one + two[:cut])] == [b"1"]


def test_a_changed_byte_is_noticed_unless_told_otherwise() -> None:
    batch = encode_batch([NewRecord(b"abc")])
    batch[-2] ^= 1
    with pytest.raises(MalformedBatch, match="checksum"):
        list(decode_records(batch))
    assert [record.value for record in decode_records(batch, check_crc=False)] == [b"abb"]


def test_decompression_is_bounded() -> None:
    batch = encode_batch([NewRecord(bytes(10_000))], compression=Compression.GZIP)
    with pytest.raises(DecompressedTooLarge):
        list(decode_records(batch, decompressed_bytes_max=9_999))


def test_offsets_may_have_gaps() -> None:
    # A batch without its aborted or compacted records keeps the offsets of the other records.
    batch = encode_batch([NewRecord(b"a"), NewRecord(b"b")])
    position = batch.index(b"\2b") - 2
    assert batch[position] == 2
    batch[position] = 10
    assert [record.offset for record in decode_records(batch, check_crc=False)] == [0, 5]


def test_an_empty_batch_cannot_be_written() -> None:
    with pytest.raises(ValueError, match="at least one"):
        encode_batch([])
