"""`read`: Spark's own Parquet reader and the source make one frame, which is one snapshot."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlparse

import pytest
from confluent_kafka import Producer
from pyspark.sql import DataFrame, SparkSession

from tests.spark.history import PARTITIONS, TOPIC, History, as_consumed, consume, flush
from tests.unit.bucket.bucket_world import roll, world
from tests.unit.spark_source.spark_world import store_at
from tidelog.errors import InvalidConfiguration
from tidelog.localstack.broker_process import BrokerProcess
from tidelog.records.records import NewRecord, encode_batch
from tidelog.spark_source import read

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]


def rows_of(frame: DataFrame) -> list[tuple[Any, ...]]:
    return sorted((as_consumed(row) for row in frame.collect()), key=lambda row: row[:2])


def test_the_frame_has_a_read_committed_consumers_rows_while_the_topic_grows(
    spark: SparkSession, history: History, broker: BrokerProcess
) -> None:
    frame = read(spark, store=history.store, topic=TOPIC, include_headers=True)
    expected = consume(history.kafka)
    source = spark.read.format("tidelog").options(store=history.store, subscribe=TOPIC)
    assert frame.schema == source.option("includeHeaders", True).load().schema
    plan = frame._jdf.queryExecution().executedPlan().toString()
    assert "FileScan parquet" in plan
    assert "Batched: true" in plan
    assert "BatchScan tidelog" in plan
    producer = Producer({"bootstrap.servers": history.kafka, "log_level": 0})
    producer.produce(TOPIC, b"later", partition=1)
    producer.flush(30)
    flush(broker)  # the tail of the frame is in segments now
    assert rows_of(frame) == expected
    assert len(consume(history.kafka)) == len(expected) + 1


def test_ranges_of_offsets_times_and_partitions_are_cut_exactly(
    spark: SparkSession, history: History
) -> None:
    every = consume(history.kafka)
    kept = {"store": history.store, "topic": TOPIC, "include_headers": True}
    end = max(row[1] for row in every)
    found = rows_of(read(spark, **kept, offsets={0: (5, end), 1: (30, None)}))
    assert found == [row for row in every if (5 <= row[1] < end if row[0] == 0 else row[1] >= 30)]
    since, until = (every[number][4] for number in (len(every) // 4, len(every) // 3))
    assert since < until
    found = rows_of(
        read(
            spark,
            **kept,
            partitions=[0],
            until=until,
            since=datetime.fromtimestamp(since / 1e3, UTC),
        )
    )
    assert found == [row for row in every if row[0] == 0 and since <= row[4] < until] != []
    nothing = read(spark, store=history.store, topic=TOPIC, offsets=(end + 1000, None))
    assert nothing.count() == 0
    assert nothing.columns[:3] == ["key", "value", "topic"]


def test_wrong_uses_are_told(spark: SparkSession, history: History) -> None:
    with pytest.raises(InvalidConfiguration, match="there is no topic nowhere"):
        read(spark, store=history.store, topic="nowhere")
    with pytest.raises(InvalidConfiguration, match=f"no partition {PARTITIONS}"):
        read(spark, store=history.store, topic=TOPIC, partitions=[PARTITIONS])
    with pytest.raises(InvalidConfiguration, match="no option startingOffsets: partitions, offs"):
        read(spark, store=history.store, topic=TOPIC, startingOffsets="earliest")
    with pytest.raises(InvalidConfiguration, match=r"unknown option store\.colour"):
        read(spark, store=history.store, topic=TOPIC, colour="red")


def test_a_lost_file_is_told_whatever_the_session_ignores(
    spark: SparkSession, history: History
) -> None:
    frame = read(spark, store=history.store, topic=TOPIC)
    (path,) = (Path(unquote(urlparse(name).path)) for name in frame.inputFiles()[:1])
    hidden = path.with_suffix(".hidden")
    ignored = "spark.sql.files.ignoreMissingFiles"
    spark.conf.set(ignored, True)
    path.rename(hidden)
    try:
        with pytest.raises(Exception, match=path.name):
            frame.collect()
    finally:
        hidden.rename(path)
        spark.conf.unset(ignored)
    assert len(frame.collect()) == len(consume(history.kafka))


OLD_MS = (-14_000_000_000_000, -1000, 0)
"""The years 1526, of the Julian calendar, 1969 and 1970."""


def test_old_times_and_folders_like_patterns_are_read_whatever_the_session_says(
    spark: SparkSession, tmp_path: Path
) -> None:
    folder = tmp_path / "[x] {a,b}*?"
    records = [encode_batch([NewRecord(b"v", timestamp=time_ms)]) for time_ms in OLD_MS]

    async def write() -> None:
        store = store_at(folder)
        async with asyncio.timeout(120), world(store).broker() as broker:
            await broker.create_topic(TOPIC)
            for record in records:
                await broker.produce(record, topic=TOPIC)
            await roll(store, TOPIC)
            for record in records:
                await broker.produce(record, topic=TOPIC)
        await store.close()

    asyncio.run(write())
    rebasing = "spark.sql.parquet.datetimeRebaseModeInRead"
    before = spark.conf.get(rebasing)
    spark.conf.set(rebasing, "LEGACY")
    try:
        frame = read(spark, store=folder.as_uri(), topic=TOPIC)
        times = frame.orderBy("offset").selectExpr("unix_millis(timestamp)").collect()
        assert [time_ms for (time_ms,) in times] == [*OLD_MS, *OLD_MS]
    finally:
        spark.conf.set(rebasing, before)
