"""Copies late flights from one topic to another with Spark, each exactly once, until it is ended.

    TIDELOG_STORE=s3://bucket/prefix TIDELOG_BOOTSTRAP=127.0.0.1:9092 \\
        python examples/spark_late_flights.py /var/lib/late-flights/checkpoint

Spark reads flights from the bucket, and asks brokers only to commit. A job that is killed at any
moment, and started again with its checkpoint, loses no flight and repeats none.
"""

from __future__ import annotations

import os
import sys

from pyspark.sql import SparkSession

from tidelog import Admin, KafkaRequestError
from tidelog.spark_source import register

SOURCE = "flights"
TARGET = "late-flights"
LATE = "CAST(get_json_object(CAST(value AS STRING), '$.delay_minutes') AS INT) >= 15"


def create_topic(bootstrap: str, name: str) -> None:
    """Create the topic, unless another job has."""
    try:
        Admin(bootstrap).create_topic(name, partitions=3)
    except KafkaRequestError as error:
        if error.name != "TOPIC_ALREADY_EXISTS":
            raise


def main() -> None:
    """Run the query until the process is ended."""
    (checkpoint,) = sys.argv[1:]
    store, bootstrap = os.environ["TIDELOG_STORE"], os.environ["TIDELOG_BOOTSTRAP"]
    for name in (SOURCE, TARGET):
        create_topic(bootstrap, name)
    spark = (
        SparkSession.builder.master("local[2]")
        .appName(TARGET)
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .getOrCreate()
    )
    register(spark)
    flights = spark.readStream.format("tidelog").options(
        store=store, subscribe=SOURCE, startingOffsets="earliest"
    )
    late = flights.load().where(LATE).select("key", "value")
    sink = {"store": store, "kafka.bootstrap.servers": bootstrap, "topic": TARGET}
    query = late.writeStream.format("tidelog").options(
        **sink, transactionalId=TARGET, checkpointLocation=checkpoint
    )
    query.start().awaitTermination()


if __name__ == "__main__":
    main()
