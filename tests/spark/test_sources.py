"""Spark reads a bucket as a read_committed consumer reads the broker, and more."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from pyspark.sql import DataFrame, SparkSession

from tests.spark.history import (
    GROUP,
    PARTITIONS,
    TOPIC,
    History,
    as_consumed,
    consume,
    transact,
)
from tidelog.spark_source import SEGMENT_SCHEMA, committed_files

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]


def read(spark: SparkSession, history: History, **options: Any) -> DataFrame:
    reader = spark.read.format("tidelog").option("store", history.store)
    for name, value in ({"subscribe": TOPIC} | options).items():
        reader = reader.option(name, value)
    return reader.load()


def test_a_batch_has_the_records_of_a_read_committed_consumer(
    spark: SparkSession, history: History
) -> None:
    frame = read(spark, history, includeHeaders=True, minPartitions=3)
    found = sorted((as_consumed(row) for row in frame.collect()), key=lambda row: row[:2])
    expected = consume(history.kafka)
    assert found == expected
    assert {row[0] for row in found} == set(range(PARTITIONS))
    assert b"never seen" not in {row[3] for row in found}


def test_one_frame_is_one_snapshot_however_it_is_filtered(
    spark: SparkSession, history: History
) -> None:
    frame = read(spark, history)
    before = len(consume(history.kafka))
    producer = Producer({"bootstrap.servers": history.kafka, "log_level": 0})
    producer.produce(TOPIC, b"later", partition=1)
    producer.flush(30)
    assert frame.filter("offset >= 0").count() == frame.count() == before
    halves = [frame.filter(f"partition = {number}") for number in range(PARTITIONS)]
    assert halves[0].union(halves[1]).count() == before
    assert len(consume(history.kafka)) == before + 1


def test_a_stream_goes_on_where_its_checkpoint_is(
    spark: SparkSession, history: History, tmp_path: Path
) -> None:
    def run() -> list[tuple[int, int, bytes]]:
        query = (
            spark.readStream.format("tidelog")
            .options(store=history.store, subscribe=TOPIC, startingOffsets="earliest")
            .option("maxOffsetsPerTrigger", 60)
            .load()
            .selectExpr("partition", "offset", "coalesce(value, binary('')) as value")
            .writeStream.format("parquet")
            .option("path", str(tmp_path / "out"))
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        rows = spark.read.parquet(str(tmp_path / "out")).collect()
        return sorted((row.partition, row.offset, bytes(row.value)) for row in rows)

    def expected() -> list[tuple[int, int, bytes]]:
        return [(row[0], row[1], row[3] or b"") for row in consume(history.kafka)]

    assert run() == expected()
    transact(history.kafka, "between runs", commit=True)
    assert run() == expected()


def test_states_and_files_are_data_too(spark: SparkSession, history: History) -> None:
    consumer = Consumer({"bootstrap.servers": history.kafka, "group.id": GROUP, "log_level": 0})
    consumer.commit(offsets=[TopicPartition(TOPIC, 1, 5)], asynchronous=False)
    consumer.close()
    groups = spark.read.format("tidelog.groups").option("store", history.store).load()
    (row,) = groups.filter(f"group_id = '{GROUP}' and kind = 'offset'").collect()
    assert (row.topic, row.partition, row.offset) == (TOPIC, 1, 5)
    assert row.lag == row.end_offset - 5 > 0
    states = (
        spark.read.format("tidelog.transactions")
        .option("store", history.store)
        .schema("transactional_id string, state string")
        .load()
    )
    found = {row.transactional_id: row.state for row in states.collect()}
    assert found["stays open"] == "Ongoing"
    assert found["commits 0"] == "CompleteCommit"
    files = committed_files(history.store, TOPIC)
    assert len(files) >= 2 * PARTITIONS
    plain = spark.read.schema(SEGMENT_SCHEMA).parquet(*(each.path for each in files))
    tailless = read(spark, history, includeTail=False)
    assert plain.count() == sum(each.rows for each in files) == tailless.count()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"subscribe": "nowhere"}, "there is no topic nowhere in this bucket"),
        ({"store": "file:///nowhere/at/all"}, "holds no cluster. Check the address"),
        ({"snapshot": "atomic", "endingOffsets": '{"orders":{"0":3,"1":3}}'}, "snapshot=atomic"),
        ({"endingOffsets": '{"orders":{"0":3,"1":999999}}'}, "999999 of orders-1 is above"),
        ({"startingOffsets": '{"orders":{"0":3,"1":'}, "startingOffsets is not JSON"),
        ({"kafka.isolation.level": "read_uncommitted"}, "only what is committed is read"),
        ({"store": ""}, "the option store is missing"),
        ({"store": "nowhere://bucket"}, "Protocol not known: nowhere"),
    ],
)
def test_wrong_input_is_refused_by_name(
    spark: SparkSession, history: History, options: dict[str, str], message: str
) -> None:
    with pytest.raises(Exception, match=message):
        read(spark, history, **options).collect()


def test_a_schema_with_an_unknown_column_or_another_type_is_refused(
    spark: SparkSession, history: History
) -> None:
    reader = spark.read.format("tidelog").options(store=history.store, subscribe=TOPIC)
    with pytest.raises(Exception, match="the schema asks for a column valeu; there are key, value"):
        reader.schema("valeu binary").load().collect()
    with pytest.raises(Exception, match="asks for column value as string; it is binary: cast it"):
        reader.schema("value string").load().collect()
    pruned = reader.schema("offset bigint, topic string, producerId bigint").load()
    assert {row.topic for row in pruned.limit(3).collect()} == {TOPIC}


def test_a_segment_that_is_lost_before_it_is_read_is_named(
    spark: SparkSession, history: History, tmp_path: Path
) -> None:
    frame = read(spark, history)
    lost = Path(urlsplit(committed_files(history.store, TOPIC)[0].path).path)
    kept = lost.rename(tmp_path / lost.name)
    with pytest.raises(Exception, match=f"{lost.name} is corrupt: it is missing"):
        frame.collect()
    kept.rename(lost)
    assert frame.count() == len(read(spark, history).collect())
