"""The bytes of several columns put together row by row.

Apart from `row_arrays`, as loading Arrow's functions takes its time, and readers do without.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidelog.records.parse.row_arrays import binary_array, integer_array

# Arrow imports pandas, where that is installed, to make a scalar of Python's bytes.
_NOTHING = binary_array(np.zeros(2, np.int32), pa.py_buffer(b""))[0]


def interleave(columns: Sequence[pa.Array], last: pa.Array | None = None) -> pa.Buffer | None:
    """The bytes of binary arrays of one length, row by row, and those of `last` behind; null counts
    as empty. None: there are none. All together must be below 2 GiB.

    One `take` from all of them: half of what `join` costs where rows are short.
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
    """As `interleave`, without a copy of all columns before: for rows that are long."""
    joined = pc.binary_join_element_wise(
        *columns, _NOTHING, null_handling="replace", null_replacement=b""
    )
    return joined.buffers()[2]
