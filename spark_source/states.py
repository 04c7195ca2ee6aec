"""`format("tidelog.transactions")` and `format("tidelog.groups")`: coordinators' states as tables.

Each evaluation of a DataFrame reads the current state, in one task.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from typing import Any, ClassVar, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructType

from tidelog.bucket.views.bucket import Bucket
from tidelog.bucket.views.states import GROUPS, TRANSACTIONS, groups, transactions
from tidelog.errors import InvalidConfiguration
from tidelog.identifiers import TopicPartition
from tidelog.spark_source.columns import BATCH_ROWS
from tidelog.spark_source.options.store_address import only_store_url_of
from tidelog.spark_source.plain_errors import plain_errors
from tidelog.spark_source.session import Session

END_OFFSET: Final = pa.field("end_offset", pa.int64())
LAG: Final = pa.field("lag", pa.int64())
"""For committed offsets: the partition's last stable offset, and the group's lag behind it."""


class _StateSource(DataSource):
    """A source of one table with a fixed schema."""

    format_name: ClassVar[str]
    table_schema: ClassVar[pa.Schema]

    @plain_errors()
    def __init__(self, options: Any) -> None:
        super().__init__(options)
        self._store_url = only_store_url_of(options)

    @classmethod
    def name(cls) -> str:
        return cls.format_name

    def schema(self) -> StructType:
        found = from_arrow_schema(self.table_schema, prefer_timestamp_ntz=False)
        assert isinstance(found, StructType)
        return found

    @plain_errors()
    def reader(self, schema: StructType) -> DataSourceReader:
        known = {field.name: field.dataType.simpleString() for field in self.schema().fields}
        for field in schema.fields:
            if known.get(field.name) != field.dataType.simpleString():
                raise InvalidConfiguration(
                    f"the schema asks for a column {field.name}"
                    f" {field.dataType.simpleString()}; there are"
                    f" {', '.join(f'{name} {kind}' for name, kind in known.items())}"
                )
        return _StateReader(type(self), self._store_url, to_arrow_schema(schema, timezone="UTC"))

    @staticmethod
    @abstractmethod
    async def rows(bucket: Bucket, names: list[str]) -> pa.Table:
        """The table, with at least these columns."""


class TransactionsSource(_StateSource):
    """The state of each transactional id."""

    format_name = "tidelog.transactions"
    table_schema = TRANSACTIONS.table.schema

    @staticmethod
    async def rows(bucket: Bucket, names: list[str]) -> pa.Table:
        """The table of `docs/formats/state.md`."""
        return await transactions(bucket)


class GroupsSource(_StateSource):
    """Groups, their members, committed offsets and lag."""

    format_name = "tidelog.groups"
    table_schema = GROUPS.table.schema.append(END_OFFSET).append(LAG)

    @staticmethod
    async def rows(bucket: Bucket, names: list[str]) -> pa.Table:
        """The table of `docs/formats/state.md`, with the lag if `names` has it."""
        table = await groups(bucket)
        if not {END_OFFSET.name, LAG.name} & set(names):
            return table
        return await _with_lag(bucket, table)


async def _with_lag(bucket: Bucket, table: pa.Table) -> pa.Table:
    offsets = table.select(["kind", "topic", "partition", "offset"]).to_pylist()
    committed = [row if row["kind"] == "offset" else None for row in offsets]
    # A sink's group keeps the number of its last batch as an offset of the groups' topic.
    topics = {row["topic"] for row in committed if row is not None} - {GROUPS.topic}
    known = (bucket.state.topic_named(name) for name in topics)
    # A topic that is deleted meanwhile is left out.
    view = await bucket.view_partitions(
        TopicPartition(topic.topic_id, number)
        for topic in known
        if topic is not None
        for number in range(topic.partition_count)
    )
    stable = {
        (each.topic, each.partition.partition): each.last_stable_offset
        for each in view.partitions.values()
    }
    ends = [
        None if row is None else stable.get((row["topic"], row["partition"])) for row in committed
    ]
    lags = [
        # An offset above the end precedes a loss of data, or is a client's mistake.
        None if row is None or end is None else max(0, end - row["offset"])
        for row, end in zip(committed, ends, strict=True)
    ]
    table = table.append_column(END_OFFSET, pa.array(ends, pa.int64()))
    return table.append_column(LAG, pa.array(lags, pa.int64()))


class _StateReader(DataSourceReader):
    def __init__(self, kind: type[_StateSource], store_url: str, schema: pa.Schema) -> None:
        self._kind = kind
        self._store_url = store_url
        self._schema = schema

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        names = self._schema.names
        with plain_errors(), Session(self._store_url) as session:
            table = session.run(self._kind.rows(session.bucket, names))
        rows = table.select(names).cast(self._schema)
        yield from rows.to_batches(max_chunksize=BATCH_ROWS)
