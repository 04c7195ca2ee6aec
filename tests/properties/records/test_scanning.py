"""The quick survey accepts no batch that the thorough walk refuses. Both return the same facts of
an accepted batch."""

from __future__ import annotations

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
    found = scan(batch, HEADER, len(batch), len(records))
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
    found = scan(body, HEADER, end, count)
    assert found in (None, thorough(body, HEADER, end, count))


@given(st.binary(max_size=80), st.integers(1, 3))
@example(b"\x80" * 20, 1)
@example(b"\x00", 1)
@example(b"", 1)
def test_any_bytes_are_refused_or_right(body: bytes, count: int) -> None:
    found = scan(body, 0, len(body), count)
    assert found in (None, thorough(body, 0, len(body), count))
