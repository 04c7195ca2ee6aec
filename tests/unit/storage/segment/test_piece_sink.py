"""A file that is written in pieces is the same file for any cuts between the pieces."""

from __future__ import annotations

from uuid import UUID

import pyarrow as pa
import pytest
from awscrt.checksums import crc32c
from hypothesis import given
from hypothesis import strategies as st

from tidelog.identifiers import TopicPartition
from tidelog.records.row_columns import ROW_SCHEMA
from tidelog.storage.object_store import Buffer
from tidelog.storage.segment.parquet_seal import open_footer, seal
from tidelog.storage.segment.segment_writer import PIECE_BYTES_MIN, PieceSink, SegmentWriter

SIZES = st.sampled_from([0, 1, 7, 5000, PIECE_BYTES_MIN - 1, PIECE_BYTES_MIN, 3 * PIECE_BYTES_MIN])


@given(st.lists(SIZES, max_size=30), st.booleans())
def test_all_that_is_written_is_there_in_few_pieces(sizes: list[int], as_views: bool) -> None:
    sink = PieceSink()
    written = [bytes([number]) * size for number, size in enumerate(sizes)]
    for piece in written:
        assert sink.write(memoryview(piece) if as_views else piece) == len(piece)
    assert sink.size_bytes == sum(sizes)
    pieces = sink.take()
    assert b"".join(pieces) == b"".join(written)
    large = sum(size >= PIECE_BYTES_MIN for size in sizes)
    assert len(pieces) <= 2 * large + sum(sizes) // PIECE_BYTES_MIN + 1


@given(st.lists(SIZES, max_size=30), st.integers(1, 10))
def test_taken_pieces_are_not_held(sizes: list[int], writes: int) -> None:
    sink = PieceSink()
    written = [bytes([number]) * size for number, size in enumerate(sizes)]
    taken = []
    for number, piece in enumerate(written):
        sink.write(piece)
        if number % writes == 0:
            taken += sink.take()
            assert sink.take() == []
    assert b"".join([*taken, *sink.take()]) == b"".join(written)
    assert sink.size_bytes == sum(sizes)


@st.composite
def segment_rows(draw: st.DrawFn) -> list[pa.RecordBatch]:
    """Rows that fill some row groups, or none."""
    batches, offset = [], 0
    for count, size in draw(
        st.lists(
            st.tuples(st.integers(1, 30), st.sampled_from([0, 9, 200_000])), min_size=1, max_size=3
        )
    ):
        rows = [
            dict.fromkeys(ROW_SCHEMA.names)
            | {"offset": offset + number, "timestamp_type": number % 2, "producer_id": number % 3}
            | {"value": bytes(size), "headers": [{"key": f"{number}", "value": None}]}
            for number in range(count)
        ]
        batches.append(pa.RecordBatch.from_pylist(rows, ROW_SCHEMA))
        offset += count
    return batches


def test_a_large_piece_is_not_copied() -> None:
    sink = PieceSink()
    piece = b"x" * PIECE_BYTES_MIN
    sink.write(piece)
    assert sink.take()[0] is piece


@given(st.lists(SIZES, max_size=30), st.data())
def test_checksums_of_whole_writes_equal_those_of_the_bytes(
    sizes: list[int], data: st.DataObject
) -> None:
    sink = PieceSink()
    written = [bytes([number]) * size for number, size in enumerate(sizes)]
    ends = [0]
    for piece in written:
        sink.write(piece)
        ends.append(ends[-1] + len(piece))
        sink.take()
    begin, end = sorted(data.draw(st.tuples(*2 * [st.sampled_from(ends)])))
    assert sink.crc32c(begin, end) == crc32c(b"".join(written)[begin:end])


@pytest.mark.parametrize(
    ("begin", "end"), [(0, 1), (1, 5), (5, 9), (5, 13), (9, 12), (-1, 5), (5, 0), (13, 0)]
)
def test_a_range_within_a_write_has_no_checksum(begin: int, end: int) -> None:
    sink = PieceSink()
    sink.write(b"hello")
    sink.write(b"seven..")
    with pytest.raises(ValueError, match=f"no writes begin at byte {begin} and end at byte {end}"):
        sink.crc32c(begin, end)


@given(segment_rows(), st.booleans())
def test_a_segment_gets_the_same_seal_as_it_grows(
    batches: list[pa.RecordBatch], is_taken: bool
) -> None:
    """The seal is the same as for the whole file, with a segment's dictionaries, page index and row
    groups."""
    writer = SegmentWriter(TopicPartition(UUID(int=1), 0), 0)
    pieces: list[Buffer] = []
    for rows in batches:
        writer.write(rows)
        pieces += writer.take() if is_taken else ()
    next_offset = sum(rows.num_rows for rows in batches)
    segment, rest = writer.finish(next_offset, UUID(int=2))
    data = b"".join((*pieces, *rest))
    footer = len(rest[-1])
    alone = data[: -segment.tail_bytes] + data[-footer:]
    made = seal(alone)
    assert b"".join(made.pieces) == data
    assert (segment.size_bytes, segment.tail_bytes) == (made.size_bytes, made.tail_bytes)
    assert segment.crc32c == crc32c(data)
    assert open_footer("key", data).metadata.num_rows == next_offset
