"""Executors read a bucket as a read_committed consumer reads its broker: a folder, and S3."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import boto3
import pyarrow.parquet as pq
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from pyspark.sql import DataFrame, SparkSession

from tests.spark.history import GROUP, PARTITIONS, TOPIC, as_consumed, consume, flush, transact
from tests.spark_cluster.conftest import Place
from tidelog.spark_source import SEGMENT_SCHEMA, CommittedFile, committed_files

pytestmark = [pytest.mark.spark_cluster, pytest.mark.timeout(900)]


def read(spark: SparkSession, place: Place, **options: Any) -> DataFrame:
    reader = spark.read.format("tidelog").options(**place.options)
    return reader.options(**{"subscribe": TOPIC} | options).load()


def test_a_batch_is_what_a_read_committed_consumer_gets(spark: SparkSession, place: Place) -> None:
    # A piece for each segment and tail, and more: both executors have some.
    frame = read(spark, place, includeHeaders=True, minPartitions=8)
    assert frame.rdd.getNumPartitions() >= 8
    found = sorted((as_consumed(row) for row in frame.collect()), key=lambda row: row[:2])
    expected = consume(place.broker.kafka)
    assert found == expected
    assert {row[0] for row in found} == set(range(PARTITIONS))
    values = {row[3] for row in found}
    assert b"commits 2 0" in values
    assert not values & {b"never seen", b"behind an open transaction", b"aborts 0 0"}


def test_an_atomic_batch_has_what_is_decided_above_the_open_transaction(
    spark: SparkSession, place: Place
) -> None:
    frame = read(spark, place, snapshot="atomic").selectExpr("cast(value as string) as value")
    values = {row.value for row in frame.collect()}
    assert "behind an open transaction" in values
    assert not values & {"never seen", "aborts 0 0"}


def test_a_stream_follows_writers_across_rolls_and_a_restart(
    spark: SparkSession, place: Place, tmp_path: Path
) -> None:
    def start(*, to_the_end: bool) -> Any:
        rows = (
            spark.readStream.format("tidelog")
            .options(**place.options, subscribe=TOPIC, startingOffsets="earliest")
            .option("includeHeaders", True)
            .option("maxOffsetsPerTrigger", 80)
            .load()
        )
        writer = rows.writeStream.format("parquet").option("path", str(tmp_path / "out"))
        writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
        return (writer.trigger(availableNow=True) if to_the_end else writer).start()

    query = start(to_the_end=False)
    kafka = place.broker.kafka
    plain = Producer({"bootstrap.servers": kafka, "linger.ms": 0, "log_level": 0})
    for number in range(6):
        transact(kafka, f"live {number}", commit=number % 3 != 0)
        plain.produce(TOPIC, b"live %d" % number, partition=1)
        plain.flush(30)
        if number % 2:
            flush(place.broker)
        query.processAllAvailable()
    query.stop()
    transact(kafka, "between runs", commit=True)
    start(to_the_end=True).awaitTermination()
    rows = spark.read.parquet(str(tmp_path / "out")).collect()
    found = sorted((as_consumed(row) for row in rows), key=lambda row: row[:2])
    assert found == consume(kafka)
    assert b"live 5" in {row[3] for row in found}


def test_states_are_frames(spark: SparkSession, place: Place) -> None:
    consumer = Consumer({"bootstrap.servers": place.broker.kafka, "group.id": GROUP})
    consumer.commit(offsets=[TopicPartition(TOPIC, 1, 5)], asynchronous=False)
    consumer.close()
    groups = spark.read.format("tidelog.groups").options(**place.options).load()
    (row,) = groups.filter(f"group_id = '{GROUP}' and kind = 'offset'").collect()
    assert (row.topic, row.partition, row.offset) == (TOPIC, 1, 5)
    assert row.lag == row.end_offset - 5 > 0
    states = spark.read.format("tidelog.transactions").options(**place.options).load()
    found = {row.transactional_id: row.state for row in states.collect()}
    assert found["stays open"] == "Ongoing"
    assert found["commits 0"] == "CompleteCommit"
    assert found["aborts 0"] == "CompleteAbort"


def test_committed_files_hold_what_is_in_the_table(spark: SparkSession, place: Place) -> None:
    flush(place.broker)
    files = committed_files(place.store, TOPIC, **place.settings)
    assert {each.partition for each in files} == set(range(PARTITIONS))
    tailless = read(spark, place, includeTail=False).select("partition", "offset", "value")
    expected = sorted((row.partition, row.offset, row.value) for row in tailless.collect())
    frames: list[tuple[CommittedFile, Sequence[Any]]] = []
    for each in files:
        if place.store.startswith("file:"):
            frames.append((each, spark.read.schema(SEGMENT_SCHEMA).parquet(each.path).collect()))
        else:
            frames.append((each, rows_on_s3(each, place)))
    found = sorted(
        (each.partition, row["offset"], row["value"]) for each, rows in frames for row in rows
    )
    assert found == expected
    assert [len(rows) for _, rows in frames] == [each.rows for each in files]


def rows_on_s3(file: CommittedFile, place: Place) -> list[dict[str, Any]]:
    """What a file on S3 holds. Spark itself would read it with jars that PySpark does not bring."""
    where = urlsplit(file.path)
    assert where.scheme == "s3a"
    client = boto3.client(
        "s3",
        endpoint_url=place.settings["endpoint"],
        region_name=place.settings["region"],
        aws_access_key_id=place.settings["access_key_id"],
        aws_secret_access_key=place.settings["secret_access_key"],
    )
    found = client.get_object(Bucket=where.netloc, Key=where.path.lstrip("/"))["Body"].read()
    client.close()
    assert len(found) == file.size_bytes
    return pq.read_table(io.BytesIO(found), partitioning=None).to_pylist()
