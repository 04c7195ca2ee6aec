"""`format("tidelog")`: what Spark makes of the options, and where it gets readers and writers.

Spark starts a new Python process whenever it makes a source and whenever it plans. So each of
readers and writers is loaded when Spark asks for it: a batch needs neither a stream's nor a sink's
modules, of which the latter bring Kafka's protocol with them.
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
from tidelog.spark_source.sink_options import WriteOptions, check_columns, parse_write_options
from tidelog.spark_source.snapshots import take_snapshot
from tidelog.spark_source.store_address import store_url_of

if TYPE_CHECKING:
    from tidelog.spark_source.batch import BatchReader
    from tidelog.spark_source.sink import BatchWriter, StreamWriter
    from tidelog.spark_source.stream import StreamReader


class TidelogSource(DataSource):
    """Topics of a bucket, read without a broker and written by one.

    Spark makes one for each DataFrame, sends copies of it about, and plans the DataFrame and what
    is derived from it anew from these. So the snapshot is taken here, once. A stream does not use
    it; but Spark does not tell what a source is for.
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
        """The format's name."""
        return "tidelog"

    def schema(self) -> str:
        """The columns where the user asks for none by `.schema(...)`."""
        options = _read_options(self.options)
        return default_schema(headers=options.include_headers, producer=options.include_producer)

    def reader(self, schema: StructType) -> BatchReader:
        """For batches."""
        from tidelog.spark_source.batch import BatchReader

        assert self._snapshot is not None
        return BatchReader(_read_options(self.options), self._snapshot, schema)

    def streamReader(self, schema: StructType) -> StreamReader:
        """For streams."""
        from tidelog.spark_source.stream import StreamReader

        return StreamReader(_read_options(self.options), schema)

    def writer(self, schema: StructType, overwrite: bool) -> BatchWriter:
        """For batch writes."""
        from tidelog.spark_source.sink import BatchWriter

        return BatchWriter(_write_options(self.options, schema), overwrite=overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:
        """For streams that write."""
        from tidelog.spark_source.sink import StreamWriter

        return StreamWriter(_write_options(self.options, schema), overwrite=overwrite)


def _read_options(options: Mapping[str, str]) -> ReadOptions:
    return parse_read_options(options, store_url_of(options))


def _write_options(options: Mapping[str, str], schema: StructType) -> WriteOptions:
    found = parse_write_options(options, store_url_of(options))
    check_columns(((each.name, each.dataType.simpleString()) for each in schema.fields), found)
    return found
