"""Parses the headers of many records together, with numpy.

All records advance in lockstep, one header a step. `sequential` defines well-formed headers. Each
step keeps the positions within their records.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from tidelog.records.batch import MalformedBatch
from tidelog.records.parse.row_arrays import element_offsets, gather
from tidelog.records.parse.sequential import is_utf8, read_header_layouts
from tidelog.records.parse.varints import Booleans, Bytes, Integers, read_varints

_LANES_MIN = 40
"""For fewer records a numpy step costs more than a Python loop."""
_GATHER_BYTES_MAX = 1 << 20
_LONG_KEY_BYTES = 1 << 10


@dataclass(slots=True)
class HeaderColumns:
    """The layout of record headers: one row per header, in record order."""

    first_rows: Integers
    """The first row of each record; at the end, the number of all rows."""
    key_start: Integers
    key_length: Integers
    value_start: Integers
    value_length: Integers


def parse_headers(
    data: Bytes, start: Integers, count: Integers, end: Integers
) -> tuple[HeaderColumns, Booleans]:
    """The headers of well-formed records (`parsing`), and a mask of records with bad headers.

    A record is bad if its headers do not end where it does, or a key is null or not UTF-8. The rows
    of its headers are then meaningless.
    """
    first_rows = np.zeros(len(count) + 1, np.int64)
    np.cumsum(count, out=first_rows[1:])
    total = int(first_rows[-1])
    headers = HeaderColumns(first_rows, *(np.zeros(total, np.int64) for _ in range(4)))
    return headers, _read_headers(data, start, count, end, headers)


def check_headers(data: Bytes, start: Integers, count: Integers, end: Integers) -> Booleans:
    """The mask of `parse_headers`, in memory that does not grow with the headers."""
    return _read_headers(data, start, count, end, None)


def _read_headers(
    data: Bytes, start: Integers, count: Integers, end: Integers, headers: HeaderColumns | None
) -> Booleans:
    """A mask of records with bad headers; fills `headers` if given."""
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
    """The layout of the next header of these records; sets `bad` if one does not fit."""
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
    """The indexes of the texts that are not UTF-8."""
    suspects = np.flatnonzero(length > _LONG_KEY_BYTES).tolist()
    short = np.flatnonzero((length > 0) & (length <= _LONG_KEY_BYTES))
    rows_max = _GATHER_BYTES_MAX // _LONG_KEY_BYTES
    source = pa.py_buffer(data)
    for row in range(0, len(short), rows_max):
        chunk = short[row : row + rows_max]
        keys = gather(source, start[chunk], length[chunk])
        ends = element_offsets(keys)
        letters = np.frombuffer(keys.buffers()[2], np.uint8)[: ends[-1]]
        if np.maximum.reduce(letters) > 127:
            beyond_ascii = np.maximum.reduceat(letters, ends[:-1]) > 127
            suspects += chunk[beyond_ascii].tolist()
    view = data.data
    wrong = [
        index
        for index in suspects
        if not is_utf8(view[int(start[index]) : int(start[index] + length[index])])
    ]
    return np.array(wrong, np.int64)
