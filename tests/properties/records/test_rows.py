"""Batches become rows and rows become batches. Both are compared with the plain reader and with
other readers."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from aiokafka.record.memory_records import MemoryRecords as AioRecords
from hypothesis import example, given
from hypothesis import strategies as st
from kafka.record.memory_records import MemoryRecords as KafkaPythonRecords

from tests.properties.records.batches import damaged, record_lists
from tests.properties.records.logs import Log, Row, codecs, logs, row
from tidelog.errors import TidelogError
from tidelog.records.batch import MalformedBatch, batch_positions
from tidelog.records.compression import Compression, CorruptCompression, DecompressedTooLarge
from tidelog.records.records import NewRecord, decode_records, encode_batch
from tidelog.records.row_columns import ROW_SCHEMA
from tidelog.records.rows.row_decoding import decode_rows
from tidelog.records.rows.row_encoding import EncodedBatch, encode_rows


def rows_of(log: Log, **limits: int) -> list[pa.RecordBatch]:
    batches = list(
        decode_rows(
            log.buffer, ordinals=np.array(log.ordinals, np.int64), aborted=log.aborted, **limits
        )
    )
    for batch in batches:
        batch.validate(full=True)
        assert batch.num_rows
        assert batch.schema.equals(ROW_SCHEMA, check_metadata=True)
    return batches


def plain(batches: Sequence[pa.RecordBatch]) -> list[Row]:
    """The rows in Python's types; timestamps as microseconds, as some are too far for datetime."""
    table = pa.Table.from_batches(batches, ROW_SCHEMA)
    stamps = table.column("timestamp").cast(pa.int64())
    rows: list[Row] = table.set_column(1, "timestamp", stamps).to_pylist()
    return rows


@given(log=logs())
def test_rows_are_the_committed_records(log: Log) -> None:
    assert plain(rows_of(log)) == log.expected


@given(log=logs(), slice_bytes=st.integers(1, 5000), slice_rows=st.integers(1, 50))
def test_slices_are_bounded_and_their_size_changes_nothing(
    log: Log, slice_bytes: int, slice_rows: int
) -> None:
    batches = rows_of(log, slice_bytes=slice_bytes, slice_rows=slice_rows)
    assert plain(batches) == log.expected
    assert all(batch.num_rows <= slice_rows for batch in batches)


def joined(batches: Sequence[EncodedBatch]) -> bytes:
    return b"".join(piece for batch in batches for piece in (batch.header, bytes(batch.records)))


def as_one(batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    if not batches:
        return pa.RecordBatch.from_pylist([], ROW_SCHEMA)
    return pa.Table.from_batches(batches).combine_chunks().to_batches()[0]


def contents(record: Any) -> tuple[object, ...]:
    headers = [(name, value) for name, value in record.headers]
    return record.offset, record.timestamp, record.key, record.value, headers


@given(log=logs(), codec=codecs, batch_bytes=st.integers(1, 3000), data=st.data())
def test_batches_made_of_rows_hold_the_same_records_and_cover_every_offset(
    log: Log, codec: Compression, batch_bytes: int, data: st.DataObject
) -> None:
    rows = as_one(rows_of(log))
    first = data.draw(st.integers(0, rows.num_rows))
    chosen = rows.slice(first, data.draw(st.integers(0, rows.num_rows)))
    offsets = chosen.column("offset").to_pylist()
    begin = offsets[0] - data.draw(st.sampled_from([0, 0, 3])) if offsets else 0
    begin = max(begin, 0)
    end = (offsets[-1] if offsets else 0) + data.draw(st.sampled_from([1, 1, 9, 2**33]))
    batches = encode_rows(
        chosen, begin, end, compression=codec, batch_bytes=batch_bytes, leader_epoch=5
    )
    position = begin
    for batch in batches:
        assert batch.base_offset == position
        assert batch.last_offset - batch.base_offset < 2**31
        position = batch.last_offset + 1
    assert position == end
    encoded = joined(batches)
    expected = [
        {**expected, "producer_id": None, "producer_epoch": None, "transaction": None}
        for expected in plain([chosen])
    ]
    assert [row(record, (-1, -1, -1)) for record in decode_records(encoded)] == expected
    assert plain(list(decode_rows(encoded))) == expected


@pytest.mark.parametrize("reader", [AioRecords, KafkaPythonRecords])
@given(log=logs(), codec=codecs, batch_bytes=st.integers(1, 3000))
def test_other_libraries_read_batches_made_of_rows(
    reader: type[AioRecords], log: Log, codec: Compression, batch_bytes: int
) -> None:
    if codec is Compression.SNAPPY and reader is KafkaPythonRecords:
        return  # reading it would need an extension that must be compiled
    rows = as_one(rows_of(log))
    encoded = joined(
        encode_rows(rows, 0, log.next_offset + 1, compression=codec, batch_bytes=batch_bytes)
    )
    theirs = reader(encoded)
    found: list[tuple[object, ...]] = []
    while theirs.has_next():
        batch = theirs.next_batch()
        assert batch is not None
        assert batch.validate_crc()
        found += [contents(record) for record in batch]
    assert found == [contents(record) for record in decode_records(encoded)]
    assert len(found) == len(log.expected)


# The count becomes 0, with a right checksum, while the bytes of the records stay.
@example(records=[NewRecord(None, timestamp=0)], codec=Compression.NONE, seed=573)
@given(records=record_lists(), codec=codecs, seed=st.integers(0, 2**32))
def test_damaged_batches_are_refused_or_read_like_the_plain_reader(
    records: list[Any], codec: Compression, seed: int
) -> None:
    buffer = damaged(bytes(encode_batch(records, compression=codec)), random.Random(seed))
    limit = 1 << 20
    try:
        if not len(batch_positions(buffer)):
            return
        batches = list(decode_rows(buffer, decompressed_bytes_max=limit))
    except (MalformedBatch, CorruptCompression, DecompressedTooLarge):
        return
    except TidelogError as error:
        raise AssertionError(error) from error
    for batch in batches:
        batch.validate(full=True)
    plainly = list(decode_records(buffer, decompressed_bytes_max=limit))
    found = [(r["offset"], r["key"], r["value"]) for r in plain(batches)]
    assert found == [(r.offset, r.key, r.value) for r in plainly]
