"""Delta Lake's own engine, delta-spark, reads tables as other engines do, and refuses to write
them."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.compat.kit.delta_spark import by_delta_spark
from tests.unit.storage.segments import TOPIC_ID
from tests.unit.storage.table.test_table_readers import (
    COLUMNS,
    PARTITIONS,
    READERS,
    Bucket,
    by_deltalake,
    fill,
    ordered,
)
from tidelog.clock import SystemClock
from tidelog.entropy import SystemEntropy
from tidelog.storage.table.table_log import TableLog
from tidelog.workers.offload import InlineOffload

REFUSAL = r"Unsupported Delta write feature[\s\S]*tidelog"

pytestmark = [pytest.mark.compat, pytest.mark.timeout(900)]


@pytest.fixture
def bucket(tmp_path: Path) -> Iterator[Bucket]:
    """A table with a checkpoint, commits behind it, and segments that were removed."""
    found = Bucket(tmp_path / "bucket")
    asyncio.run(fill(found))
    yield found
    asyncio.run(found.store.close())


def test_delta_spark_reads_the_rows_that_other_readers_read(
    bucket: Bucket, delta_spark: SparkSession
) -> None:
    rows = by_delta_spark(delta_spark, bucket.table)
    assert sorted(rows[0]) == sorted(COLUMNS)
    assert ordered(rows) == bucket.expected()
    for other in READERS:
        assert ordered(other(bucket.table)) == bucket.expected()
    older = by_delta_spark(delta_spark, bucket.table, versionAsOf="4")
    assert len(older) == PARTITIONS * 4 * 60 - 60


def test_delta_spark_reads_from_a_checkpoint_without_the_earlier_log(
    bucket: Bucket, delta_spark: SparkSession
) -> None:
    async def clean_up() -> None:
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

    asyncio.run(clean_up())
    assert ordered(by_delta_spark(delta_spark, bucket.table)) == bucket.expected()


def test_delta_spark_skips_segments_by_their_statistics(
    bucket: Bucket, delta_spark: SparkSession
) -> None:
    # The engine does not even open the segments below.
    for path in Path(bucket.table).glob("partition=2/*.parquet"):
        if int(path.name[:20]) < 700:
            path.unlink()
    for number in (0, 1):
        shutil.rmtree(Path(bucket.table) / f"partition={number}")
    frame = delta_spark.read.format("delta").load(bucket.table)
    rows = frame.where("partition = 2 and offset >= 721").toArrow().to_pylist()
    wanted = [row for row in bucket.expected() if row["partition"] == 2 and row["offset"] >= 721]
    assert ordered(rows) == wanted


Write = Callable[[SparkSession, str], object]


def sql(text: str) -> Write:
    return lambda session, table: session.sql(text.format(f"delta.`{table}`")).collect()


def save(mode: str) -> Write:
    def write(session: SparkSession, table: str) -> None:
        session.read.format("delta").load(table).limit(1).write.format("delta").mode(mode).save(
            table
        )

    return write


FOREIGN_WRITES: dict[str, Write] = {
    "append": save("append"),
    "overwrite": save("overwrite"),
    "delete": sql("delete from {} where partition = 1"),
    "update": sql("update {} set value = null"),
    "merge": sql(
        "merge into {0} as t using (select * from {0} limit 1) as s"
        " on t.offset = s.offset and t.partition = s.partition when matched then delete"
    ),
    "optimize": sql("optimize {}"),
    "restore": sql("restore table {} to version as of 1"),
    "properties": sql("alter table {} set tblproperties ('delta.appendOnly' = 'true')"),
    "vacuum": sql("vacuum {} retain 0 hours"),
    "full vacuum": sql("vacuum {} full retain 0 hours"),
    "truncate": sql("truncate table {}"),
}


@pytest.mark.parametrize("name", FOREIGN_WRITES)
def test_its_writes_are_refused_and_damage_nothing(
    bucket: Bucket, delta_spark: SparkSession, name: str
) -> None:
    before = bucket.listing()
    # The error comes from PySpark or from the JVM.
    with pytest.raises(Exception, match=REFUSAL):
        FOREIGN_WRITES[name](delta_spark, bucket.table)
    assert {path: data for path, data in bucket.listing().items() if path in before} == before
    assert ordered(by_deltalake(bucket.table)) == bucket.expected()
