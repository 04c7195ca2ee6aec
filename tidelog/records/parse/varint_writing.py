"""Encodes rows of varints together, with numpy."""

from __future__ import annotations

from typing import Any, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tidelog.records.parse.row_arrays import binary_array
from tidelog.records.parse.varints import Integers

Unsigned: TypeAlias = NDArray[np.unsignedinteger[Any]]
Sizes: TypeAlias = NDArray[np.uint8]

_ROWS = 1 << 14
"""Rows encoded together, so that their matrix stays in the processor's cache."""


class Varints(NamedTuple):
    """A column of zigzag-encoded numbers, and the size of each as a varint."""

    values: Unsigned
    sizes: Sizes


def zigzag(values: Integers) -> Varints:
    """Signed numbers as zigzag-encoded varints."""
    encoded: Unsigned = ((values << 1) ^ (values >> 63)).view(np.uint64)
    greatest = int(encoded.max()) if len(encoded) else 0
    # The following steps are several times faster with narrow numbers.
    encoded = encoded.astype(np.min_scalar_type(max(greatest, 255)), copy=False)
    sizes = np.ones(len(encoded), np.uint8)
    limit = 1 << 7
    while greatest >= limit:
        sizes += encoded >= encoded.dtype.type(limit)
        limit <<= 7
    return Varints(encoded, sizes)


def constant(value: int, rows: int) -> Varints:
    """One small number in every row: a byte that is its own varint."""
    if not 0 <= value < 128:
        raise ValueError(f"{value} is no varint of one byte")
    return Varints(np.full(rows, value, np.uint8), np.ones(rows, np.uint8))


def write_varints(columns: list[Varints]) -> pa.Array:
    """Each row's varints in column order, as a binary array without nulls."""
    rows = len(columns[0].values)
    total = columns[0].sizes.astype(np.int32)
    for column in columns[1:]:
        total += column.sizes
    offsets = np.zeros(rows + 1, np.int32)
    np.cumsum(total, out=offsets[1:])
    data = np.empty(int(offsets[-1]), np.uint8)
    widths = [int(column.sizes.max()) if rows else 1 for column in columns]
    bytes_of = np.empty((min(rows, _ROWS), sum(widths)), np.uint8)
    used = np.ones(bytes_of.shape, np.bool_)
    for first in range(0, rows, _ROWS):
        last = min(rows, first + _ROWS)
        matrix, mask = bytes_of[: last - first], used[: last - first]
        at = 0
        for column, width in zip(columns, widths, strict=True):
            _fill(matrix, mask, at, width, column.values[first:last], column.sizes[first:last])
            at += width
        size = int(offsets[last] - offsets[first])
        data[offsets[first] : offsets[last]] = (
            matrix.ravel() if size == matrix.size else matrix[mask]
        )
    return binary_array(offsets, data)


def _fill(
    matrix: NDArray[np.uint8],
    mask: NDArray[np.bool_],
    at: int,
    width: int,
    values: Unsigned,
    sizes: Sizes,
) -> None:
    """Write one column's bytes at [at, at + width) of each row, and mark the used ones in `mask`.

    The columns of first bytes, which are always used, are already set in `mask`.
    """
    for index in range(width):
        byte = values if not index else values >> values.dtype.type(7 * index)
        byte = byte.astype(np.uint8, copy=False)
        if index + 1 < width:
            byte = byte & np.uint8(127)
            byte |= (sizes > index + 1).view(np.uint8) << 7
        matrix[:, at + index] = byte
        if index:
            np.greater(sizes, index, out=mask[:, at + index])
