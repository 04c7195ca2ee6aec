"""The quick survey accepts no batch that the thorough walk refuses. Both return the same facts of
an accepted batch."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tidelog.records.batch import MalformedBatch
from tidelog.records.parse.sequential import read_layouts
from tidelog.records.records import NewRecord, encode_batch
from tidelog.records.validate.scanning import ScannedRecords, scan

HEADER = 61
TIME = 1_700_000_000_000

texts = st.none() | st.binary(max_size=200)
records = st.lists(
    st.builds(
        NewRecord,
        texts,
        texts,
        st.lists(st.tuples(st.text(max_size=3), texts), max_size=1).map(tuple),
        st.integers(TIME - 5_000_000, TIME + 5_000_000),
    ),
    min_size=1,
    max_size=200,
)


def thorough(buffer: bytes, start: int, end: int, count: int) -> ScannedRecords | None:
    """The result of the walk, or None if it refuses the batch."""
    deltas, keys = [], []
    try:
        for index, layout in enumerate(read_layouts(buffer, start, end, count)):
            if layout.offset_delta != index:
                return None
            deltas.append(layout.timestamp_delta)
            keys.append(layout.key_length)
    except MalformedBatch:
        return None
    greatest = max(deltas)
    return ScannedRecords(deltas[0], min(deltas), greatest, deltas.index(greatest), min(keys) < 0)


def ordinary(records: list[NewRecord]) -> bool:
    return not any(record.headers for record in records) and all(
        abs(record.timestamp - records[0].timestamp) < 1 << 20 for record in records
    )


@given(records)
def test_ordinary_batches_are_surveyed(records: list[NewRecord]) -> None:
    batch = bytes(encode_batch(records))
    found = scan(batch, HEADER, len(batch), len(records), 512)
    assert found in (None, thorough(batch, HEADER, len(batch), len(records)))
    assert found is not None or not ordinary(records)


@given(records, st.data())
def test_the_quick_scan_takes_no_batch_that_the_thorough_walk_refuses(
    records: list[NewRecord], data: st.DataObject
) -> None:
    batch = bytearray(encode_batch(records))
    for _ in range(data.draw(st.integers(0, 3))):
        # Near the beginning most bytes are lengths and numbers.
        position = data.draw(st.integers(HEADER, min(len(batch), HEADER + 40) - 1))
        batch[position] = data.draw(st.integers(0, 255))
    end = len(batch) - data.draw(st.integers(0, 3))
    body = bytes(batch) + data.draw(st.binary(max_size=20))
    count = max(1, len(records) + data.draw(st.integers(-1, 1)))
    found = scan(body, HEADER, end, count, 512)
    assert found in (None, thorough(body, HEADER, end, count))


@st.composite
def alike(draw: st.DrawFn) -> list[NewRecord]:
    """Records of equal sizes, as many producers send."""
    count = draw(st.integers(1, 130))
    key_bytes = draw(st.none() | st.sampled_from([0, 5, 70]))
    value_bytes = draw(st.none() | st.sampled_from([0, 7, 63, 64, 130]))
    steps = st.lists(st.integers(-3, 90), min_size=count, max_size=count)
    return [
        NewRecord(
            None if key_bytes is None else b"k" * key_bytes,
            None if value_bytes is None else b"v" * value_bytes,
            (),
            TIME + step,
        )
        for step in draw(steps | st.just([0] * count))
    ]


@given(alike(), st.data())
def test_records_of_equal_sizes_are_surveyed_together_and_no_less_strictly(
    records: list[NewRecord], data: st.DataObject
) -> None:
    batch = bytearray(encode_batch(records))
    found = scan(batch, HEADER, len(batch), len(records), 512)
    assert found == thorough(bytes(batch), HEADER, len(batch), len(records))
    ends = [each.end for each in read_layouts(batch, HEADER, len(batch), len(records))]
    for _ in range(data.draw(st.integers(1, 2))):
        # Near the beginning of a record, and at its end, are lengths and numbers.
        position = data.draw(st.sampled_from([HEADER, *ends])) + data.draw(st.integers(-1, 9))
        batch[min(position, len(batch) - 1)] = data.draw(st.integers(0, 255))
    found = scan(batch, HEADER, len(batch), len(records), 512)
    assert found in (None, thorough(bytes(batch), HEADER, len(batch), len(records)))


@pytest.mark.parametrize(
    ("count", "milliseconds"),
    [*product([64, 65, 300, 8400], [1, 60, 200]), (8400, 9000)],
)
def test_many_records_of_equal_sizes_are_surveyed_without_a_loop_over_them(
    count: int, milliseconds: int
) -> None:
    records = [
        NewRecord(None, b"v" * 20, (), TIME + index * milliseconds // count)
        for index in range(count)
    ]
    batch = bytearray(encode_batch(records))
    found = scan(batch, HEADER, len(batch), count, 16)
    assert found == thorough(bytes(batch), HEADER, len(batch), count) is not None
    ends = [HEADER, *(each.end for each in read_layouts(batch, HEADER, len(batch), count))]
    for index in {1, count // 2, count - 1}:
        positions = (*range(ends[index], ends[index] + 9), ends[index + 1] - 1)
        for position, bit in product(positions, [2, 128]):
            wrong = batch.copy()
            wrong[position] ^= bit
            found = scan(wrong, HEADER, len(wrong), count, 16)
            assert found in (None, thorough(bytes(wrong), HEADER, len(wrong), count))


@given(st.binary(max_size=80), st.integers(1, 3))
@example(b"\x80" * 20, 1)
@example(b"\x00", 1)
@example(b"", 1)
def test_any_bytes_are_refused_or_right(body: bytes, count: int) -> None:
    found = scan(body, 0, len(body), count, 512)
    assert found in (None, thorough(body, 0, len(body), count))
