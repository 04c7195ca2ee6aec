"""Executors read a bucket as a read_committed consumer reads its broker: a folder, and S3."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from pyspark.sql import DataFrame, SparkSession

from tests.spark.history import GROUP, PARTITIONS, TOPIC, as_consumed, consume, flush, transact
from tests.spark_cluster.conftest import Place
from tidelog.spark_source import SEGMENT_SCHEMA, committed_files, s3a_options

pytestmark = [pytest.mark.spark_cluster, pytest.mark.timeout(900)]

SEGMENT_COLUMNS = ("offset", "timestamp", "timestampType", "key", "value", "producerId")
FILE_COLUMNS = ("offset", "timestamp", "timestamp_type", "key", "value", "producer_id")


def read(spark: SparkSession, place: Place, **options: Any) -> DataFrame:
    reader = spark.read.format("tidelog").options(**place.options)
    return reader.options(**{"subscribe": TOPIC} | options).load()


def test_a_batch_has_the_records_of_a_read_committed_consumer(
    spark: SparkSession, place: Place
) -> None:
    # There are more pieces than segments and tails, so both executors have some.
    frame = read(spark, place, includeHeaders=True, minPartitions=8)
    assert frame.rdd.getNumPartitions() >= 8
    found = sorted((as_consumed(row) for row in frame.collect()), key=lambda row: row[:2])
    expected = consume(place.broker.kafka)
    assert found == expected
    assert {row[0] for row in found} == set(range(PARTITIONS))
    values = {row[3] for row in found}
    assert b"commits 2 0" in values
    assert not values & {b"never seen", b"behind an open transaction", b"aborts 0 0"}


def test_an_atomic_batch_has_decided_records_above_the_open_transaction(
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


def test_committed_files_hold_the_rows_of_the_table(spark: SparkSession, place: Place) -> None:
    flush(place.broker)
    files = committed_files(place.store, TOPIC, **place.settings)
    assert {each.partition for each in files} == set(range(PARTITIONS))
    scheme = "file" if place.store.startswith("file:") else "s3a"
    assert {urlsplit(each.path).scheme for each in files} == {scheme}
    tailless = read(spark, place, includeTail=False, includeProducer=True)
    expected = tailless.select("partition", *SEGMENT_COLUMNS).collect()
    found = []
    for each in files:
        # Only the executors' JVMs open the files, by the reader's options.
        reader = spark.read.options(**s3a_options(place.store, **place.settings))
        frame = reader.schema(SEGMENT_SCHEMA).parquet(each.path)
        assert frame.count() == each.rows
        found += [(each.partition, *row) for row in frame.select(*FILE_COLUMNS).collect()]
    assert len(found) > 0
    assert sorted(found, key=lambda row: row[:2]) == sorted(
        (tuple(row) for row in expected), key=lambda row: row[:2]
    )
