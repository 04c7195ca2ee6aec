"""Spark's SQL alone: reads of and inserts into views and tables, and errors as users see them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from tests.spark.history import PARTITIONS, TOPIC, History, consume

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]


def options(history: History, topic: str) -> str:
    return f"store '{history.store}', subscribe '{topic}'"


def test_a_view_needs_no_catalog(spark: SparkSession, history: History) -> None:
    spark.sql(f"CREATE TEMPORARY VIEW o USING tidelog OPTIONS ({options(history, TOPIC)})")
    (row,) = spark.sql("SELECT count(*) AS rows, max(offset) AS last FROM o").collect()
    expected = consume(history.kafka)
    assert (row.rows, row.last) == (len(expected), max(each[1] for each in expected))
    spark.sql("DROP VIEW o")


def create_topic(history: History, topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": history.kafka, "log_level": 0})
    admin.create_topics([NewTopic(topic, num_partitions=PARTITIONS)])[topic].result(30)


def create_table(spark: SparkSession, history: History, table: str, topic: str) -> None:
    create_topic(history, topic)
    spark.sql(
        f"CREATE TABLE {table} USING tidelog OPTIONS ({options(history, topic)}, topic '{topic}',"
        f" `kafka.bootstrap.servers` '{history.kafka}', transactionalId 'inserts into {table}')"
    )


def test_a_table_is_read_and_inserted_into(spark: SparkSession, history: History) -> None:
    table = "of-a-table"
    create_table(spark, history, "entries", table)
    insert = (
        "INSERT INTO entries WITH (batchId = {}) (key, value) VALUES (binary('k'), binary('{}'))"
    )
    for number in (0, 1, 1):  # the last one is a repetition
        spark.sql(insert.format(number, number))
    expected = [(b"k", b"0"), (b"k", b"1")]
    assert [row[2:4] for row in consume(history.kafka, table, "entries")] == expected
    found = spark.read.table("entries").orderBy("offset").collect()
    assert [(bytes(row.key), bytes(row.value)) for row in found] == expected
    partition = found[0].partition
    starting = f'{{"{table}":{{"{partition}":1,"{1 - partition}":0}}}}'
    rest = f"SELECT value FROM entries WITH (startingOffsets = '{starting}')"
    assert [bytes(row.value) for row in spark.sql(rest).collect()] == [b"1"]
    spark.sql("DROP TABLE entries")


def test_rows_of_a_table_go_where_their_write_says(spark: SparkSession, history: History) -> None:
    create_table(spark, history, "originals", "originals")
    create_table(spark, history, "copies", "copies")
    create_topic(history, "others")
    spark.sql(
        "INSERT INTO originals WITH (batchId = 0) (key, value) VALUES (binary('k'), binary('v'))"
    )
    rows = spark.read.table("originals").selectExpr("key", "value", "'others' as topic")
    writer = rows.write.format("tidelog").option("store", history.store).mode("append")
    writer = writer.option("kafka.bootstrap.servers", history.kafka)
    writer.options(transactionalId="others", batchId=1).save()
    with pytest.raises(Exception, match="name the columns, as in INSERT INTO t"):
        spark.sql("INSERT INTO copies WITH (batchId = 2) SELECT * FROM originals")
    spark.sql("INSERT INTO copies WITH (batchId = 3) (key, value) SELECT key, value FROM originals")
    for topic in ("originals", "others", "copies"):
        assert [row[2:4] for row in consume(history.kafka, topic, "copied")] == [(b"k", b"v")]
    spark.sql("DROP TABLE originals")
    spark.sql("DROP TABLE copies")


def test_errors_come_before_tasks_and_without_the_workers_traceback(
    spark: SparkSession, history: History, tmp_path: Path
) -> None:
    rows = spark.sql("SELECT binary('v') AS value")

    def load(**given: str) -> None:
        spark.read.format("tidelog").options(**{"store": history.store, **given}).load()

    def save(**given: str) -> None:
        writer = rows.write.format("tidelog").mode("append")
        writer.option("kafka.bootstrap.servers", history.kafka).options(
            **{"store": history.store, "transactionalId": "t", "batchId": "0", **given}
        ).save()

    wrong: list[tuple[Callable[[], None], str]] = [
        (lambda: load(subscribe="nowhere"), "there is no topic nowhere in this bucket"),
        (lambda: load(subscribe=TOPIC, store=f"file://{tmp_path}"), "holds no cluster"),
        (lambda: load(subscribe=TOPIC, failOnDataLoss="no"), "failOnDataLoss is true or false"),
        (lambda: load(subscribe=TOPIC, assign="{}"), "give exactly one of assign, subscribe"),
        (lambda: save(topic="nowhere"), "which the sink is to write to: .*topics create nowhere"),
        (lambda: save(topic=TOPIC, store=f"file://{tmp_path}"), "holds no cluster"),
        (lambda: save(), "rows have no topic"),
    ]
    for use, message in wrong:
        with pytest.raises(Exception, match=message) as told:
            use()
        assert "Traceback" not in str(told.value)
        assert "PYTHON_DATA_SOURCE_ERROR" in str(told.value)  # of the driver, not of a task


def test_an_option_for_batches_is_named_by_the_stream(
    spark: SparkSession, history: History, tmp_path: Path
) -> None:
    rows = spark.readStream.format("tidelog").option("store", history.store)
    rows = rows.options(subscribe=TOPIC, endingOffsets="latest")
    writer = rows.load().writeStream.format("noop").option("checkpointLocation", str(tmp_path))
    with pytest.raises(StreamingQueryException, match="endingOffsets is for batches: a stream has"):
        writer.start().awaitTermination(60)
