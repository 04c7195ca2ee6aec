"""Batch reads: a DataFrame is one snapshot, however often Spark plans and reads it.

The reader takes no filters from Spark (`pushFilters`). Spark 4.2 applies the filters of one use of
a DataFrame to its other uses too, which then lack rows.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from tidelog.spark_source.columns import BatchMaker, check_schema, row_columns
from tidelog.spark_source.options.options import ReadOptions
from tidelog.spark_source.plain_errors import plain_errors
from tidelog.spark_source.planning import Piece, described, plan, shared
from tidelog.spark_source.ranges import Snapshot, available, batch_ranges, check_named
from tidelog.spark_source.row_reader import RowReader, partition_in
from tidelog.spark_source.session import Session

logger = logging.getLogger("tidelog.spark_source")
# Else the root logger's level would count, which is WARNING in Spark's planning process.
logger.setLevel(logging.INFO)


class PieceReader:
    """Reads pieces in tasks, for batches and streams. It holds no connection: Spark pickles it."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        check_schema((field.name, field.dataType.simpleString()) for field in schema.fields)
        self._options = options
        self._schema: pa.Schema = to_arrow_schema(schema, timezone="UTC")

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of a task's pieces. Raises CorruptObject, DataLost, StoreError."""
        pieces: tuple[Piece, ...] | None = partition.value
        if pieces is None:
            # Spark passes this in place of an empty list of partitions.
            return
        columns = row_columns(self._schema.names)
        with plain_errors(), Session(self._options.store_url) as session:
            reader = RowReader(
                session.bucket, columns, fail_on_data_loss=self._options.fail_on_data_loss
            )
            for piece in pieces:
                limits = piece.range.limits
                maker = BatchMaker(limits.topic, limits.partition.partition, self._schema)
                for rows in session.iterate(reader.rows(piece)):
                    yield from maker.batches(rows)


class TaskPieces(InputPartition):
    """The pieces of one task. The first of a plan also has what the plan reads, for `explain`."""

    def __init__(self, pieces: tuple[Piece, ...], reads: tuple[str, ...] = ()) -> None:
        super().__init__(pieces)
        self.reads = reads


class BatchReader(DataSourceReader):
    """Plans and reads a snapshot's pieces."""

    def __init__(self, options: ReadOptions, snapshot: Snapshot, schema: StructType) -> None:
        self._options = options.for_batch()
        self._snapshot = snapshot
        self._pieces = PieceReader(self._options, schema)

    @plain_errors()
    def partitions(self) -> Sequence[InputPartition]:
        """One partition per task. Raises InvalidConfiguration, DataLost, CorruptObject,
        StoreError.
        """
        with Session(self._options.store_url) as session:
            pieces, reads = session.run(self._plan(session))
        tasks = shared(pieces, self._options.partitions_max)
        return [TaskPieces(each, () if at else reads) for at, each in enumerate(tasks)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one task."""
        return self._pieces.read(partition)

    async def _plan(self, session: Session) -> tuple[list[Piece], tuple[str, ...]]:
        """The pieces, and a line for each partition that is read."""
        options, bucket, snapshot = self._options, session.bucket, self._snapshot
        for bound in (options.starting, options.ending):
            check_named(bound, snapshot.partitions)
        await bucket.refresh()
        view = await bucket.view_partitions(each.partition for each in snapshot.partitions)
        planned, reads = [], []
        for wanted in batch_ranges(options, snapshot):
            is_loss = options.fail_on_data_loss
            partition = partition_in(view, wanted, fail_on_data_loss=is_loss)
            if partition is None:
                continue
            there = available(wanted, partition.log_start, fail_on_data_loss=is_loss)
            planned.append((there, partition))
            reads.append(described(there, partition))
            logger.info("reads %s", reads[-1])
        pieces = plan(
            planned,
            excluded=snapshot.excluded,
            partitions_min=options.partitions_min,
            records_max=options.records_max,
        )
        return pieces, tuple(reads)
