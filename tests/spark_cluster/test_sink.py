"""Executors write topics, each batch at once and once: on a shared folder, and on S3."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from tests.spark.history import PARTITIONS, consume
from tests.spark_cluster.conftest import Place
from tidelog.localstack.spark import SparkCluster
from tidelog.records.partitioner import partition_of

pytestmark = [pytest.mark.spark_cluster, pytest.mark.timeout(900)]

HEADERS = "array(named_struct('key', 'h', 'value', binary('x')))"


def create(place: Place, *topics: str) -> None:
    admin = AdminClient({"bootstrap.servers": place.broker.kafka})
    new = [NewTopic(topic, num_partitions=PARTITIONS) for topic in topics]
    for created in admin.create_topics(new).values():
        created.result(30)


def sink_options(place: Place, transactional_id: str) -> dict[str, str]:
    return place.options | {
        "kafka.bootstrap.servers": place.broker.kafka,
        "transactionalId": transactional_id,
    }


def feed(place: Place, topic: str, values: list[bytes]) -> None:
    producer = Producer({"bootstrap.servers": place.broker.kafka, "linger.ms": 0, "log_level": 0})
    for value in values:
        producer.produce(topic, value, value)
    assert producer.flush(60) == 0


def values(place: Place, topic: str) -> list[bytes]:
    return sorted(row[3] for row in consume(place.broker.kafka, topic))


def test_a_batch_of_many_tasks_goes_to_two_topics_once(spark: SparkSession, place: Place) -> None:
    create(place, "billed", "shipped")
    frame = spark.range(0, 4000, numPartitions=6).selectExpr(
        "concat('k', id % 100) as key",
        "concat('v', id) as value",
        "if(id % 2 = 0, 'billed', 'shipped') as topic",
        f"{HEADERS} as headers",
    )
    writer = frame.write.format("tidelog").options(**sink_options(place, "nightly"), batchId=7)
    for _ in range(2):
        writer.mode("append").save()
    for topic, rest in (("billed", 0), ("shipped", 1)):
        found = consume(place.broker.kafka, topic)
        assert sorted(row[3] for row in found) == sorted(b"v%d" % n for n in range(rest, 4000, 2))
        assert {tuple(row[5]) for row in found} == {(("h", b"x"),)}
        assert all(row[0] == partition_of(row[2], PARTITIONS) for row in found)
    both = spark.read.format("tidelog").options(**place.options, subscribe="billed,shipped")
    assert both.option("snapshot", "atomic").load().count() == 4000


def start(
    spark: SparkSession, place: Place, changes: str, names: tuple[str, str], checkpoint: Path
) -> Any:
    """The writer of a stream that takes each record of a topic into two."""
    rows = (
        spark.readStream.format("tidelog")
        .options(**place.options, subscribe=changes, startingOffsets="earliest")
        .option("maxOffsetsPerTrigger", 200)
        .load()
    )
    first, second = names
    return (
        rows.selectExpr("key", "value", f"explode(array('{first}', '{second}')) as topic")
        .writeStream.format("tidelog")
        .options(**sink_options(place, f"derive {changes}"))
        .option("checkpointLocation", str(checkpoint))
    )


def test_a_stream_that_repeats_its_commit_writes_each_row_once(
    spark: SparkSession, place: Place, tmp_path: Path
) -> None:
    create(place, "changes", "derived", "audit")
    sent = [b"%04d" % number for number in range(500)]

    def run() -> None:
        writer = start(spark, place, "changes", ("derived", "audit"), tmp_path / "checkpoint")
        writer.trigger(availableNow=True).start().awaitTermination()
        assert values(place, "derived") == values(place, "audit") == sent

    feed(place, "changes", sent)
    run()
    # As if Spark had died between the sink's commit and its own: the next start repeats the last
    # batch.
    commits = tmp_path / "checkpoint" / "commits"
    last = max(int(each.name) for each in commits.iterdir() if each.name.isdigit())
    (commits / str(last)).unlink()
    (commits / f".{last}.crc").unlink(missing_ok=True)
    run()
    assert (commits / str(last)).exists()
    more = [b"more %d" % number for number in range(50)]
    feed(place, "changes", more)
    sent = sorted(sent + more)
    run()


def test_a_worker_that_is_killed_with_its_executor_costs_no_row_and_doubles_none(
    spark: SparkSession, place: Place, cluster: SparkCluster, tmp_path: Path
) -> None:
    create(place, "orders.in", "orders.out", "orders.log")
    sent = [b"%05d" % number for number in range(3000)]
    feed(place, "orders.in", sent)
    writer = start(spark, place, "orders.in", ("orders.out", "orders.log"), tmp_path / "checkpoint")
    query: StreamingQuery = writer.start()
    while query.lastProgress is None or query.lastProgress.batchId < 2:
        # Wait for an end that must not come.
        assert not query.awaitTermination(1)
    victim = next(each for each in cluster.workers if each.process.poll() is None)
    victim.kill()
    before = query.lastProgress.batchId
    cluster.start_workers(1)
    query.processAllAvailable()
    assert query.lastProgress.batchId > before
    query.stop()
    assert values(place, "orders.out") == values(place, "orders.log") == sent
