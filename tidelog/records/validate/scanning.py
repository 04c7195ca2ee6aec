"""The records of small, ordinary batches surveyed in one plain loop.

Ordinary is what producers send most: no headers, numbers of few bytes. Anything else is not judged
here: what this loop does not take, malformed or merely unusual, `sequential` and `parsing` look
at. So it needs no messages and no exact limits; it must only take nothing that they would refuse.
"""

from __future__ import annotations

from typing import NamedTuple

from tidelog.records.buffers import Buffer


class ScannedRecords(NamedTuple):
    """What the records of a well-formed batch without headers show."""

    first_delta: int
    """Of the first record's timestamp; then the least and the greatest."""
    min_delta: int
    max_delta: int
    max_index: int
    """The first record that has the greatest."""
    has_null_key: bool


def scan(buffer: Buffer, start: int, end: int, count: int) -> ScannedRecords | None:
    """A survey of the records that fill [start, end) exactly; None if they are not ordinary.

    One loop with everything in it: a call a field would double its time. Each record is read field
    by field and has to end where its length says; positions only grow, so nothing beyond that is
    believed.
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
