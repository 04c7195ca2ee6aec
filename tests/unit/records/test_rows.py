"""Rows and batches at their edges: limits, gaps, times, refusals, memory."""

from __future__ import annotations

import struct
import subprocess
import sys

import numpy as np
import pyarrow as pa
import pytest

from tidelog.records.batch import BatchHeader, MalformedBatch, TimestampType, seal
from tidelog.records.compression import Compression, DecompressedTooLarge
from tidelog.records.records import NewRecord, Record, decode_records, encode_batch
from tidelog.records.row_columns import ROW_SCHEMA
from tidelog.records.rows.row_decoding import decode_rows
from tidelog.records.rows.row_encoding import EncodedBatch, encode_rows

MIB = 1024 * 1024
STAMP = 1_700_000_000_000


def batch_at(offset: int, count: int = 3, size: int = 10) -> bytearray:
    records = [NewRecord(b"v" * size, b"key", [("h", b"x")], STAMP + i) for i in range(count)]
    return encode_batch(records, base_offset=offset)


def one(buffer: bytes | bytearray) -> pa.RecordBatch:
    (rows,) = decode_rows(buffer)
    return rows


def read(batches: list[EncodedBatch]) -> list[Record]:
    return list(decode_records(b"".join(part for b in batches for part in (b.header, b.records))))


def test_field_ids_and_types_are_the_ones_that_stored_files_have() -> None:
    found = [
        (int(field.metadata[b"PARQUET:field_id"]), field.name, str(field.type), field.nullable)
        for field in ROW_SCHEMA
    ]
    headers = "list<element: struct<key: string not null, value: binary>>"
    assert found == [
        (1, "offset", "int64", False),
        (2, "timestamp", "timestamp[us, tz=UTC]", True),
        (3, "timestamp_type", "int32", False),
        (4, "key", "binary", True),
        (5, "value", "binary", True),
        (6, "headers", headers, True),
        (7, "producer_id", "int64", True),
        (8, "producer_epoch", "int32", True),
        (9, "transaction", "int64", True),
    ]


def test_no_batches_make_no_rows() -> None:
    assert list(decode_rows(b"")) == []
    assert list(decode_rows(batch_at(0), np.empty(0, np.int64))) == []


def test_offsets_that_do_not_grow_are_refused() -> None:
    with pytest.raises(MalformedBatch, match="do not grow"):
        list(decode_rows(batch_at(5) + batch_at(7)))


def test_a_record_beyond_its_batchs_last_offset_is_refused() -> None:
    batch = batch_at(5)
    struct.pack_into(">i", batch, 23, 1)
    seal(batch, 0)
    with pytest.raises(MalformedBatch, match="at offset 5"):
        list(decode_rows(batch))


def test_a_wrong_checksum_is_refused_unless_it_was_checked_elsewhere() -> None:
    batch = batch_at(5)
    batch[17] ^= 1
    with pytest.raises(MalformedBatch, match="checksum"):
        list(decode_rows(batch))
    assert [rows.num_rows for rows in decode_rows(batch, check_crc=False)] == [3]


@pytest.mark.parametrize("cut", [1, 60, 70])
def test_a_batch_that_is_cut_off_is_refused_if_positions_name_the_batch(cut: int) -> None:
    batch = batch_at(5)
    with pytest.raises(MalformedBatch):
        list(decode_rows(batch[:-cut], np.zeros(1, np.int64)))


def test_positions_choose_the_batches_and_must_ascend() -> None:
    first, second, third = batch_at(0), batch_at(10), batch_at(20)
    starts = np.array([0, len(first) + len(second)], np.int64)
    (rows,) = decode_rows(first + second + third, starts, ordinals=np.array([4, -1], np.int64))
    assert rows.column("offset").to_pylist() == [0, 1, 2, 20, 21, 22]
    assert rows.column("transaction").to_pylist() == [4, 4, 4, None, None, None]
    with pytest.raises(ValueError, match="ascend"):
        list(decode_rows(first + second, starts[::-1]))
    with pytest.raises(ValueError, match="3 ordinals for 1 batches"):
        list(decode_rows(first, ordinals=np.zeros(3, np.int64)))


def test_a_batch_that_claims_too_many_records_is_refused_before_memory_is_taken() -> None:
    batch = batch_at(0)
    struct.pack_into(">i", batch, 57, 2**31 - 1)
    seal(batch, 0)
    with pytest.raises(MalformedBatch):
        list(decode_rows(batch))


def test_a_compressed_batch_may_not_outgrow_its_limit() -> None:
    batch = encode_batch([NewRecord(b"0" * MIB)], compression=Compression.ZSTD)
    with pytest.raises(DecompressedTooLarge):
        list(decode_rows(batch, decompressed_bytes_max=MIB))
    assert [rows.num_rows for rows in decode_rows(batch, decompressed_bytes_max=2 * MIB)] == [1]


@pytest.mark.parametrize("codec", [Compression.NONE, Compression.LZ4])
def test_memory_is_that_of_a_slice_however_much_there_is(codec: Compression) -> None:
    records = [NewRecord(b"v" * 1000, timestamp=STAMP)] * 1000
    batches = [encode_batch(records, base_offset=1000 * i, compression=codec) for i in range(64)]
    buffer = b"".join(batches)
    # Count only memory that is allocated from here on.
    before, peak, rows = pa.total_allocated_bytes(), 0, 0
    for slice_rows in decode_rows(buffer, slice_bytes=4 * MIB):
        rows += slice_rows.num_rows
        assert slice_rows.nbytes < 5 * MIB
        peak = max(peak, pa.total_allocated_bytes() - before)
    assert rows == 64_000
    assert peak < 16 * MIB


def test_one_batch_of_many_records_comes_in_pieces() -> None:
    records = [NewRecord(None, timestamp=STAMP + i) for i in range(1000)]
    batch = encode_batch(records, base_offset=7, compression=Compression.ZSTD)
    pieces = list(decode_rows(batch, slice_rows=300))
    assert [piece.num_rows for piece in pieces] == [300, 300, 300, 100]
    assert pieces[3].column("offset")[99].as_py() == 1006


def test_a_range_without_rows_is_an_empty_batch() -> None:
    batches = encode_rows(pa.RecordBatch.from_pylist([], ROW_SCHEMA), 5, 9, leader_epoch=3)
    (batch,) = batches
    header = BatchHeader.parse(batch.header)
    assert (header.base_offset, header.last_offset, header.record_count) == (5, 8, 0)
    assert header.leader_epoch == 3
    assert read(batches) == []


def test_a_gap_that_no_batch_can_span_takes_empty_batches() -> None:
    rows = one(batch_at(0) + batch_at(2**33))
    batches = encode_rows(rows, 0, 2**34)
    covered = [(batch.base_offset, batch.last_offset) for batch in batches]
    assert covered[0] == (0, 2**31 - 1)
    assert [last + 1 for _, last in covered[:-1]] == [first for first, _ in covered[1:]]
    assert covered[-1][1] == 2**34 - 1
    assert [record.offset for record in read(batches)] == [0, 1, 2, 2**33, 2**33 + 1, 2**33 + 2]


def test_rows_dated_by_the_broker_share_a_batch_only_with_their_time() -> None:
    dated = [
        encode_batch(
            [NewRecord(b"v", timestamp=STAMP + time)] * 2,
            timestamp_type=TimestampType(by_broker),
            base_offset=2 * index,
        )
        for index, (time, by_broker) in enumerate([(0, 1), (0, 1), (1, 1), (1, 0), (2, 0), (2, 1)])
    ]
    buffer = b"".join(dated)
    batches = encode_rows(one(buffer), 0, 12)
    assert [batch.record_count for batch in batches] == [4, 2, 4, 2]
    assert read(batches) == list(decode_records(buffer))


def test_rows_outside_the_range_are_a_mistake() -> None:
    rows = one(batch_at(5))
    for first, following in [(6, 9), (5, 7), (5, 5)]:
        with pytest.raises(ValueError, match="offset"):
            encode_rows(rows, first, following)


def test_elements_under_a_null_list_are_no_headers() -> None:
    """Arrow permits a null list whose offsets span elements, and other writers may produce one."""
    rows = one(batch_at(0, count=2))
    offsets = pa.py_buffer(np.array([0, 1, 2], np.int32))
    bitmap = pa.py_buffer(b"\x02")
    headers = pa.Array.from_buffers(
        rows.schema.field("headers").type,
        2,
        [bitmap, offsets],
        children=[rows.column("headers").values],
    )
    rows = rows.set_column(5, rows.schema.field("headers"), headers)
    assert [list(record.headers) for record in read(encode_rows(rows, 0, 2))] == [[], [("h", b"x")]]
    assert [list(r.headers) for r in read(encode_rows(rows.slice(1), 1, 2))] == [[("h", b"x")]]


def test_encoding_rows_does_not_import_pandas() -> None:
    """Arrow imports pandas for some conversions if it is installed. This costs half a second, and
    memory for ever."""
    program = (
        "import sys\n"
        "from tidelog.records.records import NewRecord, encode_batch\n"
        "from tidelog.records.rows.row_decoding import decode_rows\n"
        "from tidelog.records.rows.row_encoding import encode_rows\n"
        "for headers in ((), (('name', b'x'),)):\n"
        "    (rows,) = decode_rows(encode_batch([NewRecord(b'v', b'k', headers, 1)]))\n"
        "    encode_rows(rows, 0, 1)\n"
        "sys.exit('pandas' in sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
