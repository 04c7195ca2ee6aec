"""The records of many batches read at once, with numpy.

Record starts are found with all batches in lockstep (step i finds the i-th record of each batch);
then each field of all records is decoded together. What is well-formed is what `sequential` says.

Nothing that is read is trusted before it is checked, and nothing is read out of bounds: every
gather clips its positions into the buffer, and what a clipped read yields is refused in the end,
since positions only grow: a record that ends within its batch has been read within its batch. A
batch that fails does not disturb the others.
"""

from __future__ import annotations

from dataclasses import dataclass
from struct import Struct
from struct import error as StructError

import numpy as np

from tidelog.records.sequential import (
    HEADER_BYTES_MIN,
    RECORD_BYTES_MIN,
    RECORD_HEADERS_MAX,
    VARINT_BYTES_MAX,
    VARLONG_BYTES_MAX,
)
from tidelog.records.varints import Booleans, Bytes, Integers, read_varints

_ROWS = 1 << 14
"""Rows decoded together: their columns stay in the processor's cache."""
_LANES_MIN = 40
"""With fewer batches a step of numpy costs more than a Python loop over them."""
_RUN_ROWS_MIN = 16
_RUN_ROWS_MAX = 1024
_STINT_ROWS = 256


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
    start, stops = _find_records(data, starts, counts, first_rows)
    malformed = ~possible | (stops > ends if partial else stops != ends)
    columns = _allocate(counts, first_rows, stops, malformed, start)
    limits = np.repeat(ends, counts)
    for row in range(0, len(start), _ROWS):
        _decode(data, columns, slice(row, row + _ROWS), limits[row : row + _ROWS])
    if columns.bad.any():
        columns.mark(columns.bad)
    return columns


def _find_records(
    data: Bytes, starts: Integers, counts: Integers, first_rows: Integers
) -> tuple[Integers, Integers]:
    """Where each record starts, by lengths alone, and where the last of each batch ends.

    Past a malformed length both mean nothing; they may lie outside the buffer.
    """
    found = np.empty(int(counts.sum()), np.int64)
    order = np.argsort(-counts, kind="stable")
    counts, first_rows, position = counts[order], first_rows[order], starts[order]
    descending = -counts
    steps = int(counts[0]) if len(counts) else 0
    step = 0
    while step < steps:
        lanes = int(np.searchsorted(descending, -step, "left"))
        if lanes < _LANES_MIN:
            break
        at = position[:lanes]
        found[first_rows[:lanes] + step] = at
        length, body = read_varints(data, at, np.zeros(lanes, np.bool_))
        np.add(body, np.maximum(length, 0), out=at)
        step += 1
    lanes = int(np.searchsorted(descending, -step, "left"))
    view = data.data
    for lane in range(lanes):
        first = int(first_rows[lane])
        rows = found[first + step : first + int(counts[lane])]
        position[lane] = _walk(data, view, int(position[lane]), rows)
    stops = np.empty_like(position)
    stops[order] = position
    return found, stops


def _walk(data: Bytes, view: memoryview, position: int, found: Integers) -> int:
    """The starts of one batch's records from a position on, into `found`; where the last ends."""
    row, stint, guess = 0, _STINT_ROWS, _STINT_ROWS
    while row < len(found):
        left = len(found) - row
        run = 0
        if left >= _RUN_ROWS_MIN:
            run, size = _run_of_equals(data, view, position, min(left, guess))
            found[row : row + run] = position + size * np.arange(run)
            row, position = row + run, position + size * run
            guess = min(4 * guess, _RUN_ROWS_MAX) if run == guess else _RUN_ROWS_MIN
        if run < _RUN_ROWS_MIN:
            # Sizes vary: trying again at once would cost more than it brings.
            following = found[row : row + stint]
            position = _walk_singly(view, position, following)
            row, stint = row + len(following), 2 * stint
    return position


def _run_of_equals(data: Bytes, view: memoryview, position: int, rows_max: int) -> tuple[int, int]:
    """How many records from a position on have the same size (0 if that one has none); the size.

    Producers of fixed-size messages are common, and a guess is checked at numpy's speed.
    """
    prefix = bytes(view[position : position + 3])
    width = next((i + 1 for i, byte in enumerate(prefix) if byte < 128), 0)
    if not width:
        return 0, 0
    value = sum((byte & 127) << (7 * i) for i, byte in enumerate(prefix[:width]))
    size = width + (value >> 1)
    at = position + size * np.arange(rows_max)
    equal = data.take(at, mode="clip") == prefix[0]
    for i in range(1, width):
        equal &= data.take(at + i, mode="clip") == prefix[i]
    return (rows_max if equal.all() else int(equal.argmin())), size


def _record_sizes() -> list[int]:
    """A record's size by its first two bytes, the first one lowest; 0 where they do not say it."""
    first, second = np.arange(1 << 16) & 255, np.arange(1 << 16) >> 8
    long = np.where(second < 128, 2 + ((second << 7 | first & 127) >> 1), 0)
    sizes = np.where(first < 128, 1 + (first >> 1), long)
    # One object a number, not one an entry: the table takes half a megabyte instead of two.
    numbers = list(range(int(sizes.max()) + 1))
    return [numbers[size] for size in sizes.tolist()]


_RECORD_SIZES = _record_sizes()
_TWO_BYTES = Struct("<H")


def _walk_singly(view: memoryview, position: int, found: Integers) -> int:
    """As `_walk`, in a plain loop."""
    rows: list[int] = []
    add, sizes, two_bytes = rows.append, _RECORD_SIZES, _TWO_BYTES.unpack_from
    try:
        for _ in range(len(found)):
            add(position)
            size = sizes[two_bytes(view, position)[0]]
            if size:
                position += size
                continue
            value = 0
            for shift in range(0, 7 * VARINT_BYTES_MAX, 7):
                byte = view[position]
                position += 1
                value |= (byte & 127) << shift
                if byte < 128:
                    break
            position += value >> 1
    except (IndexError, StructError):
        # Beyond the buffer: the record before reaches out of its batch and is refused for it.
        position = len(view) + 1
        rows += [position] * (len(found) - len(rows))
    found[:] = rows
    return position


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
