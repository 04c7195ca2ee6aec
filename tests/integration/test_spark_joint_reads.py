"""Spark reads two topics jointly a hundred times, and never sees a part of a transaction. Producers
and Spark's own sink write to both topics in transactions meanwhile, and a broker rolls them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic
from pyspark.sql import SparkSession

from tests.integration.test_atomic_reads import flush
from tests.spark.sessions import local_session
from tidelog.localstack.broker_process import BrokerProcess
from tidelog.spark_source import register

pytestmark = [pytest.mark.integration, pytest.mark.timeout(1800)]

READS = 100
TOPICS = ("left", "right")
ABORTED = b"aborted"


@pytest.fixture
def spark(require_tool: Callable[[str], str], tmp_path: Path) -> Iterator[SparkSession]:
    require_tool("java")
    session = local_session(tmp_path / "spark", cores=2)
    register(session)
    yield session
    session.stop()


class Writer(threading.Thread):
    """Writes a transaction to both topics each second, and aborts every fourth one. Plain records
    come beside them."""

    def __init__(self, kafka: str) -> None:
        super().__init__(daemon=True)
        self._kafka = kafka
        self.stopping = threading.Event()
        self.error: Exception | None = None

    def run(self) -> None:
        try:
            self._write()
        except (KafkaException, BufferError) as error:
            self.error = error

    def _write(self) -> None:
        noise = Producer({"bootstrap.servers": self._kafka, "linger.ms": 5})
        producer = Producer({"bootstrap.servers": self._kafka, "transactional.id": "writer"})
        producer.init_transactions(60)
        number = 0
        while not self.stopping.wait(1):
            number += 1
            is_aborted = number % 4 == 0
            producer.begin_transaction()
            for topic in TOPICS:
                for partition in range(2):
                    value = ABORTED if is_aborted else b"produced %d" % number
                    producer.produce(topic, value, partition=partition)
            for _ in range(200):
                noise.produce("noise", b"x" * 1000)
            noise.flush(60)
            if is_aborted:
                producer.flush(60)
                producer.abort_transaction(60)
            else:
                producer.commit_transaction(60)


def test_spark_never_sees_half_a_transaction(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "bucket").mkdir()
    store = f"file://{tmp_path}/bucket"
    with BrokerProcess.start(store, tmp_path / "broker.log") as broker:
        admin = AdminClient({"bootstrap.servers": broker.kafka})
        topics = [NewTopic(topic, num_partitions=2) for topic in (*TOPICS, "noise")]
        for created in admin.create_topics(topics).values():
            created.result(60)
        # This query writes every row to both topics, twice each, in its batch's transaction.
        query = (
            spark.readStream.format("rate")
            .option("rowsPerSecond", 20)
            .load()
            .selectExpr(
                "concat('sunk ', value) as value",
                "explode(array('left', 'left', 'right', 'right')) as topic",
            )
            .writeStream.format("tidelog")
            .options(store=store, transactionalId="sink")
            .option("kafka.bootstrap.servers", broker.kafka)
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(processingTime="1 second")
            .start()
        )
        writer = Writer(broker.kafka)
        writer.start()
        seen: list[set[str]] = []
        for turn in range(READS):
            if turn % 25 == 24:
                flush(broker.kafka, TOPICS[turn % 2])
            frame = spark.read.format("tidelog").options(store=store, snapshot="atomic")
            counted = (
                frame.option("subscribe", ",".join(TOPICS))
                .schema("value binary, topic string")
                .load()
                .selectExpr("cast(value as string) as value", "topic")
                .groupBy("value", "topic")
                .count()
            )
            found = {(row["value"], row["topic"]): row["count"] for row in counted.collect()}
            values = {value for value, _ in found}
            assert found == {(value, topic): 2 for value in values for topic in TOPICS}
            assert ABORTED.decode() not in values
            seen.append(values)
        assert query.exception() is None
        query.stop()
        writer.stopping.set()
        writer.join(60)
        assert writer.error is None
        for kind in ("produced", "sunk"):
            numbers = [sum(value.startswith(kind) for value in values) for values in seen]
            assert numbers[-1] > numbers[len(numbers) // 2] > numbers[0], kind
        assert broker.stop() == 0
