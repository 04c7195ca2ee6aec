"""Converts table rows to record batches for consumers of segments, with numpy and Arrow.

No Python runs per record. New batches have about a MiB each. They name no producer and no
transaction: all rows of a table are decided, so consumers need no aborted transactions.
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from awscrt.checksums import crc32c

from tidelog.records.batch import (
    BATCH_LENGTH_MIN,
    LOG_APPEND_TIME_FLAG,
    MAGIC,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    NO_TIMESTAMP,
    TimestampType,
)
from tidelog.records.buffers import Buffer
from tidelog.records.compression import Compression, compress
from tidelog.records.parse.row_arrays import (
    binary_array,
    element_offsets,
    integer_array,
    integers_of,
    lengths_of,
    nulls_of,
)
from tidelog.records.parse.varint_writing import constant, write_varints, zigzag
from tidelog.records.parse.varints import Integers
from tidelog.records.row_columns import BUFFER_BYTES_LIMIT, MICROSECONDS_PER_MILLISECOND

BATCH_BYTES = 1024 * 1024
OFFSET_DELTA_MAX = 2**31 - 1
_OVERHEAD_BYTES_MAX = 30
"""Overhead of a record without headers: length, attributes, deltas, lengths and header count."""
_LONG_ROW_BYTES = 400
_NULL = -1

_PLACE = Struct(">qiibI")
_CHECKED = Struct(">hiqqqhii")


# Arrow imports pandas, if installed, to make a scalar of Python bytes.
_NOTHING = binary_array(np.zeros(2, np.int32), pa.py_buffer(b""))[0]
_NO_HEADERS = binary_array(np.array([0, 1], np.int32), pa.py_buffer(b"\x00"))


class EncodedBatch(NamedTuple):
    """A record batch in two pieces, which saves a copy of the records."""

    base_offset: int
    last_offset: int
    record_count: int
    header: bytes
    records: Buffer

    @property
    def size_bytes(self) -> int:
        """The size of the whole batch, with its header."""
        return len(self.header) + len(self.records)


def encode_rows(
    rows: pa.RecordBatch,
    first_offset: int,
    next_offset: int,
    *,
    leader_epoch: int = -1,
    compression: Compression = Compression.NONE,
    level: int | None = None,
    batch_bytes: int = BATCH_BYTES,
) -> list[EncodedBatch]:
    """The rows as record batches that cover all offsets in [first_offset, next_offset).

    `rows` has at least ROW_SCHEMA's first six columns, by name, ascending by offset and within the
    range. Keys, values and headers total less than 2 GiB. Missing rows are markers, aborted records
    or compacted records. The preceding batch or an empty batch covers their offsets, so that a
    consumer's position passes them.

    A batch has about `batch_bytes` of records before compression, or one record. Rows with log
    append time share a batch only with rows of the same time: the format has one such time per
    batch.
    """
    if next_offset <= first_offset:
        raise ValueError(f"no offsets lie between {first_offset} and {next_offset}")
    if not rows.num_rows:
        return empty_batches(first_offset, next_offset, leader_epoch)
    columns = _RowColumns(rows)
    offsets = columns.offsets
    if offsets[0] < first_offset or offsets[-1] >= next_offset:
        raise ValueError(
            f"rows from offset {offsets[0]} to {offsets[-1]} do not lie"
            f" in [{first_offset}, {next_offset})"
        )
    starts = _batch_starts(columns, batch_bytes)
    bounds = np.append(starts, len(offsets))
    content, ends = _records(columns, starts, np.diff(bounds))
    cuts = [0, *ends[bounds[1:] - 1].tolist()]
    encoded: list[EncodedBatch] = []
    leading = int(offsets[0])
    if leading > first_offset:
        encoded += empty_batches(first_offset, leading, leader_epoch)
    # A batch covers the offsets up to the next batch's beginning.
    following = [*offsets[starts[1:]].tolist(), next_offset]
    for index, head in enumerate(_heads(columns, starts, bounds)):
        section: Buffer = content[cuts[index] : cuts[index + 1]]
        if compression is not Compression.NONE:
            section = compress(compression, section, level)
        last = min(following[index] - 1, head.base_offset + OFFSET_DELTA_MAX)
        encoded.append(_batch(head, last, section, leader_epoch, compression))
        if last + 1 < following[index]:
            encoded += empty_batches(last + 1, following[index], leader_epoch)
    return encoded


class _RowColumns:
    """The rows' columns as numpy arrays; timestamps in milliseconds, -1 for none."""

    def __init__(self, rows: pa.RecordBatch) -> None:
        self.offsets = integers_of(rows.column("offset"))
        absent = NO_TIMESTAMP * MICROSECONDS_PER_MILLISECOND
        microseconds = integers_of(rows.column("timestamp"), absent)
        self.timestamps: Integers = microseconds // MICROSECONDS_PER_MILLISECOND
        self.timestamp_types = integers_of(rows.column("timestamp_type"))
        self.keys = rows.column("key")
        self.values = rows.column("value")
        self.key_lengths = lengths_of(self.keys)
        self.value_lengths = lengths_of(self.values)
        self.header_counts, self.headers = _header_bytes(rows.column("headers"))
        self.sizes = np.maximum(self.key_lengths, 0) + np.maximum(self.value_lengths, 0)
        self.sizes += _OVERHEAD_BYTES_MAX
        if self.headers is not None:
            self.sizes += lengths_of(self.headers)
        total = int(self.sizes.sum())
        if total >= BUFFER_BYTES_LIMIT:
            raise ValueError(f"{total} bytes of rows to encode at once; the limit is 2 GiB")


def _header_bytes(headers: pa.Array) -> tuple[Integers, pa.Array | None]:
    """Each row's number of headers, and their encoding; None if no row has headers."""
    counts = np.diff(element_offsets(headers))
    if headers.null_count:
        # A null list's offsets may span elements, which do not count.
        counts[nulls_of(headers)] = 0
    if not counts.any():
        return counts, None
    structs = headers.flatten()
    keys, values = structs.field(0), structs.field(1)
    key_lengths, value_lengths = lengths_of(keys), lengths_of(values)
    key_sizes, value_sizes = zigzag(key_lengths), zigzag(value_lengths)
    joined = _interleave(
        [write_varints([key_sizes]), keys.cast(pa.binary()), write_varints([value_sizes]), values]
    )
    ends = np.zeros(len(keys) + 1, np.int64)
    lengths = key_lengths + np.maximum(value_lengths, 0) + key_sizes.sizes + value_sizes.sizes
    np.cumsum(lengths, out=ends[1:])
    bounds = np.zeros(len(counts) + 1, np.int64)
    np.cumsum(counts, out=bounds[1:])
    return counts, binary_array(ends[bounds], joined or pa.py_buffer(b""))


def _batch_starts(columns: _RowColumns, batch_bytes: int) -> Integers:
    """The first row of each batch."""
    offsets = columns.offsets
    types, stamps = columns.timestamp_types, columns.timestamps
    changed = types[1:] != types[:-1]
    by_broker = types[1:] == TimestampType.LOG_APPEND_TIME
    if by_broker.any():
        changed |= by_broker & (stamps[1:] != stamps[:-1])
    forced = [*(np.flatnonzero(changed) + 1).tolist(), len(offsets)]
    filled = np.cumsum(columns.sizes)
    starts: list[int] = []
    row = 0
    for stop in forced:
        while row < stop:
            starts.append(row)
            before = int(filled[row - 1]) if row else 0
            by_size = int(np.searchsorted(filled, before + batch_bytes, "right"))
            by_span = int(np.searchsorted(offsets, int(offsets[row]) + OFFSET_DELTA_MAX, "right"))
            row = min(max(by_size, row + 1), by_span, stop)
    return np.array(starts, np.int64)


def _records(
    columns: _RowColumns, starts: Integers, counts: Integers
) -> tuple[memoryview, Integers]:
    """The records of all batches, contiguous, and the end of each record."""
    rows = len(columns.offsets)
    offset_deltas = zigzag(columns.offsets - np.repeat(columns.offsets[starts], counts))
    stamps = columns.timestamps
    stamp_deltas = zigzag(stamps - np.repeat(stamps[starts], counts))
    attributes, key_sizes = constant(0, rows), zigzag(columns.key_lengths)
    value_sizes = zigzag(columns.value_lengths)
    fields = [attributes, stamp_deltas, offset_deltas, key_sizes]
    body = np.maximum(columns.value_lengths, 0)
    without_keys = bool((columns.key_lengths == _NULL).all())
    if not without_keys:
        body += np.maximum(columns.key_lengths, 0)
    header_counts = zigzag(columns.header_counts)
    for column in (*fields, value_sizes, header_counts):
        body += column.sizes
    if columns.headers is not None:
        body += lengths_of(columns.headers)
    lengths = zigzag(body)
    ends: Integers = np.cumsum(body + lengths.sizes)
    prefix = [lengths, *fields]
    is_long = int(ends[-1]) >= _LONG_ROW_BYTES * rows
    is_folded = columns.headers is None and not is_long
    if is_folded:
        # Each record ends in a zero byte, which is written with the next record's beginning.
        prefix.insert(0, attributes)
    parts = [write_varints([*prefix, value_sizes] if without_keys else prefix)]
    if not without_keys:
        parts += [columns.keys, write_varints([value_sizes])]
    parts.append(columns.values)
    if is_folded:
        return memoryview(_interleave(parts, _NO_HEADERS) or b"")[1:], ends
    parts.append(write_varints([header_counts]))
    if columns.headers is not None:
        parts.append(columns.headers)
    return memoryview((_join if is_long else _interleave)(parts) or b""), ends


class _Head(NamedTuple):
    """The header fields that depend on a batch's rows."""

    base_offset: int
    record_count: int
    base_timestamp: int
    max_timestamp: int
    timestamp_type: int


def _heads(columns: _RowColumns, starts: Integers, bounds: Integers) -> list[_Head]:
    stamps = columns.timestamps
    return [
        _Head(*fields)
        for fields in zip(
            columns.offsets[starts].tolist(),
            np.diff(bounds).tolist(),
            stamps[starts].tolist(),
            np.maximum.reduceat(stamps, starts).tolist(),
            columns.timestamp_types[starts].tolist(),
            strict=True,
        )
    ]


def _batch(
    head: _Head, last_offset: int, section: Buffer, leader_epoch: int, compression: Compression
) -> EncodedBatch:
    attributes = int(compression)
    if head.timestamp_type == TimestampType.LOG_APPEND_TIME:
        attributes |= LOG_APPEND_TIME_FLAG
    checked = _CHECKED.pack(
        attributes,
        last_offset - head.base_offset,
        head.base_timestamp,
        head.max_timestamp,
        NO_PRODUCER_ID,
        NO_PRODUCER_EPOCH,
        NO_SEQUENCE,
        head.record_count,
    )
    crc = crc32c(section, crc32c(checked)) if len(section) else crc32c(checked)
    length = BATCH_LENGTH_MIN + len(section)
    header = _PLACE.pack(head.base_offset, length, leader_epoch, MAGIC, crc) + checked
    return EncodedBatch(head.base_offset, last_offset, head.record_count, header, section)


def empty_batches(first_offset: int, next_offset: int, leader_epoch: int) -> list[EncodedBatch]:
    """Batches without records that cover [first_offset, next_offset)."""
    batches: list[EncodedBatch] = []
    while first_offset < next_offset:
        head = _Head(first_offset, 0, NO_TIMESTAMP, NO_TIMESTAMP, TimestampType.CREATE_TIME)
        last = min(next_offset - 1, first_offset + OFFSET_DELTA_MAX)
        batches.append(_batch(head, last, b"", leader_epoch, Compression.NONE))
        first_offset = last + 1
    return batches


def _interleave(columns: Sequence[pa.Array], last: pa.Array | None = None) -> pa.Buffer | None:
    """The bytes of binary arrays of equal length, row by row, then those of `last`; null counts as
    empty.

    None if there are no bytes. All arrays together must be below 2 GiB. It costs one `take`, half
    of `_join` for short rows.
    """
    rows, count = len(columns[0]), len(columns)
    behind = 0 if last is None else len(last)
    order = np.empty(rows * count + behind, np.int32)
    by_row = order[: rows * count].reshape(rows, count)
    for index in range(count):
        by_row[:, index] = np.arange(index * rows, (index + 1) * rows, dtype=np.int32)
    order[rows * count :] = np.arange(rows * count, rows * count + behind, dtype=np.int32)
    pieces = pa.concat_arrays([*columns] if last is None else [*columns, last])
    order_array = integer_array(order, pa.int32())
    taken = pc.take(pieces, order_array, boundscheck=False)
    return taken.buffers()[2]


def _join(columns: Sequence[pa.Array]) -> pa.Buffer | None:
    """As `_interleave`, without first copying all columns: for long rows."""
    joined = pc.binary_join_element_wise(
        *columns, _NOTHING, null_handling="replace", null_replacement=b""
    )
    return joined.buffers()[2]
