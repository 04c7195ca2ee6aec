"""Surveys the records of small, ordinary batches in one plain loop.

Ordinary batches are what most producers send: no headers, small numbers. `sequential` and `parsing`
check every batch that this loop does not accept. So it needs neither messages nor exact limits; it
must only accept no batch that they would refuse.
"""

from __future__ import annotations

from typing import NamedTuple

from tidelog.records.buffers import Buffer


class ScannedRecords(NamedTuple):
    """The findings about a well-formed batch without headers."""

    first_delta: int
    """The first record's timestamp delta; then the least and the greatest."""
    min_delta: int
    max_delta: int
    max_index: int
    """The index of the first record with the greatest delta."""
    has_null_key: bool


def scan(buffer: Buffer, start: int, end: int, count: int) -> ScannedRecords | None:
    """A survey of the records that fill [start, end) exactly; None if they are not ordinary.

    One loop does it all: a call per field would double its time. Each record must end where its
    length says. Positions only grow, so no other check is needed.
    """
    position = start
    index = first = least = greatest = at_greatest = 0
    has_null_key = False
    try:
        while index < count:
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
            delta = buffer[position + 1]
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
            index += 1
    except IndexError:
        return None
    if position != end:
        return None
    return ScannedRecords(first, least, greatest, at_greatest, has_null_key)
