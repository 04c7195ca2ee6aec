"""A topic's committed records as a table, read from the bucket. No broker is asked.

A read is one snapshot: its view of all partitions is taken first, and each partition ends at the
last stable offset of that view. Segments and tails are read behind it. Meanwhile

- rolls and compaction replace objects: the partition's places are looked up anew, and the read goes
  on behind its last row;
- retention or DeleteRecords delete rows that were not read yet: the read begins anew, with a new
  view;
- records are added: they lie above the view's end.

A reader that dies has changed nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, TypedDict, Unpack

import pyarrow as pa
import pyarrow.compute as pc

from tidelog.bucket.views.bucket import VIEW_ATTEMPTS_MAX, Bucket
from tidelog.bucket.views.partition_view import PartitionView
from tidelog.bucket.views.rows import ALL_TIMES, Times
from tidelog.bucket.views.selection import Offsets, RowSelection, selected
from tidelog.clock import SystemClock
from tidelog.concurrency import read_all
from tidelog.entropy import SystemEntropy
from tidelog.errors import InvalidConfiguration, MissingObject
from tidelog.extras import imported
from tidelog.identifiers import TopicPartition
from tidelog.records.parse.row_arrays import integers_of
from tidelog.records.row_columns import MICROSECONDS_PER_MILLISECOND, ROW_SCHEMA
from tidelog.sdk.connecting import completed
from tidelog.storage.stores.location import open_reader
from tidelog.storage.superseded import Looks
from tidelog.workers.offload import ThreadOffload

if TYPE_CHECKING:
    import duckdb
    import pandas
    import polars

THREADS: Final = 2
PARTITIONS_AT_ONCE_MAX: Final = 4
PARTITION: Final = "partition"
TABLE_SCHEMA: Final = pa.schema([pa.field(PARTITION, pa.int32(), nullable=False), *ROW_SCHEMA])


class Selection(TypedDict, total=False):
    """The rows and columns of a read. What is not given selects all."""

    columns: Sequence[str]
    """Of `TABLE_SCHEMA`."""
    partitions: Sequence[int]
    offsets: Offsets
    """From the first offset to below the second, in all partitions or by partition."""
    since: datetime | int
    """The first time, of the records' own timestamps; an int is in milliseconds since 1970."""
    until: datetime | int
    """The time that the records are before."""


@dataclass(frozen=True, slots=True)
class WantedRows:
    """A checked selection."""

    columns: list[str]
    rows: RowSelection

    @property
    def read_columns(self) -> list[str]:
        """The rows' columns that a read needs, the offset first."""
        timed = [] if self.rows.times == ALL_TIMES else ["timestamp"]
        return list(dict.fromkeys(["offset", *timed, *(n for n in self.columns if n != PARTITION)]))


class Table:
    """`Table("s3://bucket/prefix", "flights")`: the columns are those of `TABLE_SCHEMA`."""

    def __init__(self, store_url: str, topic: str) -> None:
        self._url = store_url
        self._topic = topic

    def to_arrow(self, **selection: Unpack[Selection]) -> pa.Table:
        """The rows, by partition and offset.

        Raises InvalidConfiguration, NoSuchTopic, CorruptObject, StoreError.
        """
        wanted = checked(selection)

        async def run() -> pa.Table:
            clock, entropy = SystemClock(), SystemEntropy()
            store = open_reader(self._url, clock, entropy)
            offload = ThreadOffload(THREADS, "tidelog-table")
            try:
                bucket = Bucket.unread(store, clock, entropy, offload)
                return await read(bucket, self._topic, wanted)
            finally:
                offload.close()
                await store.close()

        return completed(run)

    def to_pandas(self, **selection: Unpack[Selection]) -> pandas.DataFrame:
        """The rows as a DataFrame of pandas. Raises as `to_arrow` does."""
        imported("pandas", "to_pandas")
        return self.to_arrow(**selection).to_pandas()

    def to_polars(self, **selection: Unpack[Selection]) -> polars.DataFrame:
        """The rows as a DataFrame of Polars. Raises as `to_arrow` does."""
        found: polars.DataFrame = imported("polars", "to_polars").from_arrow(
            self.to_arrow(**selection)
        )
        return found

    def to_duckdb(
        self,
        connection: duckdb.DuckDBPyConnection | None = None,
        **selection: Unpack[Selection],
    ) -> duckdb.DuckDBPyRelation:
        """The rows as a relation of DuckDB's default connection, or another one.

        Raises as `to_arrow` does.
        """
        target = connection or imported("duckdb", "to_duckdb")
        found: duckdb.DuckDBPyRelation = target.from_arrow(self.to_arrow(**selection))
        return found


class _RowsDeleted(Exception):
    """Rows of the snapshot were deleted before they were read."""


async def read(bucket: Bucket, topic: str, wanted: WantedRows) -> pa.Table:
    """The rows by partition and offset. Raises as `Table.to_arrow` does."""
    looks = Looks(topic, VIEW_ATTEMPTS_MAX)
    while True:
        try:
            return await _snapshot(bucket, topic, wanted)
        except _RowsDeleted:
            looks.changed()


async def _snapshot(bucket: Bucket, topic: str, wanted: WantedRows) -> pa.Table:
    chosen = await bucket.partitions_of([topic])
    wanted.rows.check_partitions(topic, len(chosen))
    taken = [each for each in chosen if wanted.rows.takes(each.partition)]
    view = await bucket.view_partitions(taken)

    async def rows_of(partition: TopicPartition) -> list[pa.RecordBatch]:
        return [rows async for rows in _rows(bucket, view.partition(partition), wanted)]

    # Also those that the view lacks: they are damaged, or deleted meanwhile.
    found = await read_all(rows_of, taken, asyncio.Semaphore(PARTITIONS_AT_ONCE_MAX))
    schema = pa.schema([TABLE_SCHEMA.field(name) for name in wanted.columns])
    return pa.Table.from_batches([rows for each in found for rows in each], schema)


async def _rows(
    bucket: Bucket, view: PartitionView, wanted: WantedRows
) -> AsyncIterator[pa.RecordBatch]:
    """A partition's rows up to the last stable offset of its first view.

    Raises _RowsDeleted, CorruptObject, StoreError.
    """
    number = view.partition.partition
    start, end = wanted.rows.range_of(number)
    position, end = max(start, view.log_start), min(end, view.last_stable_offset)
    looks = Looks(looks_max=VIEW_ATTEMPTS_MAX)
    while True:
        try:
            async for rows in bucket.rows(
                view, position, end, columns=wanted.read_columns, times=wanted.rows.times
            ):
                position = integers_of(rows.column("offset"))[-1].item() + 1
                kept = _cut_to_time(rows, wanted.rows.times)
                if kept.num_rows:
                    yield _with_partition(kept, number, wanted.columns)
            return
        except MissingObject as missing:
            # Something newer has taken the object's place, or it is lost (rule F4).
            looks.missed(missing)
        await bucket.refresh()
        view = (await bucket.view_partitions([view.partition])).partition(view.partition)
        if position < min(end, view.log_start):
            raise _RowsDeleted


def _cut_to_time(rows: pa.RecordBatch, times: Times) -> pa.RecordBatch:
    """The rows of the time. A record without a timestamp is in no range of times."""
    if times == ALL_TIMES:
        return rows
    column = rows.column("timestamp")
    kept = pc.is_valid(column)
    if times.since_ms is not None:
        kept = pc.and_kleene(kept, pc.greater_equal(column, _scalar(times.since_ms, column.type)))
    if times.until_ms is not None:
        kept = pc.and_kleene(kept, pc.less(column, _scalar(times.until_ms, column.type)))
    return rows.filter(kept)


def _scalar(time_ms: int, kind: pa.DataType) -> pa.Scalar:
    return pa.scalar(time_ms * MICROSECONDS_PER_MILLISECOND, pa.int64()).cast(kind)


def _with_partition(rows: pa.RecordBatch, number: int, columns: Sequence[str]) -> pa.RecordBatch:
    arrays = [
        pa.repeat(pa.scalar(number, pa.int32()), rows.num_rows)
        if name == PARTITION
        else rows.column(name)
        for name in columns
    ]
    schema = pa.schema([TABLE_SCHEMA.field(name) for name in columns])
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def checked(selection: Selection) -> WantedRows:
    """The selection. Raises InvalidConfiguration."""
    unknown = sorted(selection.keys() - Selection.__annotations__.keys())
    if unknown:
        raise InvalidConfiguration(
            f"{unknown[0]} selects nothing; there are {', '.join(Selection.__annotations__)}"
        )
    columns = list(selection.get("columns", TABLE_SCHEMA.names))
    if not columns:
        # Arrow counts no rows where there is no column.
        raise InvalidConfiguration("columns: name at least one, such as offset to count the rows")
    for name in columns:
        if name not in TABLE_SCHEMA.names:
            raise InvalidConfiguration(
                f"columns: there is no {name!r}; there are {', '.join(TABLE_SCHEMA.names)}"
            )
    chosen: dict[str, Any] = {name: value for name, value in selection.items() if name != "columns"}
    return WantedRows(columns, selected(**chosen))
