"""The unchanged sink, in processes that report their progress to a test and can be stopped."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import WriterCommitMessage
from pyspark.sql.types import StructType

from tests.chaos.moments import CALLED, Moments
from tidelog.spark_source.sink.sink import StagedMessage, StreamWriter
from tidelog.spark_source.source import TidelogSource


class WatchedWriter(StreamWriter):
    """Hands its crash points on to a test."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> StagedMessage:
        """For the process of a task."""
        context = TaskContext.get()
        assert context is not None
        self._crash_points = Moments.of_environment(
            int(context.getLocalProperty("streaming.sql.batchId") or "")
        )
        return super().write(iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """For the process of a driver. Also notes how the call ended."""
        moments = Moments.of_environment(batchId)
        moments.pass_by(CALLED)
        self._crash_points = moments
        try:
            super().commit(messages, batchId)
        except Exception as error:
            moments.note(type(error).__name__)
            raise


class WatchedSource(TidelogSource):
    """`format("tidelog")`, with that writer for streams."""

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:
        """For streams that write."""
        writer = super().streamWriter(schema, overwrite)
        return WatchedWriter(writer._options, overwrite=overwrite)
