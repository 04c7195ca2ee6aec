"""Damaged batches: no exception, no read out of bounds, the verdict of a plain reading."""

from __future__ import annotations

import random

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.properties.records import naive
from tests.properties.records.batches import (
    NOW_MS,
    WAYS,
    damaged,
    examined,
    new_records,
    record_lists,
    sealed,
    simple_batch,
)
from tidelog.records.compression import Compression
from tidelog.records.records import NewRecord, decode_records, encode_batch
from tidelog.records.validate.validation import BatchInfo, BatchLimits, InvalidBatch, validate

LIMITS = BatchLimits(batch_bytes_max=1 << 30)
CODECS = tuple(Compression)


def agree(batch: bytes, verdict: list[BatchInfo] | InvalidBatch) -> None:
    """The verdict is the one of the plain reading."""
    records = naive.read_if_right(batch, NOW_MS)
    if records is None:
        assert isinstance(verdict, InvalidBatch), "the plain reading refuses the batch"
        return
    assert isinstance(verdict, list), verdict
    (info,) = verdict
    stamps = [record.timestamp for record in records]
    assert info.header.record_count == len(records)
    assert (info.first_timestamp, info.max_timestamp) == (stamps[0], max(stamps))
    assert info.max_timestamp_delta == stamps.index(max(stamps))
    decoded = [(r.timestamp, r.key, r.value, r.headers) for r in decode_records(batch)]
    assert decoded == [(r.timestamp, r.key, r.value, r.headers) for r in records]


@given(records=record_lists(), codec=st.sampled_from(CODECS), seed=st.integers(0, 2**32))
def test_a_damaged_batch_gets_the_verdict_of_a_plain_reading(
    records: list[NewRecord], codec: Compression, seed: int
) -> None:
    batch = damaged(bytes(encode_batch(records, compression=codec)), random.Random(seed))
    for way in WAYS:
        with examined(way):
            (verdict,) = validate([batch], LIMITS, NOW_MS)
        agree(batch, verdict)


@pytest.mark.parametrize("seed", range(20))
def test_damaged_batches_do_not_disturb_each_other(seed: int) -> None:
    chance = random.Random(seed)
    whole = simple_batch()
    batches = [
        damaged(whole, chance) if chance.random() < 0.7 else whole
        for _ in range(chance.randrange(1, 300))
    ]
    for batch, verdict in zip(batches, validate(batches, LIMITS, NOW_MS), strict=True):
        agree(batch, verdict)


@given(
    lists=st.lists(record_lists(), min_size=1, max_size=8),
    damages=st.lists(st.integers(0, 2), min_size=8, max_size=8),
    seed=st.integers(0, 2**32),
    limits=st.builds(
        BatchLimits,
        batch_bytes_max=st.just(1 << 30),
        keys_required=st.booleans(),
        timestamp_before_max_ms=st.sampled_from([2**63 - 1, NOW_MS - 1_700_000_000_100, 0]),
        timestamp_after_max_ms=st.sampled_from([0, 3_600_000, 2**63 - 1]),
    ),
)
def test_all_ways_of_examination_give_the_same_verdicts(
    lists: list[list[NewRecord]], damages: list[int], seed: int, limits: BatchLimits
) -> None:
    chance = random.Random(seed)
    batches = [bytes(encode_batch(records)) for records in lists]
    for index, damage in zip(range(len(batches)), damages, strict=False):
        for _ in range(damage):
            batches[index] = damaged(batches[index], chance)
    verdicts = {}
    for way in WAYS:
        with examined(way):
            verdicts[way] = validate(batches, limits, NOW_MS)
    assert verdicts["together"] == verdicts["singly"]
    assert verdicts["lockstep"] == verdicts["singly"]
    # In pieces, a count that only the rest cannot hold is noticed later: other words, same code.
    assert [codes(verdict) for verdict in verdicts["pieces"]] == [
        codes(verdict) for verdict in verdicts["singly"]
    ]


def codes(verdict: list[BatchInfo] | InvalidBatch) -> object:
    if isinstance(verdict, InvalidBatch):
        return verdict.error_code, verdict.record_errors
    return verdict


@given(st.binary(max_size=200))
@example(b"")
@example(bytes(16) + b"\x02")
@example(bytes(60))
def test_any_bytes_get_a_verdict(request: bytes) -> None:
    for candidate in (request, sealed(bytearray(simple_batch()[:61] + request))):
        (verdict,) = validate([candidate], LIMITS, NOW_MS)
        agree(candidate, verdict)


@given(
    record=new_records(),
    base=st.sampled_from([0, -(2**63), 2**63 - 1, 9_223_372_036_854_775, -9_223_372_036_854_775]),
    deltas=st.lists(
        st.sampled_from([0, 1, -1, 2**63 - 1, -(2**63), 2**62, 1_700_000_000_000]),
        min_size=1,
        max_size=5,
    ),
)
def test_sums_beyond_64_bits_are_no_timestamps(
    record: NewRecord, base: int, deltas: list[int]
) -> None:
    records = [record._replace(timestamp=delta) for delta in [0, *deltas]]
    batch = encode_batch(records)
    batch[27:35] = base.to_bytes(8, "big", signed=True)
    request = sealed(batch)
    for way in WAYS:
        with examined(way):
            (verdict,) = validate([request], LIMITS, NOW_MS)
        agree(request, verdict)


def test_every_cut_of_a_batch_is_refused() -> None:
    whole = simple_batch()
    cuts = [whole[:size] for size in range(len(whole))]
    resealed = [sealed(bytearray(cut)) for cut in cuts]
    for verdict in validate([*cuts, *resealed], LIMITS, NOW_MS):
        assert isinstance(verdict, InvalidBatch)


@pytest.mark.parametrize("codec", CODECS)
def test_every_changed_byte_is_refused_by_the_checksum(codec: Compression) -> None:
    whole = simple_batch(codec)
    changed = []
    for position in range(17, len(whole)):
        copy = bytearray(whole)
        copy[position] ^= 0x10
        changed.append(bytes(copy))
    for verdict in validate(changed, LIMITS, NOW_MS):
        assert isinstance(verdict, InvalidBatch)
        assert verdict.error_code == 2


@pytest.mark.parametrize("codec", CODECS)
def test_every_byte_of_the_records_at_each_value(codec: Compression) -> None:
    """The whole neighbourhood of a batch: each byte behind the header at each of its values."""
    whole = simple_batch(codec)
    batches = []
    for position in range(61, len(whole)):
        for value in range(0, 256, 1 if codec is Compression.NONE else 17):
            copy = bytearray(whole)
            copy[position] = value
            batches.append(sealed(copy))
    for batch, verdict in zip(batches, validate(batches, LIMITS, NOW_MS), strict=True):
        agree(batch, verdict)
