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
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from tidelog.records.batch import MalformedBatch
from tidelog.records.sequential import (
    HEADER_BYTES_MIN,
    RECORD_BYTES_MIN,
    RECORD_HEADERS_MAX,
    VARINT_BYTES_MAX,
    VARLONG_BYTES_MAX,
    is_utf8,
    read_header_layouts,
)

Bytes: TypeAlias = NDArray[np.uint8]
Integers: TypeAlias = NDArray[np.int64]
Booleans: TypeAlias = NDArray[np.bool_]

_ROWS = 1 << 14
"""Rows decoded together: their columns stay in the processor's cache."""
_LANES_MIN = 40
"""With fewer batches (or records with headers) a step of numpy costs more than a Python loop."""
_RUN_ROWS_MIN = 16
_RUN_ROWS_MAX = 1024
_STINT_ROWS = 256
_ZIGZAG = np.array([(byte >> 1) ^ -(byte & 1) for byte in range(128)], np.int64)
"""The values of varints of one byte."""
_GATHER_BYTES_MAX = 1 << 20
_LONG_KEY_BYTES = 1 << 10


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


@dataclass(slots=True)
class HeaderColumns:
    """The layout of record headers: a row a header, record after record."""

    first_rows: Integers
    """The first row of each record, and the number of all rows at the end."""
    key_start: Integers
    key_length: Integers
    value_start: Integers
    value_length: Integers


def parse_records(
    data: Bytes, starts: Integers, ends: Integers, counts: Integers, *, partial: bool = False
) -> RecordColumns:
    """The records of the batches whose decompressed records lie at [start, end).

    `partial`: more records may follow the counted ones; go on at `stops`. Checks everything but
    the values of offset deltas and what lies within the headers (`parse_headers`).
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


def parse_headers(
    data: Bytes, start: Integers, count: Integers, end: Integers
) -> tuple[HeaderColumns, Booleans]:
    """The headers of records that `parse_records` took for well-formed, and which records are not.

    A record is bad if its headers do not end where it does or if a key is null or not UTF-8; the
    rows of its headers mean nothing.
    """
    first_rows = np.zeros(len(count) + 1, np.int64)
    np.cumsum(count, out=first_rows[1:])
    total = int(first_rows[-1])
    headers = HeaderColumns(first_rows, *(np.zeros(total, np.int64) for _ in range(4)))
    return headers, _read_headers(data, start, count, end, headers)


def check_headers(data: Bytes, start: Integers, count: Integers, end: Integers) -> Booleans:
    """As `parse_headers`, without keeping what is read: memory does not grow with the headers."""
    return _read_headers(data, start, count, end, None)


def read_varints(
    data: Bytes, positions: Integers, bad: Booleans, bytes_max: int = VARINT_BYTES_MAX
) -> tuple[Integers, Integers]:
    """Zigzag varints at the positions, and where they end; `bad` is set where there is none.

    As `sequential` reads them: of 32 bits, or of 64 with VARLONG_BYTES_MAX.
    """
    byte = data.take(positions, mode="clip")
    if not len(byte) or np.maximum.reduce(byte) < 128:
        return _ZIGZAG.take(byte), positions + 1
    ends = positions + 1
    second = data.take(ends, mode="clip")
    if np.minimum.reduce(byte) > 127 and np.maximum.reduce(second) < 128:
        pair = (byte & np.uint8(127)).astype(np.int16)
        pair |= second.astype(np.int16) << 7
        ends += 1
        return ((pair >> 1) ^ -(pair & 1)).astype(np.int64), ends
    follows = byte > 127
    values = (byte & np.uint8(127)).astype(np.int64)
    values += np.where(follows, second & np.uint8(127), np.uint8(0)).astype(np.int64) << 7
    ends += follows
    _extend(data, values, ends, np.flatnonzero(follows & (second > 127)), bad, bytes_max)
    if bytes_max == VARLONG_BYTES_MAX:
        # The shift must not drag the top bit along.
        return ((values >> 1) & np.int64(2**63 - 1)) ^ -(values & 1), ends
    return (values >> 1) ^ -(values & 1), ends


def _extend(
    data: Bytes, values: Integers, ends: Integers, rows: Integers, bad: Booleans, bytes_max: int
) -> None:
    """Add the third and later bytes to the values of the rows that have them."""
    for index in range(2, bytes_max):
        if not len(rows):
            return
        at = ends[rows]
        byte = data.take(at, mode="clip")
        ends[rows] = at + 1
        if index == bytes_max - 1:
            # The last byte that there may be has room for the top bits only.
            room = 15 if bytes_max == VARINT_BYTES_MAX else 1
            bad[rows[byte > room]] = True
            byte &= np.uint8(room)
        values[rows] |= (byte & np.uint8(127)).astype(np.int64) << (7 * index)
        rows = rows[byte > 127]


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


def _read_headers(
    data: Bytes, start: Integers, count: Integers, end: Integers, headers: HeaderColumns | None
) -> Booleans:
    """Which records have bad headers; `headers` is filled, if given."""
    bad = np.zeros(len(count), np.bool_)
    position = start.copy()
    rows = np.flatnonzero(count)
    step = 0
    while len(rows) >= _LANES_MIN:
        fields = _step(data, bad, position, rows, end)
        key_start, key_length, value_start, value_length = fields
        if headers is not None:
            _keep(headers, headers.first_rows[rows] + step, *fields)
        good = ~bad[rows]
        bad[rows[good][_not_utf8(data, key_start[good], key_length[good])]] = True
        position[rows] = value_start + np.maximum(value_length, 0)
        step += 1
        rows = rows[~bad[rows] & (count[rows] > step)]
    view = data.data
    for row in rows.tolist():
        try:
            layouts = read_header_layouts(
                view, int(position[row]), int(end[row]), int(count[row]) - step
            )
        except MalformedBatch:
            bad[row] = True
            continue
        position[row] = layouts[-1].value_start + max(layouts[-1].value_length, 0)
        if headers is not None:
            kept = slice(int(headers.first_rows[row]) + step, int(headers.first_rows[row + 1]))
            _keep(headers, kept, *np.array(layouts, np.int64).T)
    bad |= (position != end) & (count > 0)
    return bad


def _step(
    data: Bytes, bad: Booleans, position: Integers, rows: Integers, end: Integers
) -> tuple[Integers, Integers, Integers, Integers]:
    """One more header of each of these records: its layout; `bad` where it does not fit."""
    wrong = np.zeros(len(rows), np.bool_)
    limits = end[rows]
    key_length, key_start = read_varints(data, position[rows], wrong)
    wrong |= (key_length < 0) | (key_length > limits - key_start)
    at = key_start + np.maximum(key_length, 0)
    value_length, value_start = read_varints(data, at, wrong)
    wrong |= (value_length < -1) | (value_length > limits - value_start)
    bad[rows] |= wrong
    return key_start, key_length, value_start, value_length


def _keep(
    headers: HeaderColumns,
    rows: Integers | slice,
    key_start: Integers,
    key_length: Integers,
    value_start: Integers,
    value_length: Integers,
) -> None:
    headers.key_start[rows], headers.key_length[rows] = key_start, key_length
    headers.value_start[rows], headers.value_length[rows] = value_start, value_length


def _not_utf8(data: Bytes, start: Integers, length: Integers) -> Integers:
    """Which of these texts are not UTF-8, by index."""
    suspects = np.flatnonzero(length > _LONG_KEY_BYTES).tolist()
    short = np.flatnonzero((length > 0) & (length <= _LONG_KEY_BYTES))
    rows_max = _GATHER_BYTES_MAX // _LONG_KEY_BYTES
    for row in range(0, len(short), rows_max):
        chunk = short[row : row + rows_max]
        lengths = length[chunk]
        firsts = np.cumsum(lengths) - lengths
        at = np.repeat(start[chunk] - firsts, lengths) + np.arange(int(lengths.sum()))
        beyond_ascii = np.maximum.reduceat(data.take(at, mode="clip"), firsts) > 127
        suspects += chunk[beyond_ascii].tolist()
    view = data.data
    wrong = [
        index
        for index in suspects
        if not is_utf8(view[int(start[index]) : int(start[index] + length[index])])
    ]
    return np.array(wrong, np.int64)
