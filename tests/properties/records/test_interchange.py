"""Batches that other implementations write and read."""

from __future__ import annotations

import pytest
from aiokafka.record.default_records import DefaultRecordBatchBuilder as AioBuilder
from aiokafka.record.memory_records import MemoryRecords as AioRecords
from hypothesis import given
from hypothesis import strategies as st
from kafka.record.default_records import DefaultRecordBatchBuilder as KafkaPythonBuilder
from kafka.record.memory_records import MemoryRecords as KafkaPythonRecords

from tests.properties.records.batches import NOW_MS, built_by, record_lists
from tidelog.records.compression import Compression
from tidelog.records.records import NewRecord, decode_records, encode_batch
from tidelog.records.validate.validation import BatchInfo, BatchLimits, validate

BUILDERS = (AioBuilder, KafkaPythonBuilder)
READERS = (AioRecords, KafkaPythonRecords)
LIMITS = BatchLimits(batch_bytes_max=1 << 30)
codecs = st.sampled_from(Compression)


def speaks(implementation: object, codec: Compression) -> bool:
    """kafka-python needs an extension for snappy that would have to be compiled."""
    return codec is not Compression.SNAPPY or implementation in (AioBuilder, AioRecords)


def contents(record: NewRecord) -> tuple[object, ...]:
    return record.timestamp, record.key, record.value, list(record.headers)


def accepted(batch: bytes) -> BatchInfo:
    (verdict,) = validate([batch], LIMITS, NOW_MS)
    assert isinstance(verdict, list), verdict
    (info,) = verdict
    return info


@pytest.mark.parametrize("builder", BUILDERS)
@given(records=record_lists(), codec=codecs)
def test_their_batches_are_valid_and_hold_the_same_records(
    builder: type[AioBuilder], records: list[NewRecord], codec: Compression
) -> None:
    if not speaks(builder, codec):
        return
    batch = built_by(builder, records, codec)
    info = accepted(batch)
    stamps = [record.timestamp for record in records]
    assert info.header.record_count == len(records)
    assert info.length == len(batch)
    assert info.codec in (codec, Compression.NONE), "a codec that saves nothing is skipped"
    assert (info.first_timestamp, info.max_timestamp) == (stamps[0], max(stamps))
    assert info.max_timestamp_delta == stamps.index(max(stamps))
    assert not info.needs_rewrite
    decoded = list(decode_records(batch))
    assert [(r.timestamp, r.key, r.value, list(r.headers)) for r in decoded] == [
        contents(record) for record in records
    ]
    assert [record.offset for record in decoded] == list(range(len(records)))


@pytest.mark.parametrize("reader", READERS)
@given(records=record_lists(), codec=codecs, base_offset=st.integers(0, 2**62))
def test_other_libraries_read_our_batches(
    reader: type[AioRecords], records: list[NewRecord], codec: Compression, base_offset: int
) -> None:
    if not speaks(reader, codec):
        return
    batch = encode_batch(records, compression=codec, base_offset=base_offset)
    theirs = reader(bytes(batch))
    read = theirs.next_batch()
    assert read is not None
    assert read.validate_crc()
    found = [(r.offset, r.timestamp, r.key, r.value, list(r.headers)) for r in read]
    assert found == [(base_offset + i, *contents(record)) for i, record in enumerate(records)]
    assert not theirs.has_next()
