"""The columns that the vectorised parser makes of records."""

from __future__ import annotations

import numpy as np
import pytest

from tidelog.records.batch import HEADER_SIZE
from tidelog.records.parse.header_parsing import parse_headers
from tidelog.records.parse.parsing import RecordColumns, parse_records
from tidelog.records.parse.sequential import read_layouts
from tidelog.records.records import NewRecord, encode_batch

RECORDS = [
    NewRecord(b"v" * (i % 200), b"k" if i % 2 else None, [("name", None), ("", b"x")][: i % 3], i)
    for i in range(300)
]


def parsed(section: bytes, count: int, *, partial: bool = False) -> RecordColumns:
    data = np.frombuffer(section, np.uint8)
    starts, ends = np.array([0]), np.array([len(section)])
    return parse_records(data, starts, ends, np.array([count]), partial=partial)


def section_of(records: list[NewRecord]) -> bytes:
    return bytes(encode_batch(records)[HEADER_SIZE:])


def test_columns_equal_those_of_the_plain_walk() -> None:
    section = section_of(RECORDS)
    columns = parsed(section, len(RECORDS))
    layouts = list(read_layouts(section, 0, len(section), len(RECORDS)))
    assert not columns.malformed.any()
    assert columns.stops.tolist() == [len(section)]
    for name in ("end", "timestamp_delta", "offset_delta", "key_length", "value_length"):
        assert getattr(columns, name).tolist() == [getattr(layout, name) for layout in layouts]
    assert columns.key_start.tolist() == [layout.key_start for layout in layouts]
    assert columns.value_start.tolist() == [layout.value_start for layout in layouts]
    assert columns.header_count.tolist() == [len(layout.headers) for layout in layouts]


@pytest.mark.parametrize("rows", [300, 20])
def test_headers_equal_those_of_the_plain_walk(rows: int) -> None:
    section = section_of(RECORDS[:rows])
    data = np.frombuffer(section, np.uint8)
    columns = parsed(section, rows)
    headers, bad = parse_headers(data, columns.header_start, columns.header_count, columns.end)
    layouts = list(read_layouts(section, 0, len(section), rows))
    assert not bad.any()
    found = zip(
        headers.key_start.tolist(),
        headers.key_length.tolist(),
        headers.value_start.tolist(),
        headers.value_length.tolist(),
        strict=True,
    )
    assert list(found) == [tuple(header) for layout in layouts for header in layout.headers]
    counts = [len(layout.headers) for layout in layouts]
    assert headers.first_rows.tolist() == [sum(counts[:row]) for row in range(rows + 1)]


def test_a_long_batch_can_be_parsed_in_parts() -> None:
    section = section_of(RECORDS)
    data = np.frombuffer(section, np.uint8)
    ends = np.array([len(section)])
    first = parse_records(data, np.array([0]), ends, np.array([120]), partial=True)
    assert not first.malformed.any()
    rest = parse_records(data, first.stops, ends, np.array([180]))
    assert not rest.malformed.any()
    whole = parsed(section, 300)
    assert [*first.value_start, *rest.value_start] == whole.value_start.tolist()
    assert parsed(section, 120).malformed.all(), "a part that is not marked as one"


@pytest.mark.parametrize("count", [-1, 400, 2**31 - 1])
def test_impossible_counts_have_no_rows(count: int) -> None:
    columns = parsed(section_of([NewRecord(b"")] * 300), count)
    assert columns.malformed.all()
    assert len(columns.start) == 0


def test_empty_batches_are_well_formed() -> None:
    columns = parsed(b"", 0)
    assert not columns.malformed.any()
    assert len(columns.start) == 0
    assert parsed(b"\0", 0).malformed.all()


def test_headers_that_cannot_fit_are_refused_before_memory_is_allocated() -> None:
    # 1,000 headers in two bytes.
    columns = parsed(b"\x12\0\0\0\1\1\xd0\x0f\0\1", 1)
    assert columns.bad.tolist() == [True]
