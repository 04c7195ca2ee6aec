"""The programs and statements of docs/SPARK.md, run as written."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.spark.history import flush
from tests.spark.sessions import ROOT
from tidelog import Admin, Consumer, Producer
from tidelog.localstack.broker_process import BrokerProcess

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]

BLOCK = re.compile(r"^```(python|sql)\n(.*?)^```", re.M | re.S)
PARTITIONS = {"flights": 2, "orders": 1, "billing": 1}
RECORDS = {"flights": 3, "orders": 0, "billing": 24}


def produce(bootstrap: str, topic: str, records: int) -> None:
    with Producer(bootstrap) as producer:
        for number in range(records):
            producer.send(topic, f"{topic} {number}", partition=0)


@pytest.fixture
def bootstrap(tmp_path: Path) -> Iterator[str]:
    """A broker with the topics that the page takes for granted."""
    (tmp_path / "bucket").mkdir()
    with BrokerProcess.start(f"file://{tmp_path}/bucket", tmp_path / "broker.log") as broker:
        for topic, records in RECORDS.items():
            Admin(broker.kafka).create_topic(topic, partitions=PARTITIONS[topic])
            produce(broker.kafka, topic, records)
        flush(broker, "flights")  # a segment for Spark's own reader
        yield broker.kafka
        assert broker.stop() == 0


def test_the_pages_examples(spark: SparkSession, bootstrap: str, tmp_path: Path) -> None:
    page = (ROOT / "docs" / "SPARK.md").read_text(encoding="utf-8")
    for written, here in (
        ("s3://my-bucket/prefix", f"file://{tmp_path}/bucket"),
        ("broker:9092", bootstrap),
        ("s3a://my-checkpoints", str(tmp_path)),
    ):
        assert written in page
        page = page.replace(written, here)
    names: dict[str, Any] = {"spark": spark}
    answers = []
    for language, block in BLOCK.findall(page):
        if language == "python":
            exec(block, names)
        else:
            answers += [spark.sql(each).collect() for each in block.split(";") if each.strip()]
    counts, from_its_offset = (rows for rows in answers if rows)
    assert [tuple(row) for row in counts] == [(0, 3)]
    assert [bytes(row.value) for row in from_its_offset] == [b"billing 23"]
    names["query"].processAllAvailable()  # the stream begins at the end, which it knows now
    produce(bootstrap, "orders", 2)
    with Consumer(bootstrap, "billing", auto_offset_reset="earliest") as consumer:
        expected = (b"v", b"flights 0", b"flights 1", b"flights 2", b"orders 0", b"orders 1")
        found = [message.value for message in islice(consumer, 24 + len(expected))]
    assert found[24:] == [*expected]
    names["query"].stop()
    spark.sql("DROP TABLE billing")
    spark.sql("DROP VIEW flights")
