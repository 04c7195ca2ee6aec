"""Decodes varints at many positions together, with numpy."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tidelog.records.parse.sequential import VARINT_BYTES_MAX

Bytes: TypeAlias = NDArray[np.uint8]
Integers: TypeAlias = NDArray[np.int64]
Booleans: TypeAlias = NDArray[np.bool_]

_ZIGZAG = np.array([(byte >> 1) ^ -(byte & 1) for byte in range(128)], np.int64)
"""The values of one-byte varints."""


def read_varints(
    data: Bytes, positions: Integers, bad: Booleans, bytes_max: int = VARINT_BYTES_MAX
) -> tuple[Integers, Integers]:
    """The zigzag varints at the positions, and their ends; sets `bad` if there is none.

    As in `sequential`, they have 32 bits, or 64 with VARLONG_BYTES_MAX.
    """
    byte = data.take(positions, mode="clip")
    if not len(byte) or np.maximum.reduce(byte) < 128:
        return _ZIGZAG.take(byte), positions + 1
    ends = positions + 1
    second = data.take(ends, mode="clip")
    if np.minimum.reduce(byte) > 127 and np.maximum.reduce(second) < 128:
        both = (byte & np.uint8(127)).astype(np.int16)
        both |= second.astype(np.int16) << 7
        ends += 1
        return ((both >> 1) ^ -(both & 1)).astype(np.int64), ends
    # `two` is zero without a second byte. The rest uses the narrowest possible numbers.
    two = byte >> 7
    pair = (second & (two * np.uint8(127))).astype(np.uint16) << 7
    pair |= byte & np.uint8(127)
    ends += two
    values = ((pair >> 1).view(np.int16) ^ -(pair & 1).view(np.int16)).astype(np.int64)
    longer = np.flatnonzero((byte & second) > 127)
    if len(longer):
        _extend(data, pair, values, ends, longer, bad, bytes_max)
    return values, ends


def _extend(
    data: Bytes,
    pairs: NDArray[np.integer[Any]],
    values: Integers,
    ends: Integers,
    rows: Integers,
    bad: Booleans,
    bytes_max: int,
) -> None:
    """Set the values of the rows with three bytes or more; `pairs` has the first two bytes."""
    every, sums = rows, pairs[rows].astype(np.int64)
    at = ends[rows]
    going = np.arange(len(rows))
    for index in range(2, bytes_max):
        byte = data.take(at, mode="clip")
        at += 1
        ends[rows] = at
        if index == bytes_max - 1:
            # The last possible byte has room for the top bits only.
            room = 15 if bytes_max == VARINT_BYTES_MAX else 1
            bad[rows[byte > room]] = True
            byte &= np.uint8(room)
        sums[going] |= (byte & np.uint8(127)).astype(np.int64) << (7 * index)
        more = np.flatnonzero(byte > 127)
        if not len(more):
            break
        rows, going, at = rows[more], going[more], at[more]
    # The shift must not extend the sign bit.
    values[every] = ((sums >> 1) & np.int64(2**63 - 1)) ^ -(sums & 1)
