"""The columns of the source: those of Spark's Kafka connector, and three more. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

import pyarrow as pa

from tidelog.errors import InvalidConfiguration

BATCH_ROWS: Final = 10_000
"""Rows of one Arrow batch. Larger batches are slower: Spark sends them over its socket."""


class Column(NamedTuple):
    """A column's name and type in Spark, and its source column in Tidelog's rows."""

    name: str
    spark_type: str
    row_column: str | None
    """None: constant for a partition, so the rows lack it."""


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
# A schema may ask for a column by its name in the table too.
_BY_NAME |= {column.row_column: column for column in COLUMNS if column.row_column is not None}
_PRODUCER_COLUMNS = {"producerId", "producerEpoch", "transaction"}


def default_columns(*, headers: bool, producer: bool) -> list[Column]:
    """The columns of a read without `.schema(...)`."""
    return [
        column
        for column in COLUMNS
        if (headers or column.name != "headers")
        and (producer or column.name not in _PRODUCER_COLUMNS)
    ]


def default_schema(*, headers: bool, producer: bool) -> str:
    """The default schema, as DDL."""
    columns = default_columns(headers=headers, producer=producer)
    return ", ".join(f"{column.name} {column.spark_type}" for column in columns)


def check_schema(fields: Iterable[tuple[str, str]]) -> None:
    """Check a user's schema: names, and types as Spark's simple strings. InvalidConfiguration."""
    for name, kind in fields:
        column = _BY_NAME.get(name)
        if column is None:
            raise InvalidConfiguration(
                f"the schema asks for a column {name}; there are"
                f" {', '.join(column.name for column in COLUMNS)}"
            )
        if kind != column.spark_type:
            raise InvalidConfiguration(
                f"the schema asks for column {name} as {kind}; it is {column.spark_type}: cast it"
                " after the load"
            )


def row_columns(names: Sequence[str]) -> list[str]:
    """The row columns that these Spark columns need; the offset comes first."""
    wanted = [_BY_NAME[name].row_column for name in names]
    return list(dict.fromkeys(["offset", *(name for name in wanted if name is not None)]))


class BatchMaker:
    """Converts rows of one partition into Spark's batches."""

    def __init__(self, topic: str, partition: int, schema: pa.Schema) -> None:
        self._schema = schema
        constants = {"topic": topic, "partition": partition}
        self._constants = {
            # One constant array for all batches; each batch takes a slice without a copy.
            field.name: pa.repeat(pa.scalar(constants[field.name], field.type), BATCH_ROWS)
            for field in schema
            if _BY_NAME[field.name].row_column is None
        }

    def batches(self, rows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """The rows in batches of some thousands, with exactly the types that Spark expects."""
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
