"""Surveys the records of ordinary batches in one plain loop.

Ordinary batches are what most producers send: no headers, small numbers. `sequential` and `parsing`
check every batch that this loop does not accept. So it needs neither messages nor exact limits; it
must only accept no batch that they would refuse.

Many producers send records of equal sizes. All bytes of such records that the loop reads are equal,
but for two: the offset delta, which is known, and the timestamp delta. Columns of bytes, a few for
all records, show that (`_deltas`).
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from tidelog.records.buffers import Buffer

_ALIKE_MIN: Final = 4
"""For fewer records the loop is faster."""
_ALIKE_FROM: Final = {0: 64, 64: 8192, 8192: 1 << 16}
"""From the first index of each size of offset deltas up to the last one, exclusive."""
_OFFSETS: Final = np.arange(0, 2 << 16, 2)
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
_BYTES: Final = range(128)


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
    index = first = least = greatest = at_greatest = looped = 0
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
            if index in _ALIKE_FROM:
                size = record_end - start
                rows = min(count, _ALIKE_FROM[index], index + (end - start) // size) - index
                column = b""
                if rows >= _ALIKE_MIN:
                    column = _deltas(buffer, start, size, rows, index, delta_at, key_at, value_at)
                if column:
                    found = set(column if rows < _MANY else filter(column.__contains__, _BYTES))
                    deltas = {(byte >> 1) ^ -(byte & 1): byte for byte in found}
                    least, most = min(least, *deltas), max(deltas)
                    if most > greatest:
                        greatest, at_greatest = most, index + column.index(deltas[most])
                    position = start + rows * size
                    index += rows - 1
            index += 1
    except IndexError:
        return None
    if position != end:
        return None
    return ScannedRecords(first, least, greatest, at_greatest, has_null_key)


def _deltas(
    buffer: Buffer,
    start: int,
    size: int,
    rows: int,
    index: int,
    delta_at: int,
    key_at: int,
    value_at: int,
) -> bytes:
    """The timestamp deltas of `rows` records of `size` bytes each from `start`, one byte each.

    Empty if they do not all have the form of the first one. That is ordinary, and has the offset
    delta `index`. Keys and values are no form.
    """
    view = memoryview(buffer) if rows < _MANY else np.frombuffer(buffer, np.uint8)
    end = start + rows * size
    deltas = view[delta_at:end:size].tobytes()
    if not deltas.isascii():
        return b""
    form = [*range(start, delta_at), start + size - 1]
    for begun in (key_at, value_at):
        form.append(begun)
        while buffer[begun] > 127:
            begun += 1
            form.append(begun)
    for at in form:
        column = view[at:end:size].tobytes()
        if column.count(column[0]) != rows:
            return b""
    for at, known in zip(range(delta_at + 1, key_at), _OFFSET_BYTES, strict=False):
        if view[at:end:size].tobytes() != known[index : index + rows]:
            return b""
    return deltas
