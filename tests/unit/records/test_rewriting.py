"""Batches in the form in which their topic stores them."""

from __future__ import annotations

import random
import struct

import crc32c
import pytest

from tidelog.records.batch import BatchHeader, TimestampType
from tidelog.records.compression import Compression
from tidelog.records.records import NewRecord, decode_records, encode_batch
from tidelog.records.validate.validation import (
    AcceptedBatches,
    BatchErrorCode,
    BatchLimits,
    InvalidBatch,
    accept_batches,
    rewrite,
    validate,
)

NOW_MS = 1_800_000_000_000
RECORDS = [
    NewRecord(b"value %d" % i * 20, b"key", [("h", b"x")], 1_700_000_000_000 + i) for i in range(50)
]


def contents(buffer: bytes | bytearray | memoryview) -> list[tuple[object, ...]]:
    return [(r.timestamp, r.key, r.value, list(r.headers)) for r in decode_records(buffer)]


def accepted(request: bytearray, limits: BatchLimits) -> AcceptedBatches:
    (verdict,) = accept_batches([request], limits, NOW_MS)
    assert isinstance(verdict, AcceptedBatches), verdict
    return verdict


def with_maximum(batch: bytearray, timestamp: int) -> bytearray:
    struct.pack_into(">q", batch, 35, timestamp)
    struct.pack_into(">I", batch, 17, crc32c.crc32c(bytes(batch[21:])))
    return batch


def test_an_unchanged_batch_is_not_copied() -> None:
    batch = encode_batch(RECORDS, compression=Compression.LZ4)
    verdict = accepted(batch, BatchLimits())
    assert verdict.buffer is batch
    assert verdict.batches[0].length == len(batch)


@pytest.mark.parametrize("source", Compression)
@pytest.mark.parametrize("target", Compression)
@pytest.mark.parametrize("timestamp_type", TimestampType)
def test_every_codec_becomes_every_other(
    source: Compression, target: Compression, timestamp_type: TimestampType
) -> None:
    batch = encode_batch(
        RECORDS,
        compression=source,
        producer_id=8,
        producer_epoch=1,
        base_sequence=5,
        is_transactional=True,
    )
    before = bytes(batch)
    limits = BatchLimits(compression=target, timestamp_type=timestamp_type)
    stored, (info,) = accepted(batch, limits)
    header = BatchHeader.parse(stored)
    assert batch == before
    assert (info.position, info.length) == (0, len(stored))
    assert header.crc == crc32c.crc32c(bytes(stored[21:]))
    assert header.compression is info.codec is target
    assert header.timestamp_type is info.timestamp_type is timestamp_type
    assert header.max_timestamp == info.max_timestamp
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (8, 1, 5)
    assert header.is_transactional
    assert not info.needs_rewrite
    expected = contents(batch)
    if timestamp_type is TimestampType.LOG_APPEND_TIME:
        expected = [(NOW_MS, *rest) for _, *rest in expected]
    assert contents(stored) == expected


def test_a_wrong_maximum_is_put_right() -> None:
    batch = with_maximum(encode_batch(RECORDS), 0)
    stored, (info,) = accepted(batch, BatchLimits())
    assert stored == encode_batch(RECORDS)
    assert not info.needs_rewrite
    (again,) = validate([stored], BatchLimits(), NOW_MS)
    assert again == [info]


def test_a_batch_within_a_request_is_rewritten_alone() -> None:
    batch = with_maximum(encode_batch(RECORDS), 0)
    request = encode_batch(RECORDS[:3]) + batch
    (verdict,) = validate([request], BatchLimits(batches_max=2), NOW_MS)
    assert isinstance(verdict, list)
    rewritten, info = rewrite(request, verdict[1], BatchLimits())
    assert rewritten == encode_batch(RECORDS)
    assert (info.position, info.length) == (0, len(rewritten))


def test_several_batches_of_a_request_stay_together() -> None:
    request = encode_batch(RECORDS[:3]) + with_maximum(encode_batch(RECORDS), 0)
    limits = BatchLimits(batches_max=2, compression=Compression.GZIP)
    stored, infos = accepted(request, limits)
    assert [info.position for info in infos] == [0, infos[0].length]
    assert sum(info.length for info in infos) == len(stored)
    assert contents(stored) == contents(request)


def test_a_batch_that_outgrows_the_topics_maximum_by_its_codec_is_refused() -> None:
    text = random.Random(1).randbytes(100) * 100
    batch = encode_batch([NewRecord(text, timestamp=1)], compression=Compression.ZSTD)
    limits = BatchLimits(batch_bytes_max=1000, compression=Compression.NONE)
    good = encode_batch([NewRecord(b"small", timestamp=1)])
    refused, other = accept_batches([batch, good], limits, NOW_MS)
    assert isinstance(refused, InvalidBatch)
    assert refused.error_code == BatchErrorCode.MESSAGE_TOO_LARGE
    assert isinstance(other, AcceptedBatches)


def test_invalid_batches_stay_refused() -> None:
    (verdict,) = accept_batches([b"nothing"], BatchLimits(compression=Compression.ZSTD), NOW_MS)
    assert isinstance(verdict, InvalidBatch)


def test_the_topics_level_is_used() -> None:
    chance = random.Random(2)
    words = [chance.randbytes(5) for _ in range(100)]
    text = b"".join(chance.choices(words, k=5000))
    batch = encode_batch([NewRecord(text, timestamp=1)])
    sizes = [
        len(
            accepted(
                batch, BatchLimits(compression=Compression.GZIP, compression_level=level)
            ).buffer
        )
        for level in (1, 9)
    ]
    assert sizes[1] < sizes[0]
