"""Other engines read the tables of a bucket unchanged, and cannot write them."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import deltalake
import duckdb
import duckdb_extension_delta
import polars as pl
import pyarrow as pa
import pytest
from deltalake.exceptions import CommitFailedError

from tests.unit.storage.segments import TOPIC_ID, advance, some_rows, written
from tidelog.clock import SystemClock
from tidelog.entropy import SystemEntropy
from tidelog.identifiers import TopicPartition
from tidelog.records.row_columns import ROW_SCHEMA
from tidelog.storage.object_store import ObjectStore
from tidelog.storage.segment.segment_reader import SegmentReader
from tidelog.storage.stores.filesystem import FilesystemStore
from tidelog.storage.table.table_change import PartitionChange
from tidelog.storage.table.table_log import TableCommitted, TableLog
from tidelog.workers.offload import InlineOffload

PARTITIONS = 3
COLUMNS = [*ROW_SCHEMA.names, "partition"]
Row = dict[str, Any]
Reader = Callable[[str], list[Row]]


def ordered(rows: list[Row]) -> list[Row]:
    """Rows by partition and offset. Timestamps lose the class of their zone, and headers become
    pairs."""
    plain = [
        {
            **row,
            "timestamp": row["timestamp"] and row["timestamp"].timestamp(),
            "headers": row["headers"] and [(h["key"], h["value"]) for h in row["headers"]],
        }
        for row in rows
    ]
    return sorted(plain, key=lambda row: (row["partition"], row["offset"]))


def by_deltalake(table: str) -> list[Row]:
    rows: list[Row] = pa.table(deltalake.DeltaTable(table).to_pyarrow_table()).to_pylist()
    return rows


def by_polars(table: str) -> list[Row]:
    return pl.scan_delta(table).collect().to_dicts()


def duckdb_with_delta() -> duckdb.DuckDBPyConnection:
    folder = Path(duckdb_extension_delta.__file__).parent
    [extension] = folder.glob("extensions/*/delta.duckdb_extension")
    connection = duckdb.connect()
    connection.execute(f"load '{extension}'")
    connection.execute("set timezone = 'UTC'")
    return connection


def by_duckdb(table: str) -> list[Row]:
    with duckdb_with_delta() as connection:
        found = connection.execute(f"select * from delta_scan('{table}')")
        names = [column[0] for column in found.description or ()]
        return [dict(zip(names, row, strict=True)) for row in found.fetchall()]


READERS = [by_deltalake, by_polars, by_duckdb]


class Bucket:
    """A bucket on disk with one table, and the rows that it should hold."""

    def __init__(self, folder: Path) -> None:
        self.store: ObjectStore = FilesystemStore(folder, SystemClock(), SystemEntropy())
        self.table = str(folder / "topics" / str(TOPIC_ID))
        self.rows: dict[str, list[Row]] = {}
        """The rows by segment."""

    async def open(self) -> TableLog:
        return await TableLog.open(
            self.store, SystemClock(), SystemEntropy(), InlineOffload(), TOPIC_ID, "flights"
        )

    async def roll(self, log: TableLog, count: int) -> None:
        """Add a segment to each partition, in one commit."""
        changes = []
        for partition in range(PARTITIONS):
            base = log.state.partition(partition).next_offset
            rows = some_rows(base + 1, count)
            topic_partition = TopicPartition(TOPIC_ID, partition)
            found = written([rows], base, base + 3 * count, topic_partition, base + 1)
            await self.store.put(found.segment.key(TOPIC_ID), found.pieces)
            self.rows[found.segment.path] = [
                {**row, "partition": partition} for row in rows.to_pylist()
            ]
            changes.append(advance(partition, base, base + 3 * count, found.segment))
        assert isinstance(await log.commit(tuple(changes)), TableCommitted)

    async def remove_first(self, log: TableLog, partition: int) -> None:
        name = log.state.partition(partition).segments[0].segment.name
        change = PartitionChange(partition=partition, removed=(name,))
        assert isinstance(await log.commit((change,)), TableCommitted)
        del self.rows[name.path]

    def expected(self) -> list[Row]:
        return ordered([row for rows in self.rows.values() for row in rows])

    def listing(self) -> dict[str, bytes]:
        folder = Path(self.table)
        return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


async def fill(bucket: Bucket) -> TableLog:
    """A table with a checkpoint, commits behind it, and one removed segment before and one after
    it."""
    log = await bucket.open()
    for _ in range(4):
        await bucket.roll(log, 60)
    await bucket.remove_first(log, 0)
    await log.write_checkpoint()
    await bucket.roll(log, 40)
    await bucket.remove_first(log, 1)
    return log


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Bucket:
    """A bucket that is filled once. Tests copy it, and do not change it."""
    found = Bucket(tmp_path_factory.mktemp("original"))
    asyncio.run(fill(found))
    asyncio.run(found.store.close())
    return found


@pytest.fixture
def bucket(tmp_path: Path, original: Bucket) -> Iterator[Bucket]:
    """A copy of the filled bucket."""
    found = Bucket(tmp_path / "bucket")
    shutil.copytree(original.table, found.table)
    found.rows = dict(original.rows)
    yield found
    asyncio.run(found.store.close())


@pytest.mark.parametrize("reader", READERS)
def test_engines_read_the_same_rows_as_we_do(bucket: Bucket, reader: Reader) -> None:
    async def ours() -> list[Row]:
        log = await bucket.open()
        rows: list[Row] = []
        for partition in range(PARTITIONS):
            for stored in log.state.partition(partition).segments:
                topic_partition = TopicPartition(TOPIC_ID, partition)
                segment = await SegmentReader.open(
                    bucket.store, InlineOffload(), topic_partition, stored.segment
                )
                for batch in await segment.read(0, 1 << 30, ROW_SCHEMA.names):
                    rows += [{**row, "partition": partition} for row in batch.to_pylist()]
        return rows

    expected = bucket.expected
    assert ordered(asyncio.run(ours())) == expected()
    assert len(expected()) == 3 * (4 * 60 + 40) - 2 * 60
    assert ordered(reader(bucket.table)) == expected()
    assert sorted(reader(bucket.table)[0]) == sorted(COLUMNS)


@pytest.mark.parametrize("reader", READERS)
def test_engines_read_from_a_checkpoint_when_earlier_versions_are_gone(
    bucket: Bucket, reader: Reader
) -> None:
    async def story() -> None:
        log = await TableLog.open(
            bucket.store,
            SystemClock(),
            SystemEntropy(),
            InlineOffload(),
            TOPIC_ID,
            "flights",
            grace_seconds=-10,
        )
        assert await log.clean_up() == 4
        assert (await bucket.open()).state.version == 6

    asyncio.run(story())
    assert ordered(reader(bucket.table)) == bucket.expected()


def test_engines_skip_segments_by_their_statistics(bucket: Bucket) -> None:
    wanted = [row for row in bucket.expected() if row["partition"] == 2 and row["offset"] >= 721]
    # The engines do not even open the segments below.
    for path in Path(bucket.table).glob("partition=2/*.parquet"):
        if int(path.name[:20]) < 700:
            path.unlink()
    for path in (0, 1):
        shutil.rmtree(Path(bucket.table) / f"partition={path}")
    frame = pl.scan_delta(bucket.table).filter(
        (pl.col("partition") == 2) & (pl.col("offset") >= 721)
    )
    assert ordered(frame.collect().to_dicts()) == wanted
    with duckdb_with_delta() as connection:
        query = f"from delta_scan('{bucket.table}') select count(*)"
        query += ' where partition = 2 and "offset" >= 721'
        assert connection.execute(query).fetchone() == (len(wanted),)


def test_versions_and_where_the_table_ends_can_be_asked(bucket: Bucket) -> None:
    table = deltalake.DeltaTable(bucket.table)
    assert table.version() == 6
    assert [table.transaction_version(f"partition={p}") for p in range(PARTITIONS)] == [840] * 3
    assert table.metadata().name == "flights"
    assert table.metadata().partition_columns == ["partition"]
    older = deltalake.DeltaTable(bucket.table, version=4)
    assert pa.table(older.to_pyarrow_table()).num_rows == 3 * 4 * 60 - 60


FOREIGN_WRITES: dict[str, Callable[[str], object]] = {
    "append": lambda table: deltalake.write_deltalake(
        table, pa.table(deltalake.DeltaTable(table).to_pyarrow_table()).slice(0, 1), mode="append"
    ),
    "overwrite": lambda table: deltalake.write_deltalake(
        table, pa.table(deltalake.DeltaTable(table).to_pyarrow_table()), mode="overwrite"
    ),
    "polars": lambda table: pl.read_delta(table).write_delta(table, mode="append"),
    "delete": lambda table: deltalake.DeltaTable(table).delete("partition = 1"),
    "update": lambda table: deltalake.DeltaTable(table).update({"value": "null"}),
    "compact": lambda table: deltalake.DeltaTable(table).optimize.compact(),
    "restore": lambda table: deltalake.DeltaTable(table).restore(1),
    "properties": lambda table: deltalake.DeltaTable(table).alter.set_table_properties(
        {"delta.appendOnly": "true"}
    ),
    "vacuum": lambda table: deltalake.DeltaTable(table).vacuum(
        retention_hours=0, dry_run=False, enforce_retention_duration=False
    ),
    "full vacuum": lambda table: deltalake.DeltaTable(table).vacuum(
        retention_hours=0, dry_run=False, enforce_retention_duration=False, full=True
    ),
}


@pytest.mark.parametrize("name", FOREIGN_WRITES)
def test_other_writers_are_refused_and_damage_nothing(bucket: Bucket, name: str) -> None:
    before = bucket.listing()
    with pytest.raises(CommitFailedError, match="tidelog"):
        FOREIGN_WRITES[name](bucket.table)
    after = bucket.listing()
    assert {key: after[key] for key in before} == before
    assert ordered(by_deltalake(bucket.table)) == bucket.expected()


def test_a_checkpoint_that_another_engine_wrote_is_read(bucket: Bucket) -> None:
    """The protocol does not prevent this."""

    async def story() -> None:
        log = await bucket.open()
        deltalake.DeltaTable(bucket.table).create_checkpoint()
        found = await bucket.open()
        await bucket.roll(found, 10)
        found = await bucket.open()
        await log.refresh()
        assert not found.checkpoint_due
        for partition in range(PARTITIONS):
            ours, theirs = log.state.partition(partition), found.state.partition(partition)
            assert list(theirs.segments) == list(ours.segments)
            assert theirs.next_offset == ours.next_offset
        await found.write_checkpoint()

    asyncio.run(story())
    assert ordered(by_deltalake(bucket.table)) == bucket.expected()
