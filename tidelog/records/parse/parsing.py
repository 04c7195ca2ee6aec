"""Parses the records of many batches together, with numpy.

`record_starts` finds the record starts, then each field of all records is decoded together.
`sequential` defines well-formed records.

The parser never reads out of bounds: every gather clips its positions into the buffer. A clipped
read yields wrong values, but the record is refused in the end. Positions only grow, so a record
that ends within its batch was read within its batch. A malformed batch does not affect others.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tidelog.records.parse.record_starts import find_records
from tidelog.records.parse.sequential import (
    HEADER_BYTES_MIN,
    RECORD_BYTES_MIN,
    RECORD_HEADERS_MAX,
    VARLONG_BYTES_MAX,
)
from tidelog.records.parse.varints import Booleans, Bytes, Integers, read_varints

_ROWS = 1 << 14
"""Rows decoded together, so that their columns stay in the processor's cache."""


@dataclass(slots=True)
class RecordColumns:
    """The layout of the records of several batches: one row per record, in batch order.

    Starts and ends are positions in the buffer; a length of -1 is null. The rows of a malformed
    batch are meaningless. A batch with an impossible count has no rows.
    """

    counts: Integers
    """Number of rows of each batch."""
    first_rows: Integers
    """The first row of each batch; for an empty batch, the next batch's."""
    stops: Integers
    """The end of each batch's last record."""
    malformed: Booleans
    """A mask of malformed batches."""
    bad: Booleans
    """A mask of malformed records."""
    start: Integers
    """The position of each record's length."""
    end: Integers
    timestamp_delta: Integers
    offset_delta: Integers
    key_start: Integers
    key_length: Integers
    value_start: Integers
    value_length: Integers
    header_start: Integers
    header_count: Integers

    def mark(self, bad: Booleans) -> None:
        """Mark more records, and their batches, as malformed."""
        self.bad |= bad
        occupied = np.flatnonzero(self.counts)
        if len(occupied):
            self.malformed[occupied] |= np.logical_or.reduceat(bad, self.first_rows[occupied])


def parse_records(
    data: Bytes, starts: Integers, ends: Integers, counts: Integers, *, partial: bool = False
) -> RecordColumns:
    """The records of the batches whose decompressed records lie at [start, end).

    `partial`: more records may follow the counted ones; continue at `stops`. Checks all fields
    except the values of offset deltas and the contents of headers (`header_parsing`).
    """
    possible = (counts >= 0) & (starts <= ends) & (ends <= len(data))
    possible &= counts * RECORD_BYTES_MIN <= ends - starts
    counts = np.where(possible, counts, 0)
    first_rows = np.cumsum(counts) - counts
    start, stops = find_records(data, starts, counts, first_rows)
    malformed = ~possible | (stops > ends if partial else stops != ends)
    columns = _allocate(counts, first_rows, stops, malformed, start)
    limits = np.repeat(ends, counts)
    for row in range(0, len(start), _ROWS):
        _decode(data, columns, slice(row, row + _ROWS), limits[row : row + _ROWS])
    if columns.bad.any():
        columns.mark(columns.bad)
    return columns


def _allocate(
    counts: Integers, first_rows: Integers, stops: Integers, malformed: Booleans, start: Integers
) -> RecordColumns:
    bad = np.zeros(len(start), np.bool_)
    fields = (np.empty(len(start), np.int64) for _ in range(9))
    return RecordColumns(counts, first_rows, stops, malformed, bad, start, *fields)


def _decode(data: Bytes, columns: RecordColumns, rows: slice, limits: Integers) -> None:
    """Decode all fields of some records, and mark malformed ones."""
    bad = columns.bad[rows]
    length, position = read_varints(data, columns.start[rows], bad)
    end = position + length
    bad |= end > limits
    bad |= data.take(position, mode="clip") != 0
    position += 1
    columns.timestamp_delta[rows], position = read_varints(data, position, bad, VARLONG_BYTES_MAX)
    columns.offset_delta[rows], position = read_varints(data, position, bad)
    key_length, position = read_varints(data, position, bad)
    columns.key_start[rows] = position
    # A negative length must not move back: all checks rely on growing positions.
    position += np.maximum(key_length, 0)
    value_length, position = read_varints(data, position, bad)
    columns.value_start[rows] = position
    position += np.maximum(value_length, 0)
    count, position = read_varints(data, position, bad)
    bad |= (key_length < -1) | (value_length < -1)
    bad |= (count < 0) | (count > RECORD_HEADERS_MAX)
    # A negative or too small length leaves a negative rest here, or none.
    room = end - position
    bad |= np.where(count == 0, room != 0, room < HEADER_BYTES_MIN * count)
    columns.end[rows] = end
    columns.key_length[rows], columns.value_length[rows] = key_length, value_length
    columns.header_start[rows], columns.header_count[rows] = position, count
