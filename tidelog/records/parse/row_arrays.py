"""Arrow arrays of keys, values and headers, built from byte ranges and read back."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tidelog.records.parse.varints import Booleans, Bytes, Integers
from tidelog.records.row_columns import HEADERS_TYPE


def null_bitmap(absent: Booleans) -> pa.Buffer | None:
    """Arrow's validity bitmap; None without nulls."""
    if not absent.any():
        return None
    return pa.py_buffer(np.packbits(~absent, bitorder="little"))


def integer_array(
    values: NDArray[np.signedinteger[Any]], kind: pa.DataType, absent: Booleans | None = None
) -> pa.Array:
    """The numbers as an array of a type of the same width, without a copy; null if absent."""
    bitmap = None if absent is None else null_bitmap(absent)
    return pa.Array.from_buffers(kind, len(values), [bitmap, pa.py_buffer(values)])


def boolean_array(values: Booleans) -> pa.Array:
    """The values as an array. (Arrow's own `array` imports pandas if installed.)"""
    bits = pa.py_buffer(np.packbits(values, bitorder="little"))
    return pa.Array.from_buffers(pa.bool_(), len(values), [None, bits])


def gather(
    source: pa.Buffer, start: Integers, length: Integers, kind: pa.DataType | None = None
) -> pa.Array:
    """The bytes at [start, start + length) copied into one array; a length of -1 gives null.

    The ranges must ascend, be disjoint and lie within the source, of less than 2 GiB. `kind` is
    binary, or string for bytes known to be UTF-8. The source becomes an array without a copy: its
    even elements are the ranges, its odd elements the gaps. Arrow's `take` of the even elements
    copies each value once, far faster than numpy's indexing of single bytes.
    """
    rows = len(start)
    kind = pa.binary() if kind is None else kind
    absent = length < 0
    held = np.maximum(length, 0)
    if not held.any():
        if absent.all():
            return pa.nulls(rows, kind)
        offsets = pa.py_buffer(np.zeros(rows + 1, np.int32))
        return pa.Array.from_buffers(kind, rows, [null_bitmap(absent), offsets, pa.py_buffer(b"")])
    bounds = np.empty(2 * rows + 1, np.int32)
    bounds[0:-1:2] = start
    np.add(start, held, out=bounds[1::2], casting="unsafe")
    bounds[-1] = bounds[-2]
    ranges = pa.Array.from_buffers(pa.binary(), 2 * rows, [None, pa.py_buffer(bounds), source])
    taken = ranges.take(integer_array(np.arange(0, 2 * rows, 2, dtype=np.int32), pa.int32()))
    return pa.Array.from_buffers(kind, rows, [null_bitmap(absent), *taken.buffers()[1:]])


def group_headers(structs: pa.StructArray, first_rows: Integers) -> pa.Array:
    """Headers as one list per record; null for a record without headers.

    `first_rows` holds the first header of each record, and at the end the number of headers.
    """
    offsets = first_rows.astype(np.int32)
    absent = offsets[1:] == offsets[:-1]
    return pa.Array.from_buffers(
        HEADERS_TYPE,
        len(absent),
        [null_bitmap(absent), pa.py_buffer(offsets)],
        children=[structs],
    )


def nulls_of(array: pa.Array) -> Booleans:
    """A mask of the null elements."""
    bitmap = array.buffers()[0]
    if not array.null_count:
        return np.zeros(len(array), np.bool_)
    if bitmap is None:
        return np.ones(len(array), np.bool_)
    bits = np.frombuffer(bitmap, np.uint8)
    first, last = array.offset, array.offset + len(array)
    valid = np.unpackbits(bits[first // 8 : (last + 7) // 8], bitorder="little")
    absent: Booleans = valid[first % 8 : first % 8 + len(array)] == 0
    return absent


def integers_of(array: pa.Array, absent: int | None = None) -> Integers:
    """The numbers of an int32, int64 or timestamp array; `absent` replaces null.

    (Arrow's own `to_numpy` would import pandas if installed.)
    """
    width = np.int32 if array.type == pa.int32() else np.int64
    held = np.frombuffer(array.buffers()[1], width)[array.offset : array.offset + len(array)]
    values: Integers = held.astype(np.int64, copy=False)
    if array.null_count:
        if absent is None:
            raise ValueError(f"{array.null_count} nulls where there must be none")
        values = np.where(nulls_of(array), absent, values)
    return values


def element_offsets(array: pa.Array) -> Integers:
    """The start of each element of a binary, string or list array in its values, and the last one's
    end.
    """
    if not len(array):
        return np.zeros(1, np.int64)
    offsets = np.frombuffer(array.buffers()[1], np.int32)
    return offsets[array.offset : array.offset + len(array) + 1].astype(np.int64)


def lengths_of(array: pa.Array) -> Integers:
    """The byte length of each element of a binary or string array; -1 for null."""
    lengths = np.diff(element_offsets(array))
    if array.null_count:
        lengths[nulls_of(array)] = -1
    return lengths


def binary_array(offsets: NDArray[np.signedinteger[Any]], data: Bytes | pa.Buffer) -> pa.Array:
    """A binary array without nulls over bytes that are already laid out."""
    source = data if isinstance(data, pa.Buffer) else pa.py_buffer(data)
    bounds = pa.py_buffer(offsets.astype(np.int32, copy=False))
    return pa.Array.from_buffers(pa.binary(), len(offsets) - 1, [None, bounds, source])
