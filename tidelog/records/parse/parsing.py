"""The records of many batches read at once, with numpy.

Record starts are found first (`record_starts`), then each field of all records is decoded together.
What is well-formed is what `sequential` says.

Nothing that is read is trusted before it is checked, and nothing is read out of bounds: every
gather clips its positions into the buffer, and what a clipped read yields is refused in the end,
since positions only grow: a record that ends within its batch has been read within its batch. A
batch that fails does not disturb the others.
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
"""Rows decoded together: their columns stay in the processor's cache."""


@dataclass(slots=True)
class RecordColumns:
    """The layout of the records of several batches: a row a record, batch after batch.

    Starts and ends are positions in the buffer, lengths are -1 for null. The rows of a malformed
    batch mean nothing (a batch whose count is impossible has none).
    """

    counts: Integers
    """Rows of each batch."""
    first_rows: Integers
    """The first row of each batch (of one without rows: where it would be)."""
    stops: Integers
    """Where each batch's last record ends."""
    malformed: Booleans
    """Whether each batch is."""
    bad: Booleans
    """Whether each record is malformed."""
    start: Integers
    """Where each record's length stands."""
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
        """Take more records, and their batches, for malformed."""
        self.bad |= bad
        occupied = np.flatnonzero(self.counts)
        if len(occupied):
            self.malformed[occupied] |= np.logical_or.reduceat(bad, self.first_rows[occupied])


def parse_records(
    data: Bytes, starts: Integers, ends: Integers, counts: Integers, *, partial: bool = False
) -> RecordColumns:
    """The records of the batches whose decompressed records lie at [start, end).

    `partial`: more records may follow the counted ones; go on at `stops`. Checks everything but
    the values of offset deltas and what lies within the headers (`header_parsing`).
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
    """All fields of some records, and whether they are well-formed."""
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
    # Negative lengths must not move back: everything rests on positions that grow.
    position += np.maximum(key_length, 0)
    value_length, position = read_varints(data, position, bad)
    columns.value_start[rows] = position
    position += np.maximum(value_length, 0)
    count, position = read_varints(data, position, bad)
    bad |= (key_length < -1) | (value_length < -1)
    bad |= (count < 0) | (count > RECORD_HEADERS_MAX)
    # Of a length that is negative or too small nothing is left here, or less.
    room = end - position
    bad |= np.where(count == 0, room != 0, room < HEADER_BYTES_MIN * count)
    columns.end[rows] = end
    columns.key_length[rows], columns.value_length[rows] = key_length, value_length
    columns.header_start[rows], columns.header_count[rows] = position, count
