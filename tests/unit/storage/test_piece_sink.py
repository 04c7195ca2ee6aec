"""A file that is written in pieces is the same file, wherever they end."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.storage.parquet_seal import open_footer, seal
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


def parquet() -> bytes:
    sink = pa.BufferOutputStream()
    rows = pa.RecordBatch.from_arrays([pa.nulls(3, pa.int64())] * 2, names=["a", "b"])
    with pq.ParquetWriter(sink, rows.schema) as writer:
        writer.write_batch(rows)
        writer.write_batch(rows)
    return bytes(memoryview(sink.getvalue()))


@pytest.mark.parametrize("length", [1, 3, 10, 200])
def test_a_file_in_pieces_gets_the_seal_of_the_whole(length: int) -> None:
    whole = parquet()
    sealed = seal(whole)
    in_pieces = seal([whole[at : at + length] for at in range(0, len(whole), length)])
    data = b"".join(sealed.pieces)
    assert b"".join(in_pieces.pieces) == data
    assert (in_pieces.tail_bytes, in_pieces.crc32c) == (sealed.tail_bytes, sealed.crc32c)
    assert in_pieces.size_bytes == len(data)
    assert open_footer("key", data).metadata.num_rows == 6
