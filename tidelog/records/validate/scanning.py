"""Surveys the records of small, ordinary batches in one plain loop.

Ordinary batches are what most producers send: no headers, small numbers. `sequential` and `parsing`
check every batch that this loop does not accept. So it needs neither messages nor exact limits; it
must only accept no batch that they would refuse.

Many producers send records of equal sizes. All bytes of such records that the loop reads are equal,
but for two: the offset delta, which is known, and the timestamp delta. Columns of bytes, a few for
all records, show that (`_alike`).
"""

from __future__ import annotations

from typing import Final, NamedTuple

from tidelog.records.buffers import Buffer

_ALIKE_MIN: Final = 4
"""For fewer records the loop is faster."""
_ONE_BYTE_OFFSETS: Final = 64
_OFFSETS_MAX: Final = 512
_FIRST_BYTES: Final = bytes(
    index * 2 if index < _ONE_BYTE_OFFSETS else index * 2 & 127 | 128
    for index in range(_OFFSETS_MAX)
)
"""By index: the first byte of a record's offset delta, and the second if there is one."""
_SECOND_BYTES: Final = bytes(index * 2 >> 7 for index in range(_OFFSETS_MAX))


class ScannedRecords(NamedTuple):
    """The findings about a well-formed batch without headers."""

    first_delta: int
    """The first record's timestamp delta; then the least and the greatest."""
    min_delta: int
    max_delta: int
    max_index: int
    """The index of the first record with the greatest delta."""
    has_null_key: bool


def scan(buffer: Buffer, begin: int, end: int, count: int) -> ScannedRecords | None:
    """A survey of the records that fill [begin, end) exactly; None if they are not ordinary.

    One loop does it all: a call per field would double its time. Each record must end where its
    length says. Positions only grow, so no other check is needed.
    """
    position = begin
    index = first = least = greatest = at_greatest = 0
    has_null_key = False
    try:
        while index < count:
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
                if byte > 127:
                    return None
                offset = offset & 127 | byte << 7
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
            if index == 0 or index == _ONE_BYTE_OFFSETS:
                size = record_end - start
                last = _ONE_BYTE_OFFSETS if index == 0 else _OFFSETS_MAX
                rows = min(count, last, index + (end - start) // size) - index
                if rows >= _ALIKE_MIN and _are_alike(
                    buffer, start, size, rows, index, delta_at, key_at, value_at
                ):
                    column = bytes(buffer[delta_at : start + rows * size : size])
                    deltas = [(byte >> 1) ^ -(byte & 1) for byte in column]
                    least, most = min(least, *deltas), max(deltas)
                    if most > greatest:
                        greatest, at_greatest = most, index + deltas.index(most)
                    position = start + rows * size
                    index += rows - 1
            index += 1
    except IndexError:
        return None
    if position != end:
        return None
    return ScannedRecords(first, least, greatest, at_greatest, has_null_key)


def _are_alike(
    buffer: Buffer,
    start: int,
    size: int,
    rows: int,
    index: int,
    delta_at: int,
    key_at: int,
    value_at: int,
) -> bool:
    """Whether `rows` records of `size` bytes each begin at `start` and have the form of the first.

    The first one has the offset delta `index`, and is ordinary. The others differ from it in the
    offset delta, and in a timestamp delta of one byte. Keys, values and headers are no form.
    """
    offset_at = delta_at + 1
    form = [*range(start, delta_at), start + size - 1]
    for begun in (key_at, value_at):
        form.append(begun)
        while buffer[begun] > 127:
            begun += 1
            form.append(begun)
    end = start + rows * size
    if max(bytes(buffer[delta_at:end:size])) > 127:
        return False
    for at in form:
        column = bytes(buffer[at:end:size])
        if column.count(column[0]) != rows:
            return False
    if bytes(buffer[offset_at:end:size]) != _FIRST_BYTES[index : index + rows]:
        return False
    return index < _ONE_BYTE_OFFSETS or (
        bytes(buffer[offset_at + 1 : end : size]) == _SECOND_BYTES[index : index + rows]
    )
