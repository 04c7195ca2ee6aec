"""Columns of the coordinators' state tables: from Python values and back, whole columns at a time.

A -1 of a record (no leader epoch, no time) is null in a table.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

MILLISECONDS: Final = pa.timestamp("ms", tz="UTC")
PARTITION: Final = pa.struct(
    [
        pa.field("topic", pa.string(), nullable=False),
        pa.field("partition", pa.int32(), nullable=False),
    ]
)
PARTITIONS: Final = pa.list_(pa.field("element", PARTITION, nullable=False))
_NONE: Final = -1


def column(name: str, kind: pa.DataType, *, nullable: bool = False) -> pa.Field:
    """A column of a schema, required unless `nullable`."""
    return pa.field(name, kind, nullable=nullable)


def integers(values: Iterable[int], kind: pa.DataType) -> pa.Array:
    """A column of numbers, or of times in milliseconds."""
    return pa.array(values, pa.int64()).cast(kind)


def integers_or_null(values: Iterable[int], kind: pa.DataType) -> pa.Array:
    """A column of numbers or times, with null for -1."""
    found = pa.array(values, pa.int64())
    return pc.if_else(pc.equal(found, _NONE), pa.scalar(None, pa.int64()), found).cast(kind)


def partition_lists(lists: Sequence[Sequence[tuple[str, int]]]) -> pa.Array:
    """A column with a list of (topic, partition) in each row."""
    flat = [each for row in lists for each in row]
    elements = pa.StructArray.from_arrays(
        [
            pa.array([topic for topic, _ in flat], pa.string()),
            pa.array([partition for _, partition in flat], pa.int32()),
        ],
        fields=list(PARTITION),
    )
    offsets = pa.array([0, *accumulate(map(len, lists))], pa.int32())
    return pa.ListArray.from_arrays(offsets, elements, type=PARTITIONS)


def numbers_in(values: pa.Array) -> list[int]:
    """The values of a column of numbers or times; -1 for null."""
    if pa.types.is_timestamp(values.type):
        values = values.cast(pa.int64())
    if values.null_count:
        values = values.fill_null(_NONE)
    found: list[int] = np.asarray(values.to_numpy(zero_copy_only=False)).tolist()
    return found


def texts_in(values: pa.Array) -> list[str | None]:
    """The values of a column of strings. Equal strings share one object, which saves memory."""
    encoded = values.dictionary_encode()
    # The last element stands for null, whose index is -1.
    words: list[str | None] = [*encoded.dictionary.to_pylist(), None]
    return [words[index] for index in numbers_in(encoded.indices)]


def partition_lists_in(values: pa.Array) -> list[list[tuple[str, int]]]:
    """The values of a column of `partition_lists`."""
    elements = values.flatten()
    topics = texts_in(elements.field("topic"))
    flat = list(zip(topics, numbers_in(elements.field("partition")), strict=True))
    ends = list(accumulate(numbers_in(pc.list_value_length(values))))
    return [flat[start:end] for start, end in zip([0, *ends], ends, strict=False)]  # type: ignore[misc]
