"""Spark writes to topics: each batch whole and exactly once, however often Spark repeats it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from pyspark.sql import DataFrame, SparkSession

from tests.spark.history import PARTITIONS, consume
from tidelog.localstack.broker_process import BrokerProcess
from tidelog.records.partitioner import partition_of

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]

HEADERS = "array(named_struct('key', 'h', 'value', binary('x')))"


def create(broker: BrokerProcess, *topics: str) -> None:
    admin = AdminClient({"bootstrap.servers": broker.kafka, "log_level": 0})
    new = [NewTopic(topic, num_partitions=PARTITIONS) for topic in topics]
    for created in admin.create_topics(new).values():
        created.result(30)


def options_of(broker: BrokerProcess, **options: Any) -> dict[str, str]:
    given = {
        "store": f"file://{broker.log_path.parent}/bucket",
        "kafka.bootstrap.servers": broker.kafka,
    } | options
    return {name: str(value) for name, value in given.items()}


def save(frame: DataFrame, broker: BrokerProcess, **options: Any) -> None:
    frame.write.format("tidelog").options(**options_of(broker, **options)).mode("append").save()


def values(broker: BrokerProcess, topic: str) -> list[bytes]:
    return sorted(row[3] for row in consume(broker.kafka, topic))


def test_a_batch_goes_to_two_topics_once(spark: SparkSession, broker: BrokerProcess) -> None:
    create(broker, "billed", "shipped")
    frame = spark.range(40).selectExpr(
        "concat('k', id % 10) as key",
        "concat('v', id) as value",
        "if(id % 2 = 0, 'billed', 'shipped') as topic",
        "if(id = 0, 1, cast(null as int)) as partition",
        f"{HEADERS} as headers",
        "id as passed_over",
    )
    for _ in range(2):
        save(frame, broker, transactionalId="nightly", batchId=7)
    for topic, rest in (("billed", 0), ("shipped", 1)):
        found = consume(broker.kafka, topic)
        assert sorted(row[3] for row in found) == sorted(b"v%d" % n for n in range(rest, 40, 2))
        assert {tuple(row[5]) for row in found} == {(("h", b"x"),)}
        named = [row[0] for row in found if row[3] == b"v0"]
        assert named == [1] * (rest == 0)
        assert all(row[0] == partition_of(row[2], PARTITIONS) for row in found if row[3] != b"v0")
    in_spark = spark.read.format("tidelog").option("store", options_of(broker)["store"])
    in_spark = in_spark.option("subscribe", "billed,shipped").option("snapshot", "atomic")
    assert in_spark.load().count() == 40


def test_a_stream_that_repeats_its_commits_writes_each_row_once(
    spark: SparkSession, broker: BrokerProcess, tmp_path: Path
) -> None:
    create(broker, "changes", "derived", "audit")

    def feed(batch_id: int, *names: str) -> None:
        frame = spark.createDataFrame([(name,) for name in names], "value string")
        save(frame, broker, topic="changes", transactionalId="feed", batchId=batch_id)

    def run(checkpoint: str = "checkpoint") -> None:
        options = options_of(broker)
        changes = (
            spark.readStream.format("tidelog")
            .options(store=options["store"], subscribe="changes", startingOffsets="earliest")
            .load()
        )
        query = (
            changes.selectExpr("value", "explode(array('derived', 'audit')) as topic")
            .writeStream.format("tidelog")
            .options(**options, transactionalId="derive")
            .option("checkpointLocation", str(tmp_path / checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()

    def expect(*names: bytes) -> None:
        assert values(broker, "derived") == values(broker, "audit") == sorted(names)

    feed(0, "a", "b", "c")
    run()
    expect(b"a", b"b", b"c")
    feed(1, "d", "e")
    run()
    expect(b"a", b"b", b"c", b"d", b"e")
    # As if Spark had died between the sink's commit and its own: the next start repeats the last
    # batch.
    commits = tmp_path / "checkpoint" / "commits"
    last = max(int(each.name) for each in commits.iterdir() if each.name.isdigit())
    (commits / str(last)).unlink()
    (commits / f".{last}.crc").unlink(missing_ok=True)
    run()
    assert (commits / str(last)).exists()
    expect(b"a", b"b", b"c", b"d", b"e")
    feed(2, "f")
    run()
    expect(b"a", b"b", b"c", b"d", b"e", b"f")

    # Another checkpoint is another query, even with the same name.
    with pytest.raises(Exception, match="transactional id derive belongs to query"):
        run("another checkpoint")
    expect(b"a", b"b", b"c", b"d", b"e", b"f")


@pytest.fixture(scope="module")
def refusals(broker: BrokerProcess) -> str:
    create(broker, "refusals")
    return "refusals"


@pytest.mark.parametrize(
    ("columns", "options", "message"),
    [
        (("'v' as value",), {}, "rows have no topic"),
        (("cast(null as string) as topic", "'v' as value"), {}, "a row has no topic"),
        (("'k' as key",), {"topic": "refusals"}, "there is no column value among key"),
        (("cast(null as string) as value",), {"topic": "refusals"}, "a row has no value"),
        (("'v' as value", "7 as partition"), {"topic": "refusals"}, "partition 7 of topic refusal"),
        (("'v' as value",), {"topic": "nowhere"}, "topic nowhere, which the sink is to write to"),
        (("'v' as value",), {"topic": "refusals", "transactionalId": ""}, "transactionalId is mis"),
    ],
)
def test_wrong_rows_are_refused_and_nothing_of_them_is_seen(
    spark: SparkSession,
    broker: BrokerProcess,
    refusals: str,
    columns: tuple[str, ...],
    options: dict[str, str],
    message: str,
) -> None:
    frame = spark.range(3).selectExpr(*columns)
    with pytest.raises(Exception, match=message):
        save(frame, broker, **{"transactionalId": "wrong", "batchId": 0} | options)
    assert values(broker, refusals) == []
