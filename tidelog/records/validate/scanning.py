"""Surveys the records of ordinary batches in one plain loop.

Ordinary batches are what most producers send: no headers, small numbers. `sequential` and `parsing`
check every batch that this loop does not accept. So it needs neither messages nor exact limits; it
must only accept no batch that they would refuse.

Many producers send records of equal sizes. All bytes of such records that the loop reads are equal,
but for two: the offset delta, which is known, and the timestamp delta. Columns of bytes, a few for
all records, show that (`_alike`).
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from tidelog.named_tuples import new_tuple
from tidelog.records.buffers import Buffer

_ALIKE_MIN: Final = 4
"""For fewer records the loop is faster."""
_ONE_BYTE: Final = 64
_TWO_BYTES: Final = 8192
_KNOWN: Final = 1 << 16
"""Offset deltas below these take one byte, two bytes, three bytes that `_OFFSET_BYTES` has."""
_OFFSETS: Final = np.arange(_KNOWN) * 2
_OFFSET_BYTES: Final = tuple(
    column.astype(np.uint8).tobytes()
    for column in (
        _OFFSETS & 127 | (_OFFSETS > 127) << 7,
        _OFFSETS >> 7 & 127 | (_OFFSETS > 0x3FFF) << 7,
        _OFFSETS >> 14,
    )
)
"""The first byte of the offset delta of each index, then the others of those that have them."""
_MANY: Final = 256
"""From here on numpy is faster than Python's memoryview."""


class ScannedRecords(NamedTuple):
    """The findings about a well-formed batch without headers."""

    first_delta: int
    """The first record's timestamp delta; then the least and the greatest."""
    min_delta: int
    max_delta: int
    max_index: int
    """The index of the first record with the greatest delta."""
    has_null_key: bool


def scan(
    buffer: Buffer, begin: int, end: int, count: int, looped_max: int
) -> ScannedRecords | None:
    """A survey of the records that fill [begin, end) exactly; None if they are not ordinary, or if
    the loop would have to read more than `looped_max`.

    One loop does it all: a call per field would double its time. Each record must end where its
    length says. Positions only grow, so no other check is needed.
    """
    position = begin
    index = first = least = greatest = at_greatest = looped = next_run = 0
    has_null_key = False
    try:
        while index < count:
            if looped == looped_max:
                return None
            looped += 1
            start = position
            length = buffer[position]
            position += 1
            if length > 127:
                byte = buffer[position]
                position += 1
                length = length & 127 | byte << 7
                if byte > 127:
                    byte = buffer[position]
                    position += 1
                    if byte > 127:
                        return None
                    length = length & 0x3FFF | byte << 14
            record_end = position + (length >> 1)
            if length & 1 or record_end > end or buffer[position]:
                return None
            delta_at = position + 1
            delta = buffer[delta_at]
            position += 2
            if delta > 127:
                byte = buffer[position]
                position += 1
                delta = delta & 127 | byte << 7
                if byte > 127:
                    byte = buffer[position]
                    position += 1
                    if byte > 127:
                        return None
                    delta = delta & 0x3FFF | byte << 14
            delta = (delta >> 1) ^ -(delta & 1)
            offset_at = position
            offset = buffer[position]
            position += 1
            if offset > 127:
                byte = buffer[position]
                position += 1
                offset = offset & 127 | byte << 7
                if byte > 127:
                    byte = buffer[position]
                    position += 1
                    if byte > 127:
                        return None
                    offset = offset & 0x3FFF | byte << 14
            if offset != index << 1:
                return None
            key_at = position
            key = buffer[position]
            position += 1
            if key == 1:
                has_null_key = True
            else:
                if key > 127:
                    byte = buffer[position]
                    position += 1
                    if byte > 127:
                        return None
                    key = key & 127 | byte << 7
                if key & 1:
                    return None
                position += key >> 1
            value_at = position
            value = buffer[position]
            position += 1
            if value != 1:
                if value > 127:
                    byte = buffer[position]
                    position += 1
                    value = value & 127 | byte << 7
                    if byte > 127:
                        byte = buffer[position]
                        position += 1
                        if byte > 127:
                            return None
                        value = value & 0x3FFF | byte << 14
                if value & 1:
                    return None
                position += value >> 1
            if buffer[position] or position + 1 != record_end:
                return None
            position = record_end
            if index == 0:
                first = least = greatest = delta
            elif delta > greatest:
                greatest, at_greatest = delta, index
            elif delta < least:
                least = delta
            if index in (next_run, _ONE_BYTE, _TWO_BYTES):
                form = new_tuple(_Form, (start, delta_at, offset_at, key_at, value_at, record_end))
                run = _alike(buffer, end, index, count, form)
                if run is not None:
                    rows, low, high, at_high = run
                    least = min(least, low)
                    if high > greatest:
                        greatest, at_greatest = high, index + at_high
                    position = start + rows * (record_end - start)
                    index += rows - 1
                    next_run = index + 1
            index += 1
    except IndexError:
        return None
    if position != end:
        return None
    return new_tuple(ScannedRecords, (first, least, greatest, at_greatest, has_null_key))


class _Form(NamedTuple):
    """The positions of one record's parts."""

    start: int
    delta_at: int
    offset_at: int
    key_at: int
    value_at: int
    end: int


class _Run(NamedTuple):
    """Records of the same form, and their timestamp deltas."""

    rows: int
    least: int
    greatest: int
    at_greatest: int
    """The first row with the greatest delta."""


def _alike(buffer: Buffer, end: int, index: int, count: int, record: _Form) -> _Run | None:
    """The records from `index` on that have the form of the first of them, which is `record`.

    That one is ordinary. The batch has `count` records and ends at `end`. Keys and values are no
    form. None if there are few such records, or their offset deltas are wrong.
    """
    start, delta_at, offset_at, key_at, value_at, following = record
    size = following - start
    longer = _ONE_BYTE if index < _ONE_BYTE else _TWO_BYTES if index < _TWO_BYTES else _KNOWN
    rows = min(count, longer, index + (end - start) // size) - index
    if rows < _ALIKE_MIN:
        return None
    view = memoryview(buffer) if rows < _MANY else np.frombuffer(buffer, np.uint8)
    form = [*range(start, delta_at), start + size - 1]
    for begun in (key_at, value_at):
        form.append(begun)
        while buffer[begun] > 127:
            begun += 1
            form.append(begun)
    for at in form:
        column = view[at : start + rows * size : size].tobytes()
        rows -= len(column.lstrip(column[:1]))
    if rows < _ALIKE_MIN:
        return None
    end = start + rows * size
    for at, known in zip(range(offset_at, key_at), _OFFSET_BYTES, strict=False):
        if view[at:end:size].tobytes() != known[index : index + rows]:
            return None
    columns = [view[at:end:size].tobytes() for at in range(delta_at, offset_at)]
    if not columns[-1].isascii() or any(min(column) <= 127 for column in columns[:-1]):
        return None
    if len(columns) == 1 and rows < _MANY:
        deltas = [(byte >> 1) ^ -(byte & 1) for byte in columns[0]]
        greatest = max(deltas)
        return new_tuple(_Run, (rows, min(deltas), greatest, deltas.index(greatest)))
    numbers = np.zeros(rows, np.int64)
    for place, column in enumerate(columns):
        numbers |= (np.frombuffer(column, np.uint8).astype(np.int64) & 127) << 7 * place
    numbers = (numbers >> 1) ^ -(numbers & 1)
    at_greatest = int(numbers.argmax())
    return _Run(rows, int(numbers.min()), int(numbers[at_greatest]), at_greatest)
