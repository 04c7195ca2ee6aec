"""Joins the bytes of several columns row by row.

Separate from `row_arrays`: loading Arrow's functions is slow, and readers do not need them.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidelog.records.parse.row_arrays import binary_array, integer_array

# Arrow imports pandas, if installed, to make a scalar of Python bytes.
_NOTHING = binary_array(np.zeros(2, np.int32), pa.py_buffer(b""))[0]


def interleave(columns: Sequence[pa.Array], last: pa.Array | None = None) -> pa.Buffer | None:
    """The bytes of binary arrays of equal length, row by row, then those of `last`; null counts as
    empty.

    None if there are no bytes. All arrays together must be below 2 GiB. It costs one `take`, half
    of `join` for short rows.
    """
    rows, count = len(columns[0]), len(columns)
    behind = 0 if last is None else len(last)
    order = np.empty(rows * count + behind, np.int32)
    by_row = order[: rows * count].reshape(rows, count)
    for index in range(count):
        by_row[:, index] = np.arange(index * rows, (index + 1) * rows, dtype=np.int32)
    order[rows * count :] = np.arange(rows * count, rows * count + behind, dtype=np.int32)
    pieces = pa.concat_arrays([*columns] if last is None else [*columns, last])
    order_array = integer_array(order, pa.int32())
    taken = pc.take(pieces, order_array, boundscheck=False)
    return taken.buffers()[2]


def join(columns: Sequence[pa.Array]) -> pa.Buffer | None:
    """As `interleave`, without first copying all columns: for long rows."""
    joined = pc.binary_join_element_wise(
        *columns, _NOTHING, null_handling="replace", null_replacement=b""
    )
    return joined.buffers()[2]
