"""The batches that producers may send, and the errors of all others."""

from __future__ import annotations

import random
import struct
import threading

import crc32c
import pytest
import zstandard

from tidelog.records.batch import BatchHeader, TimestampType
from tidelog.records.compression import Compression
from tidelog.records.records import NewRecord, encode_batch
from tidelog.records.validate.rules import RECORD_ERRORS_MAX, SMALL_BYTES, LargeBatch
from tidelog.records.validate.validation import (
    BatchErrorCode,
    BatchInfo,
    BatchLimits,
    InvalidBatch,
    validate,
)

NOW_MS = 1_800_000_000_000
SOME_TIME = 1_700_000_000_000
LIMITS = BatchLimits(batch_bytes_max=1 << 30)

ATTRIBUTES, LAST_OFFSET_DELTA, BASE_TIMESTAMP, MAX_TIMESTAMP = 21, 23, 27, 35
PRODUCER_ID, RECORD_COUNT = 43, 57


def records(*timestamps: int) -> list[NewRecord]:
    return [NewRecord(b"value", b"key", (), timestamp) for timestamp in timestamps]


def changed(batch: bytearray, position: int, layout: str, value: int) -> bytearray:
    """The batch with one header field replaced, and the right checksum."""
    copy = bytearray(batch)
    struct.pack_into(layout, copy, position, value)
    struct.pack_into(">I", copy, 17, crc32c.crc32c(bytes(copy[21:])))
    return copy


def handmade(body: bytes, count: int = 1) -> bytearray:
    """A batch whose records are any bytes."""
    batch = encode_batch(records(*[SOME_TIME] * count))[:61] + body
    struct.pack_into(">i", batch, 8, len(batch) - 12)
    return changed(batch, MAX_TIMESTAMP, ">q", SOME_TIME)


def refusal(request: bytes | bytearray, limits: BatchLimits = LIMITS) -> InvalidBatch:
    (verdict,) = validate([request], limits, NOW_MS)
    assert isinstance(verdict, InvalidBatch), verdict
    return verdict


def accepted(request: bytes | bytearray, limits: BatchLimits = LIMITS) -> BatchInfo:
    (verdict,) = validate([request], limits, NOW_MS)
    assert isinstance(verdict, list), verdict
    (info,) = verdict
    return info


# Facts of a valid batch --------------------------------------------------------------------------


def test_validation_returns_the_facts_of_a_batch() -> None:
    stamps = [SOME_TIME, SOME_TIME + 7, SOME_TIME - 3, SOME_TIME + 7]
    batch = encode_batch(
        records(*stamps),
        compression=Compression.LZ4,
        producer_id=12,
        producer_epoch=3,
        base_sequence=2**31 - 2,
        is_transactional=True,
    )
    assert accepted(batch) == BatchInfo(
        position=0,
        length=len(batch),
        header=BatchHeader.parse(batch),
        codec=Compression.LZ4,
        timestamp_type=TimestampType.CREATE_TIME,
        first_timestamp=SOME_TIME,
        max_timestamp=SOME_TIME + 7,
        max_timestamp_delta=1,
        needs_rewrite=False,
    )


def test_the_first_timestamp_is_the_first_records_even_if_the_base_is_another() -> None:
    # KafkaJS takes the least timestamp for the base.
    batch = encode_batch(records(SOME_TIME, SOME_TIME + 10))
    moved = changed(batch, BASE_TIMESTAMP, ">q", SOME_TIME + 100)
    moved = changed(moved, MAX_TIMESTAMP, ">q", SOME_TIME + 110)
    info = accepted(moved)
    assert (info.first_timestamp, info.max_timestamp) == (SOME_TIME + 100, SOME_TIME + 110)


def test_leftovers_without_a_producer_id_are_accepted() -> None:
    # KafkaJS sends epoch 0 and sequence 0 without a producer id.
    batch = encode_batch(records(SOME_TIME), producer_epoch=0, base_sequence=0)
    assert not accepted(batch).header.has_producer_id


@pytest.mark.parametrize("stated", [0, -1, SOME_TIME - 1, SOME_TIME + 8, 2**63 - 1])
def test_a_wrong_maximum_is_accepted_but_not_believed(stated: int) -> None:
    batch = encode_batch(records(SOME_TIME, SOME_TIME + 7))
    info = accepted(changed(batch, MAX_TIMESTAMP, ">q", stated))
    assert info.max_timestamp == SOME_TIME + 7
    assert info.needs_rewrite


def test_records_without_timestamps_are_accepted_everywhere() -> None:
    info = accepted(encode_batch(records(-1, -1)), BatchLimits(timestamp_before_max_ms=0))
    assert (info.first_timestamp, info.max_timestamp) == (-1, -1)
    assert not info.needs_rewrite


def test_the_append_time_replaces_any_timestamps_of_a_batch() -> None:
    limits = BatchLimits(timestamp_type=TimestampType.LOG_APPEND_TIME, timestamp_before_max_ms=0)
    for stamp in (SOME_TIME, 0, 2**62, NOW_MS + 10**12):
        info = accepted(encode_batch(records(stamp, stamp)), limits)
        assert info.timestamp_type is TimestampType.LOG_APPEND_TIME
        assert (info.first_timestamp, info.max_timestamp) == (NOW_MS, NOW_MS)
        assert info.needs_rewrite


def test_another_codec_than_the_topics_needs_a_rewrite() -> None:
    batch = encode_batch(records(SOME_TIME), compression=Compression.GZIP)
    assert accepted(batch, BatchLimits(compression=Compression.ZSTD)).needs_rewrite
    assert accepted(batch, BatchLimits(compression=Compression.NONE)).needs_rewrite
    assert not accepted(batch, BatchLimits(compression=Compression.GZIP)).needs_rewrite


def test_several_batches_are_refused_unless_allowed() -> None:
    one, two = encode_batch(records(SOME_TIME)), encode_batch(records(SOME_TIME, SOME_TIME))
    assert refusal(one + two).error_code == BatchErrorCode.INVALID_RECORD
    (verdict,) = validate([one + two], BatchLimits(batches_max=2), NOW_MS)
    assert isinstance(verdict, list)
    assert [(info.position, info.header.record_count) for info in verdict] == [
        (0, 1),
        (len(one), 2),
    ]
    (verdict,) = validate([one + two + one], BatchLimits(batches_max=2), NOW_MS)
    assert isinstance(verdict, InvalidBatch)


def test_one_invalid_batch_refuses_all_batches_of_a_partition() -> None:
    good = encode_batch(records(SOME_TIME))
    limits = BatchLimits(batches_max=3)
    for bad in (handmade(b"\x0c\1" + bytes(5)), handmade(b"?", 1)):
        for request in (good + bad, bad + good, good + bad + good):
            (verdict,) = validate([request], limits, NOW_MS)
            assert isinstance(verdict, InvalidBatch)


# Refusals of whole batches -----------------------------------------------------------------------


@pytest.mark.parametrize("request_bytes", [b"", b"\0" * 60, bytes(16) + b"\2"])
def test_no_batch_at_all_is_an_invalid_record(request_bytes: bytes) -> None:
    assert refusal(request_bytes).error_code == BatchErrorCode.INVALID_RECORD


@pytest.mark.parametrize("magic", [0, 1, 3, 255])
def test_other_formats_are_invalid_records(magic: int) -> None:
    batch = encode_batch(records(SOME_TIME))
    batch[16] = magic
    assert refusal(batch).error_code == BatchErrorCode.INVALID_RECORD


def test_a_changed_byte_is_a_corrupt_message() -> None:
    batch = encode_batch(records(SOME_TIME))
    batch[-1] ^= 1
    assert refusal(batch).error_code == BatchErrorCode.CORRUPT_MESSAGE


def test_an_impossible_length_is_a_corrupt_message() -> None:
    batch = encode_batch(records(SOME_TIME))
    struct.pack_into(">i", batch, 8, 48)
    assert refusal(batch).error_code == BatchErrorCode.CORRUPT_MESSAGE


def test_a_cut_batch_and_bytes_behind_it_are_invalid_records() -> None:
    batch = encode_batch(records(SOME_TIME))
    assert refusal(batch[:-1]).error_code == BatchErrorCode.INVALID_RECORD
    assert refusal(batch + b"\0").error_code == BatchErrorCode.INVALID_RECORD


def test_a_batch_beyond_the_topics_maximum_is_too_large() -> None:
    batch = encode_batch([NewRecord(b"x" * 1000, timestamp=SOME_TIME)])
    verdict = refusal(batch, BatchLimits(batch_bytes_max=len(batch) - 1))
    assert verdict.error_code == BatchErrorCode.MESSAGE_TOO_LARGE
    assert "max.message.bytes" in verdict.message
    accepted(batch, BatchLimits(batch_bytes_max=len(batch)))


def test_decompressed_records_have_a_limit_too() -> None:
    batch = encode_batch(
        [NewRecord(b"x" * 100_000, timestamp=SOME_TIME)], compression=Compression.ZSTD
    )
    verdict = refusal(batch, BatchLimits(decompressed_bytes_max=100_000))
    assert verdict.error_code == BatchErrorCode.MESSAGE_TOO_LARGE
    accepted(batch, BatchLimits(decompressed_bytes_max=100_100))


def test_large_batches_can_be_left_for_later() -> None:
    def zeros(size: int) -> bytearray:
        return encode_batch([NewRecord(bytes(size))], compression=Compression.ZSTD)

    small, large = zeros(SMALL_BYTES), zeros(2 * SMALL_BYTES)
    plain = encode_batch([NewRecord(bytes(2 * SMALL_BYTES))])
    found = validate([small, large, plain, b"?"], LIMITS, NOW_MS, small_only=True)
    assert [type(each) for each in found] == [list, LargeBatch, list, InvalidBatch]
    assert isinstance(validate([large], LIMITS, NOW_MS)[0], list)
    # A batch that is refused in any case is refused at once.
    (refused,) = validate(
        [large], BatchLimits(decompressed_bytes_max=1000), NOW_MS, small_only=True
    )
    assert type(refused) is InvalidBatch


@pytest.mark.parametrize("limit", [0, -1, 2**31])
def test_a_limit_that_could_not_be_kept_is_refused(limit: int) -> None:
    with pytest.raises(ValueError, match="2 GiB"):
        BatchLimits(decompressed_bytes_max=limit)


def test_undecompressable_records_are_invalid() -> None:
    for codec in (1, 2, 3, 4):
        batch = changed(encode_batch(records(SOME_TIME)), ATTRIBUTES, ">h", codec)
        assert refusal(batch).error_code == BatchErrorCode.INVALID_RECORD


@pytest.mark.parametrize("codec", [5, 6, 7])
def test_unknown_codecs_are_unsupported(codec: int) -> None:
    batch = changed(encode_batch(records(SOME_TIME)), ATTRIBUTES, ">h", codec)
    assert refusal(batch).error_code == BatchErrorCode.UNSUPPORTED_COMPRESSION_TYPE


def test_zstd_needs_a_version_of_produce_that_knows_zstd() -> None:
    batch = encode_batch(records(SOME_TIME), compression=Compression.ZSTD)
    verdict = refusal(batch, BatchLimits(zstd_allowed=False))
    assert verdict.error_code == BatchErrorCode.UNSUPPORTED_COMPRESSION_TYPE


@pytest.mark.parametrize(
    ("position", "layout", "value"),
    [
        (RECORD_COUNT, ">i", 0),
        (RECORD_COUNT, ">i", -1),
        (RECORD_COUNT, ">i", 3),
        (RECORD_COUNT, ">i", 1),
        (LAST_OFFSET_DELTA, ">i", 2),
        (LAST_OFFSET_DELTA, ">i", -1),
        (0, ">q", 1),
        (PRODUCER_ID, ">q", 5),
        (PRODUCER_ID, ">q", -2),
        (ATTRIBUTES, ">h", 0x10),
        (ATTRIBUTES, ">h", 0x20),
        (ATTRIBUTES, ">h", 0x30),
        (ATTRIBUTES, ">h", 0x40),
        (ATTRIBUTES, ">h", 0x80),
        (ATTRIBUTES, ">h", -0x8000),
    ],
)
def test_headers_that_contradict_themselves_are_invalid_records(
    position: int, layout: str, value: int
) -> None:
    batch = encode_batch(records(SOME_TIME, SOME_TIME))
    accepted(batch)
    assert (
        refusal(changed(batch, position, layout, value)).error_code == BatchErrorCode.INVALID_RECORD
    )


def test_a_count_and_last_delta_that_agree_are_compared_with_the_records() -> None:
    batch = encode_batch(records(SOME_TIME, SOME_TIME))
    for count in (1, 3, 2**31 - 1):
        lie = changed(changed(batch, RECORD_COUNT, ">i", count), LAST_OFFSET_DELTA, ">i", count - 1)
        assert refusal(lie).error_code == BatchErrorCode.INVALID_RECORD


def test_producers_must_not_claim_an_append_time() -> None:
    batch = encode_batch(records(SOME_TIME), timestamp_type=TimestampType.LOG_APPEND_TIME)
    for limits in (LIMITS, BatchLimits(timestamp_type=TimestampType.LOG_APPEND_TIME)):
        assert refusal(batch, limits).error_code == BatchErrorCode.INVALID_TIMESTAMP


# Refusals of records -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (b"\x0c\1\0\0\1\1\0", "attributes"),
        (b"\x0c\0\0\2\1\1\0", "offset delta"),
        (b"\x0c\0\0\1\1\1\0", "offset delta"),
        (b"\x0c\0\0\0\3\1\0", "length of -2"),
        (b"\x0c\0\0\0\1\3\0", "length of -2"),
        (b"\x0c\0\0\0\1\1\1", "count of -1 headers"),
        (b"\x0c\0\0\0\1\1\2", "count of 1 headers"),
        (b"\x10\0\0\0\1\1\2\1\1", "header key is null"),
        (b"\x12\0\0\0\1\1\2\2\xff\1", "not UTF-8"),
        (b"\x10\0\0\0\1\1\2\0\3", "length of -2"),
        (b"\x0c\0\0\0\6\1\0", "does not fit"),
        (b"\x0c\0\0\0\2\1\0", "cut off"),
        (b"\x0e\0\0\0\1\1\0\0", "behind its last field"),
        (b"\x0c\0\0\0\1\1\0\0", "behind the last of 1 records"),
        (b"\x0e\0\0\0\1\1\0", "does not fit the batch"),
        (b"\x0b\0\0\0\1\1\0", "does not fit the batch"),
        (b"\x8c\x80\x80\x80\x10\0\0\0\1\1\0", "too many bits"),
        (b"\x8c\x80\x80\x80\x80\0\0\0\0\1\1\0", "too many bits"),
        (b"\x1e\0\x80\x80\x80\x80\x80\x80\x80\x80\x80\2\0\1\1\0", "too many bits"),
    ],
)
def test_malformed_records_are_named(body: bytes, why: str) -> None:
    accepted(handmade(b"\x0c\0\0\0\1\1\0"))
    verdict = refusal(handmade(body))
    assert verdict.error_code == BatchErrorCode.INVALID_RECORD
    assert why in verdict.message
    # A batch among many others takes another path through the code.
    many = [handmade(b"\x0c\0\0\0\1\1\0")] * 100
    assert validate([*many, handmade(body), *many], LIMITS, NOW_MS)[100] == verdict


def test_numbers_in_more_bytes_than_needed_are_read() -> None:
    accepted(handmade(b"\x8e\x80\x80\x80\0\0\0\0\x81\0\1\0"))
    accepted(handmade(b"\x1e\0\x80\x80\x80\x80\x80\x80\x80\x80\x80\0\0\1\1\0"))


@pytest.mark.parametrize("others", [0, 1_000])
def test_a_record_has_no_more_than_1024_headers(others: int) -> None:
    some = [NewRecord(b"v", None, (), SOME_TIME)] * others
    most = NewRecord(b"v", None, [("k", b"")] * 1024, SOME_TIME)
    accepted(encode_batch([*some, most]))
    more = most._replace(headers=[*most.headers, ("k", b"")])
    verdict = refusal(encode_batch([*some, more]))
    assert verdict.message == f"record {others}: a count of 1025 headers does not fit"


def test_header_keys_beyond_ascii_are_kept() -> None:
    headers = [("größe", b"1"), ("钥匙", None), ("", b"")]
    accepted(encode_batch([NewRecord(b"v", None, headers, SOME_TIME)]))


def test_a_compacted_topic_names_the_records_without_keys() -> None:
    some = [NewRecord(b"v", b"k" if i % 3 else None, (), SOME_TIME) for i in range(7)]
    verdict = refusal(encode_batch(some), BatchLimits(keys_required=True))
    assert verdict.error_code == BatchErrorCode.INVALID_RECORD
    assert [error.batch_index for error in verdict.record_errors] == [0, 3, 6]
    empty = [NewRecord(b"v", b"", (), SOME_TIME)]
    accepted(encode_batch(empty), BatchLimits(keys_required=True))


def test_timestamps_out_of_the_topics_bounds_are_named() -> None:
    limits = BatchLimits(timestamp_before_max_ms=1_000, timestamp_after_max_ms=500)
    stamps = [NOW_MS, NOW_MS - 1_000, NOW_MS - 1_001, NOW_MS + 500, NOW_MS + 501, -1]
    verdict = refusal(encode_batch(records(*stamps)), limits)
    assert verdict.error_code == BatchErrorCode.INVALID_TIMESTAMP
    assert [error.batch_index for error in verdict.record_errors] == [2, 4]
    assert str(NOW_MS + 501) in verdict.record_errors[1].message
    accepted(encode_batch(records(*stamps[:2], stamps[3], stamps[5])), limits)


@pytest.mark.parametrize("sign", [1, -1])
def test_timestamps_must_fit_microseconds(sign: int) -> None:
    limits = BatchLimits(timestamp_after_max_ms=2**63 - 1)
    bound = 9_223_372_036_854_775
    accepted(encode_batch(records(sign * bound)), limits)
    verdict = refusal(encode_batch(records(sign * (bound + 1))), limits)
    assert verdict.error_code == BatchErrorCode.INVALID_TIMESTAMP


def test_a_bad_timestamp_outweighs_a_missing_key() -> None:
    some = [NewRecord(b"v", None, (), SOME_TIME), NewRecord(b"v", b"k", (), NOW_MS * 2)]
    verdict = refusal(encode_batch(some), BatchLimits(keys_required=True))
    assert verdict.error_code == BatchErrorCode.INVALID_TIMESTAMP
    assert len(verdict.record_errors) == 2


def test_the_number_of_named_records_is_limited() -> None:
    some = [NewRecord(b"v", None, (), SOME_TIME)] * (3 * RECORD_ERRORS_MAX)
    verdict = refusal(encode_batch(some), BatchLimits(keys_required=True))
    assert [error.batch_index for error in verdict.record_errors] == list(range(RECORD_ERRORS_MAX))


# Many at once ------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 20, 500])
def test_a_bad_request_does_not_harm_other_requests(size: int) -> None:
    good = encode_batch(records(*range(SOME_TIME, SOME_TIME + size)))
    bad = bytearray(good)
    bad[62] ^= 1  # the first record's attributes
    struct.pack_into(">I", bad, 17, crc32c.crc32c(bytes(bad[21:])))
    corrupt = bytearray(good)
    corrupt[-1] ^= 1
    requests = [good, bad, b"", good, corrupt, bytes(200), good]
    verdicts = validate(requests, LIMITS, NOW_MS)
    assert [isinstance(verdict, list) for verdict in verdicts] == [
        request is good for request in requests
    ]


def test_each_request_may_have_its_own_limits() -> None:
    batch = encode_batch([NewRecord(b"v", None, (), SOME_TIME)])
    limits = [LIMITS, BatchLimits(keys_required=True), BatchLimits(batch_bytes_max=10), LIMITS]
    verdicts = validate([batch] * 4, limits, NOW_MS)
    assert [
        verdict.error_code if isinstance(verdict, InvalidBatch) else 0 for verdict in verdicts
    ] == [
        0,
        87,
        10,
        0,
    ]


def test_an_empty_request_gives_no_verdicts() -> None:
    assert validate([], LIMITS, NOW_MS) == []


def test_more_than_fits_one_group_is_validated_in_turns() -> None:
    chance = random.Random(5)
    requests = []
    for index in range(60):
        count = chance.choice((1, 10, 3000))
        some = [
            NewRecord(chance.randbytes(chance.randrange(400)), None, (), SOME_TIME + index)
            for _ in range(count)
        ]
        codec = chance.choice((Compression.NONE, Compression.LZ4))
        requests.append(encode_batch(some, compression=codec))
    verdicts = validate(requests, LIMITS, NOW_MS)
    assert [verdict[0].max_timestamp for verdict in verdicts if isinstance(verdict, list)] == [
        SOME_TIME + index for index in range(60)
    ]


def test_a_batch_of_very_many_records_is_examined_in_pieces() -> None:
    count = 150_000
    batch = encode_batch([NewRecord(None, timestamp=SOME_TIME)] * count)
    info = accepted(batch)
    assert (info.header.record_count, info.max_timestamp) == (count, SOME_TIME)
    spoilt = bytearray(batch)
    spoilt[-2] = 3  # the last value's length
    struct.pack_into(">I", spoilt, 17, crc32c.crc32c(bytes(spoilt[21:])))
    assert f"record {count - 1}: " in refusal(spoilt).message


def test_a_bomb_of_records_is_refused_at_the_limit() -> None:
    section = zstandard.ZstdCompressor(write_content_size=False).compress(bytes(300_000_000))
    batch = changed(handmade(section), ATTRIBUTES, ">h", Compression.ZSTD)
    assert refusal(batch).error_code == BatchErrorCode.MESSAGE_TOO_LARGE


def test_memoryviews_are_validated_in_place_and_not_changed() -> None:
    batch = encode_batch(records(SOME_TIME, SOME_TIME))
    frame = bytearray(b"frame") + batch + b"more"
    before = bytes(frame)
    view = memoryview(frame)[5 : 5 + len(batch)]
    accepted(view)
    accepted(view.toreadonly())
    assert frame == before


def test_threads_validate_at_once() -> None:
    chance = random.Random(6)
    requests = [
        encode_batch(
            [NewRecord(chance.randbytes(50), b"k", (), SOME_TIME) for _ in range(count)],
            compression=codec,
        )
        for codec in Compression
        for count in (1, 100)
    ]
    expected = validate(requests, LIMITS, NOW_MS)
    results: list[object] = []

    def work() -> None:
        results.extend(validate(requests, LIMITS, NOW_MS) for _ in range(5))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [expected] * 20
