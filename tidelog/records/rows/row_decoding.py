"""Converts record batches to table rows (committed records only), with numpy and Arrow.

No Python runs per record. `parsing` parses all batches of a slice together; Arrow gathers keys,
values and headers. A slice is some MiB of decompressed records, which bounds memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa
from awscrt.checksums import crc32c
from numpy.typing import NDArray

from tidelog.records.batch import (
    ATTRIBUTES_POSITION,
    COMPRESSION_MASK,
    CONTROL_FLAG,
    HEADER_SIZE,
    LENGTH_PREFIX_SIZE,
    LOG_APPEND_TIME_FLAG,
    MAGIC,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_TIMESTAMP,
    TRANSACTIONAL_FLAG,
    MalformedBatch,
    batch_positions,
    headers_of,
)
from tidelog.records.buffers import Buffer
from tidelog.records.compression import Compression, decompress
from tidelog.records.parse.header_parsing import parse_headers
from tidelog.records.parse.parsing import RecordColumns, parse_records
from tidelog.records.parse.row_arrays import gather, group_headers, integer_array, integers_of
from tidelog.records.parse.varints import Booleans, Bytes, Integers
from tidelog.records.row_columns import (
    BUFFER_BYTES_LIMIT,
    HEADER_TYPE,
    HEADERS_TYPE,
    MICROSECONDS_PER_MILLISECOND,
    ROW_SCHEMA,
    TIMESTAMP_TYPE,
    AbortedRange,
)
from tidelog.records.validate.rules import ACCEPTED_BYTES_MAX, TIMESTAMP_MS_MAX

SLICE_BYTES = 8 * 1024 * 1024
SLICE_ROWS = 1 << 16
NO_ORDINAL = -1

BatchHeaders: TypeAlias = NDArray[np.void]
"""Batch headers as rows of HEADER_DTYPE."""

_CODECS = tuple(Compression)
_EMPTY_BATCH_LENGTH = HEADER_SIZE - LENGTH_PREFIX_SIZE


class _SliceLimits(NamedTuple):
    """The limits of one slice and of one batch."""

    bytes_max: int
    rows_max: int
    decompressed_bytes_max: int


class _Batches(NamedTuple):
    """Consecutive batches of the buffer. The stored records of batch i lie at [starts[i],
    ends[i]).
    """

    starts: Integers
    ends: Integers
    headers: BatchHeaders
    ordinals: Integers

    @property
    def codecs(self) -> NDArray[np.int16]:
        codecs: NDArray[np.int16] = self.headers["attributes"] & COMPRESSION_MASK
        return codecs

    def select(self, chosen: slice | Integers) -> _Batches:
        return _Batches(
            self.starts[chosen], self.ends[chosen], self.headers[chosen], self.ordinals[chosen]
        )


class _Slice(NamedTuple):
    """Decompressed records of consecutive batches: those of batch i lie at [starts[i], ends[i])."""

    buffer: Buffer
    starts: Integers
    ends: Integers
    headers: BatchHeaders
    ordinals: Integers


def decode_rows(
    buffer: Buffer,
    positions: Integers | None = None,
    *,
    ordinals: Integers | None = None,
    aborted: Sequence[AbortedRange] = (),
    check_crc: bool = True,
    decompressed_bytes_max: int = ACCEPTED_BYTES_MAX,
    slice_bytes: int = SLICE_BYTES,
    slice_rows: int = SLICE_ROWS,
) -> Iterator[pa.RecordBatch]:
    """The committed records of one partition's batches as rows (ROW_SCHEMA), some MiB at a time.

    - `positions`: the ascending starts of the batches. Without it, batches fill the whole buffer.
    - `ordinals`: for each position the number of the batch's transaction; NO_ORDINAL outside one or
      if unknown.

    Control batches, and transactional batches in `aborted`, are left out. All other batches must be
    decided: batches of an open transaction would become rows.

    Memory beyond the buffer: one slice, decompressed and as rows; a single batch may take up to
    `decompressed_bytes_max`. Raises MalformedBatch (also for offsets that do not ascend),
    CorruptCompression and DecompressedTooLarge; rows already yielded are correct.
    """
    if len(buffer) >= BUFFER_BYTES_LIMIT:
        raise ValueError(f"{len(buffer)} bytes of batches in one buffer; the limit is 2 GiB")
    if positions is None:
        positions = batch_positions(buffer)
    headers = _read_headers(buffer, positions)
    ends = positions + headers["batch_length"] + LENGTH_PREFIX_SIZE
    if len(positions):
        covered = int(ends[-1])
        if (positions[1:] < ends[:-1]).any() or covered > len(buffer):
            raise MalformedBatch("a batch reaches into the next one or is cut off")
    if ordinals is None:
        ordinals = np.full(len(positions), NO_ORDINAL, np.int64)
    elif len(ordinals) != len(positions):
        raise ValueError(f"{len(ordinals)} ordinals for {len(positions)} batches")
    if check_crc:
        _check_crcs(buffer, positions, ends, headers)
    kept = np.flatnonzero(_is_data(headers) & ~aborted_batches(headers, aborted))
    previous = -1
    batches = _Batches(positions + HEADER_SIZE, ends, headers, ordinals).select(kept)
    if not len(kept):
        return
    limits = _SliceLimits(slice_bytes, slice_rows, decompressed_bytes_max)
    for piece in _slices(buffer, batches, limits):
        for rows in _rows_of(piece, slice_rows):
            previous = _check_order(rows, previous)
            yield rows


def aborted_batches(headers: BatchHeaders, aborted: Sequence[AbortedRange]) -> Booleans:
    """A mask of the transactional batches within an aborted transaction of their producer.

    One producer's ranges must not overlap.
    """
    if not len(aborted) or not len(headers):
        return np.zeros(len(headers), np.bool_)
    ranges = np.array([entry[:3] for entry in aborted], np.int64)
    ids, firsts = np.unique(ranges[:, 0]), np.unique(ranges[:, 1])
    # Producer and offset as one number, by rank: an offset alone may take 63 bits.
    width = len(firsts) + 1
    rank = np.searchsorted(ids, ranges[:, 0]) * width + np.searchsorted(firsts, ranges[:, 1])
    order = np.argsort(rank)
    producers, bases = headers["producer_id"], headers["base_offset"]
    sought = np.searchsorted(ids, producers) * width
    sought += np.searchsorted(firsts, bases, "right") - 1
    # The producer's last range that begins at or before the batch, if there is one.
    found = ranges[order][np.searchsorted(rank[order], sought, "right") - 1]
    inside = (found[:, 0] == producers) & (found[:, 1] <= bases) & (bases <= found[:, 2])
    transactional = (headers["attributes"] & TRANSACTIONAL_FLAG) != 0
    result: Booleans = inside & transactional
    return result


def _read_headers(buffer: Buffer, positions: Integers) -> BatchHeaders:
    if len(positions) and (positions[0] < 0 or positions[-1] > len(buffer) - HEADER_SIZE):
        raise MalformedBatch(f"no record batch at position {positions[-1]}: the data ends there")
    if (positions[1:] <= positions[:-1]).any():
        raise ValueError("the positions of batches must ascend")
    headers = headers_of(buffer, positions)
    wrong = headers["magic"] != MAGIC
    wrong |= headers["batch_length"] < _EMPTY_BATCH_LENGTH
    wrong |= (headers["attributes"] & COMPRESSION_MASK) > Compression.ZSTD
    wrong |= headers["base_offset"] < 0
    wrong |= headers["record_count"] < 0
    # A batch without records has no bytes after its header.
    wrong |= (headers["record_count"] == 0) & (headers["batch_length"] > _EMPTY_BATCH_LENGTH)
    if wrong.any():
        at = positions[int(wrong.argmax())]
        raise MalformedBatch(f"no record batch of format v2 at position {at}")
    return headers


def _check_crcs(
    buffer: Buffer,
    positions: Integers,
    ends: Integers,
    headers: BatchHeaders,
) -> None:
    whole = memoryview(buffer)
    for position, end, crc in zip(
        positions.tolist(), ends.tolist(), headers["crc"].tolist(), strict=True
    ):
        if crc32c(whole[position + ATTRIBUTES_POSITION : end]) != crc:
            raise MalformedBatch(f"the batch at position {position} does not match its checksum")


def _is_data(headers: BatchHeaders) -> Booleans:
    data: Booleans = (headers["attributes"] & CONTROL_FLAG) == 0
    return data & (headers["record_count"] > 0)


def _slices(buffer: Buffer, batches: _Batches, limits: _SliceLimits) -> Iterator[_Slice]:
    """The batches in groups whose decompressed records keep the limits; one batch at least."""
    if batches.codecs.any():
        yield from _decompressed_slices(buffer, batches, limits)
        return
    # No batch is compressed: parse the records in place.
    filled = np.cumsum(batches.ends - batches.starts)
    rows = np.cumsum(batches.headers["record_count"].astype(np.int64))
    first = 0
    while first < len(filled):
        bytes_before, rows_before = (filled[first - 1], rows[first - 1]) if first else (0, 0)
        by_bytes = np.searchsorted(filled, bytes_before + limits.bytes_max, "right")
        by_rows = np.searchsorted(rows, rows_before + limits.rows_max, "right")
        following = max(first + 1, min(int(by_bytes), int(by_rows)))
        group = batches.select(slice(first, following))
        yield _Slice(buffer, group.starts, group.ends, group.headers, group.ordinals)
        first = following


def _decompressed_slices(
    buffer: Buffer, batches: _Batches, limits: _SliceLimits
) -> Iterator[_Slice]:
    whole = memoryview(buffer)
    first = size = rows = 0
    plain: list[Buffer] = []
    for index, (codec, start, end, count) in enumerate(
        zip(
            batches.codecs.tolist(),
            batches.starts.tolist(),
            batches.ends.tolist(),
            batches.headers["record_count"].tolist(),
            strict=True,
        )
    ):
        section: Buffer = whole[start:end]
        if codec:
            section = decompress(_CODECS[codec], section, limits.decompressed_bytes_max)
        if plain and (size + len(section) > limits.bytes_max or rows + count > limits.rows_max):
            yield _joined(plain, batches.select(slice(first, index)))
            first, size, rows, plain = index, 0, 0, []
        plain.append(section)
        size, rows = size + len(section), rows + count
    yield _joined(plain, batches.select(slice(first, None)))


def _joined(plain: list[Buffer], batches: _Batches) -> _Slice:
    ends = np.cumsum(np.fromiter(map(len, plain), np.int64, len(plain)))
    starts = np.zeros_like(ends)
    starts[1:] = ends[:-1]
    joined = plain[0] if len(plain) == 1 else b"".join(plain)
    return _Slice(joined, starts, ends, batches.headers, batches.ordinals)


def _rows_of(piece: _Slice, slice_rows: int) -> Iterator[pa.RecordBatch]:
    counts = piece.headers["record_count"].astype(np.int64)
    if len(counts) > 1 or counts[0] <= slice_rows:
        yield _table(piece, counts, partial=False)[0]
        return
    # One batch with very many records: one part at a time.
    position, left = int(piece.starts[0]), int(counts[0])
    while left:
        rows = min(left, slice_rows)
        rest = piece._replace(starts=np.array([position], np.int64))
        table, position = _table(rest, np.array([rows], np.int64), partial=rows < left)
        left -= rows
        yield table


def _table(piece: _Slice, counts: Integers, *, partial: bool) -> tuple[pa.RecordBatch, int]:
    """The rows of the slice's next records, and the end of the last one."""
    data = np.frombuffer(piece.buffer, np.uint8)
    columns = parse_records(data, piece.starts, piece.ends, counts, partial=partial)
    if columns.malformed.any():
        _raise_malformed(piece, columns.malformed)
    source = pa.py_buffer(piece.buffer)
    headers = piece.headers
    append_time = (headers["attributes"] & LOG_APPEND_TIME_FLAG) != 0
    offsets = columns.offset_delta + _repeat(headers["base_offset"].astype(np.int64), counts)
    _check_deltas(piece, columns)
    arrays = [
        integer_array(offsets, pa.int64()),
        _timestamps(piece, columns),
        integer_array(_repeat(append_time.astype(np.int32), counts), pa.int32()),
        gather(source, columns.key_start, columns.key_length),
        gather(source, columns.value_start, columns.value_length),
        _headers(piece, data, source, columns),
        _nullable(headers["producer_id"].astype(np.int64), NO_PRODUCER_ID, counts),
        _producer_epochs(headers, counts),
        _nullable(piece.ordinals, NO_ORDINAL, counts),
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=ROW_SCHEMA), int(columns.stops[-1])


def _raise_malformed(piece: _Slice, malformed: Booleans) -> None:
    base_offset = piece.headers["base_offset"][int(malformed.argmax())]
    raise MalformedBatch(f"the records of the batch at offset {base_offset} are malformed")


def _check_deltas(piece: _Slice, columns: RecordColumns) -> None:
    """Raise unless each record lies within the offsets in its batch's header."""
    last = _repeat(piece.headers["last_offset_delta"].astype(np.int64), columns.counts)
    wrong = (columns.offset_delta < 0) | (columns.offset_delta > last)
    if wrong.any():
        columns.mark(wrong)
        _raise_malformed(piece, columns.malformed)


def _check_order(rows: pa.RecordBatch, previous: int) -> int:
    """The last offset; raises MalformedBatch unless the rows' offsets ascend."""
    offsets = integers_of(rows.column(0))
    if offsets[0] <= previous or (offsets[1:] <= offsets[:-1]).any():
        raise MalformedBatch(f"the offsets of the records behind {previous} do not grow")
    return int(offsets[-1])


def _repeat(values: Integers, counts: Integers) -> Integers:
    """Each batch's value, repeated for each of its records."""
    return np.repeat(values, counts)


def _timestamps(piece: _Slice, columns: RecordColumns) -> pa.Array:
    headers, counts = piece.headers, columns.counts
    base = _repeat(headers["base_timestamp"].astype(np.int64), counts)
    milliseconds = base + columns.timestamp_delta
    # The sum of two numbers of the same sign has overflowed if its sign differs.
    wrong = ((milliseconds ^ base) & (milliseconds ^ columns.timestamp_delta)) < 0
    append_time: Booleans = (headers["attributes"] & LOG_APPEND_TIME_FLAG) != 0
    if append_time.any():
        dated = np.repeat(append_time, counts)
        maximum = _repeat(headers["max_timestamp"].astype(np.int64), counts)
        milliseconds = np.where(dated, maximum, milliseconds)
        wrong &= ~dated
    wrong |= np.abs(milliseconds) > TIMESTAMP_MS_MAX
    if wrong.any():
        columns.mark(wrong)
        _raise_malformed(piece, columns.malformed)
    absent = milliseconds == NO_TIMESTAMP
    microseconds = milliseconds * MICROSECONDS_PER_MILLISECOND
    return integer_array(microseconds, TIMESTAMP_TYPE, absent)


def _nullable(values: Integers, absent: int, counts: Integers) -> pa.Array:
    """Each batch's value, repeated for each of its records; `absent` becomes null."""
    if (values == absent).all():
        return pa.nulls(int(counts.sum()), pa.int64())
    each = _repeat(values, counts)
    return integer_array(each, pa.int64(), each == absent)


def _producer_epochs(headers: BatchHeaders, counts: Integers) -> pa.Array:
    epochs = headers["producer_epoch"].astype(np.int64)
    # Without a producer id the epoch is meaningless.
    epochs[headers["producer_id"] == NO_PRODUCER_ID] = NO_PRODUCER_EPOCH
    return _nullable(epochs, NO_PRODUCER_EPOCH, counts).cast(pa.int32())


def _headers(piece: _Slice, data: Bytes, source: pa.Buffer, columns: RecordColumns) -> pa.Array:
    rows = len(columns.start)
    if not columns.header_count.any():
        return pa.nulls(rows, HEADERS_TYPE)
    found, bad = parse_headers(data, columns.header_start, columns.header_count, columns.end)
    if bad.any():
        columns.mark(bad)
        _raise_malformed(piece, columns.malformed)
    keys = gather(source, found.key_start, found.key_length, pa.string())
    values = gather(source, found.value_start, found.value_length)
    structs = pa.StructArray.from_arrays([keys, values], fields=list(HEADER_TYPE))
    return group_headers(structs, found.first_rows)
