"""`format("tidelog")`: the entry point that creates readers and writers from the options.

Spark starts a Python process for each new source and each plan. So a reader's or writer's module is
loaded on demand: a batch needs neither the stream's modules nor the sink's, which import Kafka's
protocol.
"""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from tidelog.spark_source.catalog import created_options, table_schema, with_table_options
from tidelog.spark_source.columns import default_schema
from tidelog.spark_source.options.options import ReadOptions, is_read, parse_read_options
from tidelog.spark_source.options.store_address import has_store, store_url_of
from tidelog.spark_source.plain_errors import plain_errors
from tidelog.spark_source.ranges import Snapshot
from tidelog.spark_source.session import Session
from tidelog.spark_source.sink.sink_options import WriteOptions, check_columns, parse_write_options
from tidelog.spark_source.snapshots import take_snapshot

if TYPE_CHECKING:
    from tidelog.spark_source.batch import BatchReader
    from tidelog.spark_source.sink.sink import BatchWriter, StreamWriter
    from tidelog.spark_source.stream.stream import StreamReader


class TidelogSource(DataSource):
    """Topics of a bucket, read without a broker and written through one.

    Spark creates one source per DataFrame, copies it, and plans the DataFrame and its derivatives
    from the copies. So the constructor takes the snapshot, once. A stream does not use the
    snapshot, but Spark does not tell a source's use.

    For a catalog's table, the options come with the schema (`catalog.py`). So each plan takes a
    snapshot.
    """

    @plain_errors()
    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        self._snapshot: Snapshot | None = None
        # None unless a catalog creates a table.
        self._created = created_options(options)
        given = self._created or options
        if is_read(given) and has_store(given):
            self._snapshot = _snapshot(_read_options(given))

    @classmethod
    def name(cls) -> str:
        return "tidelog"

    @plain_errors()
    def schema(self) -> str | StructType:
        """The columns, unless the user calls `.schema(...)`."""
        options = _read_options(self._created or self.options)
        headers, producer = options.include_headers, options.include_producer
        if self._created is not None:
            return table_schema(self._created, headers=headers, producer=producer)
        return default_schema(headers=headers, producer=producer)

    @plain_errors()
    def reader(self, schema: StructType) -> BatchReader:
        from tidelog.spark_source.batch import BatchReader

        options = _read_options(with_table_options(self.options, schema))
        return BatchReader(options, self._snapshot or _snapshot(options), schema)

    @plain_errors()
    def streamReader(self, schema: StructType) -> StreamReader:
        from tidelog.spark_source.stream.stream import StreamReader

        return StreamReader(_read_options(with_table_options(self.options, schema)), schema)

    @plain_errors()
    def writer(self, schema: StructType, overwrite: bool) -> BatchWriter:
        from tidelog.spark_source.sink.sink import BatchWriter, check_target

        options = _write_options(with_table_options(self.options, schema), schema)
        made = BatchWriter(options, overwrite=overwrite)
        check_target(options)
        return made

    @plain_errors()
    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:
        from tidelog.spark_source.sink.sink import StreamWriter, check_target

        # The schema of a stream is that of its rows: its table is one that they were read from.
        options = _write_options(self.options, schema)
        made = StreamWriter(options, overwrite=overwrite)
        check_target(options)
        return made


def _snapshot(options: ReadOptions) -> Snapshot:
    with Session(options.store_url) as session:
        return session.run(take_snapshot(session.bucket, options))


def _read_options(options: Mapping[str, str]) -> ReadOptions:
    return parse_read_options(options, store_url_of(options))


def _write_options(options: Mapping[str, str], schema: StructType) -> WriteOptions:
    found = parse_write_options(options, store_url_of(options))
    check_columns(((each.name, each.dataType.simpleString()) for each in schema.fields), found)
    return found
