"""A streaming query whose lag Kafka's tools can see."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from pyspark.sql import SparkSession

from tidelog.localstack.broker_process import BrokerProcess

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]

TOPIC, GROUP = "measured", "lag-of-a-query"


def described(broker: BrokerProcess) -> list[dict[str, Any]]:
    """The group's offsets, as `tidelog groups describe` prints them."""
    command = [sys.executable, "-m", "tidelog.cli", "groups", "describe", GROUP, "--json"]
    command += ["--bootstrap", broker.kafka]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    offsets: list[dict[str, Any]] = json.loads(done.stdout)["offsets"]
    return offsets


def test_the_lag_of_a_query_is_seen_by_tools(
    spark: SparkSession, broker: BrokerProcess, tmp_path: Path
) -> None:
    admin = AdminClient({"bootstrap.servers": broker.kafka, "log_level": 0})
    admin.create_topics([NewTopic(TOPIC, num_partitions=1)])[TOPIC].result(30)

    def produce(records: int) -> None:
        producer = Producer({"bootstrap.servers": broker.kafka, "log_level": 0})
        for number in range(records):
            producer.produce(TOPIC, b"%d" % number, partition=0)
        producer.flush(30)

    def run() -> None:
        query = (
            spark.readStream.format("tidelog")
            .option("store", f"file://{broker.log_path.parent}/bucket")
            .options(subscribe=TOPIC, startingOffsets="earliest", publishGroupId=GROUP)
            .option("kafka.bootstrap.servers", broker.kafka)
            .schema("value binary")
            .load()
            .writeStream.format("parquet")
            .option("path", str(tmp_path / "out"))
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()

    for read, behind in ((5, 3), (8 + 4, 2)):
        produce(read - (0 if read == 5 else 8))
        run()
        produce(behind)
        (offset,) = described(broker)
        assert (offset["topic"], offset["partition"]) == (TOPIC, 0)
        assert (offset["committed"], offset["lag"]) == (read, behind)
