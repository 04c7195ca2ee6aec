"""A file that is written in pieces is the same file, wherever they end."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from awscrt.checksums import crc32c
from hypothesis import given
from hypothesis import strategies as st

from tidelog.storage.parquet_seal import open_footer, seal, seal_of
from tidelog.storage.piece_sink import PIECE_BYTES_MIN, PieceSink

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
def test_what_is_taken_is_not_held(sizes: list[int], writes: int) -> None:
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


def test_what_is_large_is_not_copied() -> None:
    sink = PieceSink()
    piece = b"x" * PIECE_BYTES_MIN
    sink.write(piece)
    assert sink.take()[0] is piece


@given(st.lists(SIZES, max_size=30), st.data())
def test_checksums_of_whole_writes_are_those_of_their_bytes(
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


@pytest.mark.parametrize(("begin", "end"), [(0, 1), (1, 5), (5, 9), (5, 13), (9, 12), (-1, 5)])
def test_what_is_not_whole_writes_has_no_checksum(begin: int, end: int) -> None:
    sink = PieceSink()
    sink.write(b"hello")
    sink.write(b"seven..")
    with pytest.raises(ValueError, match=f"no writes begin at byte {begin} and end at byte {end}"):
        sink.crc32c(begin, end)


def parquet(sink: Any) -> None:
    rows = pa.RecordBatch.from_arrays([pa.nulls(3, pa.int64())] * 2, names=["a", "b"])
    with pq.ParquetWriter(sink, rows.schema) as writer:
        writer.write_batch(rows)
        writer.write_batch(rows)


def test_a_file_gets_the_same_seal_as_it_grows() -> None:
    whole, growing = pa.BufferOutputStream(), PieceSink()
    parquet(whole)
    parquet(pa.PythonFile(growing, mode="w"))
    data = whole.getvalue().to_pybytes()
    assert b"".join(growing.take()) == data
    sealed, made = seal(data), seal_of(data, growing.crc32c)
    body = data[: -made.footer_bytes]
    assert b"".join(sealed.pieces) == body + made.content + data[-made.footer_bytes :]
    assert sealed.tail_bytes == made.tail_bytes
    assert open_footer("key", b"".join(sealed.pieces)).metadata.num_rows == 6
