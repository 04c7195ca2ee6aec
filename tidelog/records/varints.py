"""Varints of many positions decoded at once, with numpy."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from tidelog.records.sequential import VARINT_BYTES_MAX, VARLONG_BYTES_MAX

Bytes: TypeAlias = NDArray[np.uint8]
Integers: TypeAlias = NDArray[np.int64]
Booleans: TypeAlias = NDArray[np.bool_]

_ZIGZAG = np.array([(byte >> 1) ^ -(byte & 1) for byte in range(128)], np.int64)
"""The values of varints of one byte."""


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
