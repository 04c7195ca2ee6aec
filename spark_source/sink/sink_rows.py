"""Converts Spark's rows to a sink's records and their partitions, with Arrow and numpy. Pure.

As in Kafka's producers, a row's partition column decides, else murmur2 of its key. Rows without a
key take turns.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidelog.errors import Refused
from tidelog.records.parse.row_arrays import integer_array, integers_of, nulls_of
from tidelog.records.parse.varints import Integers
from tidelog.records.partitioner import positive_hashes
from tidelog.records.row_columns import (
    HEADER_TYPE,
    HEADERS_TYPE,
    MICROSECONDS_PER_MILLISECOND,
    TIMESTAMP_TYPE,
)

_NOT_GIVEN = -1


class RefusedRow(Refused):
    """A row that cannot be written; its batch will never be visible."""


class SinkRows(NamedTuple):
    """Rows in staged form, with their topics and partitions."""

    rows: pa.RecordBatch
    topics: tuple[str, ...]
    topic_indexes: Integers
    """Each row's index in `topics`."""
    partitions: Integers
    """Each row's partition, -1 if the row names none."""


class PartitionRows(NamedTuple):
    """Rows of one partition, in Spark's order."""

    topic: str
    partition: int
    rows: pa.RecordBatch


def refuse_rows_of_table(given: pa.RecordBatch) -> None:
    """RefusedRow if rows for a catalog's table were read from a table, as their offsets tell.

    Spark hands over the schema of such rows, with the options of the table that they come from.
    """
    if "offset" in given.schema.names and given.column("offset").null_count < given.num_rows:
        raise RefusedRow(
            "a row for a table has an offset, as if it were read from another one; then Spark may"
            " hand over the options of that one: name the columns, as in INSERT INTO t (key, value)"
            " SELECT key, value FROM ..."
        )


def sink_rows(
    given: pa.RecordBatch, topic: str | None, time_ms: int, *, include_headers: bool
) -> SinkRows:
    """The rows as records of this time. RefusedRow.

    `topic` applies to all rows; None uses their column. A row with a key and without a value is a
    tombstone; a row with neither is refused.
    """
    count = given.num_rows
    names = set(given.schema.names)
    value = given.column("value").cast(pa.binary())
    key = given.column("key").cast(pa.binary()) if "key" in names else pa.nulls(count, pa.binary())
    if (nulls_of(key) & nulls_of(value)).any():
        raise RefusedRow(
            "a row has no value: only a row with a key may do without, as a tombstone; filter out"
            " the others"
        )
    if include_headers and "headers" in names:
        headers = _headers(given.column("headers"))
    else:
        headers = pa.nulls(count, HEADERS_TYPE)
    time_us = np.full(count, time_ms * MICROSECONDS_PER_MILLISECOND, np.int64)
    rows = pa.RecordBatch.from_arrays(
        [
            integer_array(time_us, TIMESTAMP_TYPE),
            integer_array(np.zeros(count, np.int32), pa.int32()),
            *(key, value, headers),
        ],
        names=["timestamp", "timestamp_type", "key", "value", "headers"],
    )
    partitions = np.full(count, _NOT_GIVEN, np.int64)
    if "partition" in names:
        column = given.column("partition")
        partitions = integers_of(column, absent=_NOT_GIVEN).astype(np.int64)
        if ((partitions < 0) & ~nulls_of(column)).any():
            raise RefusedRow("a row names a partition below 0; null leaves it to the partitioner")
    if topic is not None:
        return SinkRows(rows, (topic,), np.zeros(count, np.int64), partitions)
    column = given.column("topic").cast(pa.string())
    if column.null_count:
        raise RefusedRow("a row has no topic: fill in column topic, or give the option topic")
    encoded = column.dictionary_encode()
    topics = tuple(encoded.dictionary.to_pylist())
    return SinkRows(rows, topics, integers_of(encoded.indices).astype(np.int64), partitions)


def by_partition(
    given: SinkRows, partition_counts: Mapping[str, int], turn: int
) -> Iterator[PartitionRows]:
    """The rows of each partition. RefusedRow if a topic lacks a partition.

    `turn` is the first partition for rows without a key, modulo the partition count.
    """
    if not given.rows.num_rows:
        return
    counts = np.array([partition_counts[topic] for topic in given.topics], np.int64)
    counts = counts[given.topic_indexes]
    key = given.rows.column("key")
    turns = turn + np.arange(given.rows.num_rows)
    chosen = np.where(nulls_of(key), turns, positive_hashes(key)) % counts
    partitions = np.where(given.partitions >= 0, given.partitions, chosen)
    wrong = np.flatnonzero(partitions >= counts)
    if len(wrong):
        row = wrong[0]
        topic = given.topics[given.topic_indexes[row]]
        raise RefusedRow(
            f"a row names partition {partitions[row]} of topic {topic}, which has"
            f" {counts[row]} partitions"
        )
    places = (given.topic_indexes << 32) | partitions
    order = np.argsort(places, kind="stable")
    ordered = places[order]
    starts = np.flatnonzero(np.diff(ordered, prepend=-1))
    for start, end in zip(starts, [*starts[1:], len(order)], strict=True):
        topic = given.topics[ordered[start] >> 32]
        taken = given.rows.take(integer_array(order[start:end], pa.int64()))
        yield PartitionRows(topic, int(ordered[start] & 0xFFFFFFFF), taken)


def _headers(given: pa.ListArray) -> pa.Array:
    """Headers with the rows' type; Spark's type allows null keys."""
    keys, values = given.values.flatten()
    if keys.null_count:
        raise RefusedRow("a row has a header without a key")
    structs = pa.StructArray.from_arrays(
        [keys.cast(pa.string()), values.cast(pa.binary())], fields=list(HEADER_TYPE)
    )
    mask = pc.is_null(given) if given.null_count else None
    # Arrow takes a mask only with offsets that are no slice of others, as a cut batch has them.
    offsets = integer_array(integers_of(given.offsets).astype(np.int32), pa.int32())
    return pa.ListArray.from_arrays(offsets, structs, type=HEADERS_TYPE, mask=mask)
