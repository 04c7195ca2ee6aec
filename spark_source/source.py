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

from tidelog.spark_source.columns import default_schema
from tidelog.spark_source.options import ReadOptions, is_read, parse_read_options
from tidelog.spark_source.ranges import Snapshot
from tidelog.spark_source.session import Session
from tidelog.spark_source.sink.sink_options import WriteOptions, check_columns, parse_write_options
from tidelog.spark_source.snapshots import take_snapshot
from tidelog.spark_source.store_address import store_url_of

if TYPE_CHECKING:
    from tidelog.spark_source.batch import BatchReader
    from tidelog.spark_source.sink.sink import BatchWriter, StreamWriter
    from tidelog.spark_source.stream.stream import StreamReader


class TidelogSource(DataSource):
    """Topics of a bucket, read without a broker and written through one.

    Spark creates one source per DataFrame, copies it, and plans the DataFrame and its derivatives
    from the copies. So the constructor takes the snapshot, once. A stream does not use the
    snapshot, but Spark does not tell a source's use.
    """

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        self._snapshot: Snapshot | None = None
        if is_read(options):
            read = _read_options(options)
            with Session(read.store_url) as session:
                self._snapshot = session.run(take_snapshot(session.bucket, read))

    @classmethod
    def name(cls) -> str:
        return "tidelog"

    def schema(self) -> str:
        """The columns, unless the user calls `.schema(...)`."""
        options = _read_options(self.options)
        return default_schema(headers=options.include_headers, producer=options.include_producer)

    def reader(self, schema: StructType) -> BatchReader:
        from tidelog.spark_source.batch import BatchReader

        assert self._snapshot is not None
        return BatchReader(_read_options(self.options), self._snapshot, schema)

    def streamReader(self, schema: StructType) -> StreamReader:
        from tidelog.spark_source.stream.stream import StreamReader

        return StreamReader(_read_options(self.options), schema)

    def writer(self, schema: StructType, overwrite: bool) -> BatchWriter:
        from tidelog.spark_source.sink.sink import BatchWriter

        return BatchWriter(_write_options(self.options, schema), overwrite=overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:
        from tidelog.spark_source.sink.sink import StreamWriter

        return StreamWriter(_write_options(self.options, schema), overwrite=overwrite)


def _read_options(options: Mapping[str, str]) -> ReadOptions:
    return parse_read_options(options, store_url_of(options))


def _write_options(options: Mapping[str, str], schema: StructType) -> WriteOptions:
    found = parse_write_options(options, store_url_of(options))
    check_columns(((each.name, each.dataType.simpleString()) for each in schema.fields), found)
    return found
