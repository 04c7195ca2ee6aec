"""Rows become Spark's batches: its types, constants of the partition, and a length that Spark
accepts."""

from __future__ import annotations

import pyarrow as pa
import pytest

from tidelog.errors import InvalidConfiguration
from tidelog.records.row_columns import ROW_SCHEMA
from tidelog.spark_source.columns import BATCH_ROWS, BatchMaker, check_schema, row_columns

SCHEMA = pa.schema(
    [
        pa.field("topic", pa.string()),
        pa.field("offset", pa.int64()),
        pa.field("partition", pa.int32()),
        pa.field("value", pa.binary()),
    ]
)


def rows(first: int, count: int) -> pa.RecordBatch:
    fields = [ROW_SCHEMA.field("offset"), ROW_SCHEMA.field("value")]
    offsets = range(first, first + count)
    return pa.RecordBatch.from_pydict(
        {"offset": list(offsets), "value": [b"%d" % each for each in offsets]},
        schema=pa.schema(fields),
    )


def test_batches_have_each_row_once_with_the_topic_and_the_partition() -> None:
    maker = BatchMaker("flights", 3, SCHEMA)
    count = 2 * BATCH_ROWS + 7
    found = [*maker.batches(rows(0, count)), *maker.batches(rows(count, 1))]
    assert [each.num_rows for each in found] == [BATCH_ROWS, BATCH_ROWS, 7, 1]
    for batch in found:
        batch.validate(full=True)
        assert batch.schema.equals(SCHEMA)
        assert set(batch.column("topic").to_pylist()) == {"flights"}
        assert set(batch.column("partition").to_pylist()) == {3}
    table = pa.Table.from_batches(found)
    assert table.column("offset").to_pylist() == list(range(count + 1))
    assert table.column("value").to_pylist() == [b"%d" % each for each in range(count + 1)]


def test_a_schema_may_have_the_names_of_the_table() -> None:
    asked = ["offset", "timestamp_type", "producer_id", "producer_epoch"]
    check_schema(zip(asked, ["bigint", "int", "bigint", "int"], strict=True))
    assert row_columns(asked) == row_columns(["timestampType", "producerId", "producerEpoch"])
    with pytest.raises(InvalidConfiguration, match="timestamp_type as string; it is int"):
        check_schema([("timestamp_type", "string")])


def test_no_rows_make_no_batch() -> None:
    assert list(BatchMaker("flights", 3, SCHEMA).batches(rows(0, 0))) == []
