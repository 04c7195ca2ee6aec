"""The columns that Spark is given: those of Spark's Kafka connector, and three more. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

import pyarrow as pa

from tidelog.errors import InvalidConfiguration

BATCH_ROWS: Final = 10_000
"""Of one Arrow batch: more is slower, as Spark takes them over its socket."""


class Column(NamedTuple):
    """A column: its name and type for Spark, and which column of our rows it is."""

    name: str
    spark_type: str
    row_column: str | None
    """None: not in the rows, as it is the same for all of a partition."""


COLUMNS: Final = (
    Column("key", "binary", "key"),
    Column("value", "binary", "value"),
    Column("topic", "string", None),
    Column("partition", "int", None),
    Column("offset", "bigint", "offset"),
    Column("timestamp", "timestamp", "timestamp"),
    Column("timestampType", "int", "timestamp_type"),
    Column("headers", "array<struct<key:string,value:binary>>", "headers"),
    Column("producerId", "bigint", "producer_id"),
    Column("producerEpoch", "int", "producer_epoch"),
    Column("transaction", "bigint", "transaction"),
)
_BY_NAME = {column.name: column for column in COLUMNS}
_PRODUCER_COLUMNS = {"producerId", "producerEpoch", "transaction"}


def default_schema(*, headers: bool, producer: bool) -> str:
    """The schema, as DDL, where the user gives none."""
    return ", ".join(
        f"{column.name} {column.spark_type}"
        for column in COLUMNS
        if (headers or column.name != "headers")
        and (producer or column.name not in _PRODUCER_COLUMNS)
    )


def check_schema(fields: Iterable[tuple[str, str]]) -> None:
    """Whether a user's schema (names and Spark's simple strings of types) can be given.

    InvalidConfiguration."""
    for name, kind in fields:
        column = _BY_NAME.get(name)
        if column is None:
            raise InvalidConfiguration(
                f"the schema asks for a column {name}; there are {', '.join(_BY_NAME)}"
            )
        if kind != column.spark_type:
            raise InvalidConfiguration(
                f"the schema asks for column {name} as {kind}; it is {column.spark_type}: cast it"
                " after the load"
            )


def row_columns(names: Sequence[str]) -> list[str]:
    """The columns of our rows that these columns of Spark's need; the offset comes first."""
    wanted = [_BY_NAME[name].row_column for name in names]
    return list(dict.fromkeys(["offset", *(name for name in wanted if name is not None)]))


class BatchMaker:
    """Makes rows of one partition into what Spark is given."""

    def __init__(self, topic: str, partition: int, schema: pa.Schema) -> None:
        self._schema = schema
        constants = {"topic": topic, "partition": partition}
        self._constants = {
            # One for all batches, of which each gets its length: they are not written again.
            field.name: pa.repeat(pa.scalar(constants[field.name], field.type), BATCH_ROWS)
            for field in schema
            if _BY_NAME[field.name].row_column is None
        }

    def batches(self, rows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """The rows, some thousands at a time, with exactly the types that Spark expects."""
        for start in range(0, rows.num_rows, BATCH_ROWS):
            piece = rows.slice(start, BATCH_ROWS)
            arrays = [self._array(piece, wanted) for wanted in self._schema]
            yield pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def _array(self, piece: pa.RecordBatch, wanted: pa.Field) -> pa.Array:
        name = _BY_NAME[wanted.name].row_column
        if name is None:
            return self._constants[wanted.name].slice(0, piece.num_rows)
        array = piece.column(name)
        return array if array.type == wanted.type else array.cast(wanted.type)
