"""Spark's source reads two topics jointly while transactions are written to both, and never shows a
part of one. The test makes Spark's steps in one process, without Java."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from tests.unit.spark_source.spark_world import rows_of
from tidelog.localstack.broker_process import BrokerProcess
from tidelog.spark_source.source import TidelogSource

pytestmark = [pytest.mark.integration, pytest.mark.timeout(900)]

READS = 100
PLACES = (("left", 0), ("left", 1), ("right", 0))
TRANSACTIONS_A_READ = 1
EACH = 2
"""Records of a transaction in each place."""


class Writer(threading.Thread):
    """Commits a transaction with a record in every place, then aborts one, and so on until told to
    stop."""

    def __init__(self, kafka: str) -> None:
        super().__init__(daemon=True)
        self._kafka = kafka
        self.stopping = threading.Event()
        self.pace = threading.Semaphore(TRANSACTIONS_A_READ)
        # Each read lets a few transactions go on, so that the number of rows stays small.

    def run(self) -> None:
        producer = Producer(
            {"bootstrap.servers": self._kafka, "transactional.id": "writer", "linger.ms": 0}
        )
        producer.init_transactions(60)
        number = 0
        while self.pace.acquire(timeout=300) and not self.stopping.is_set():
            number += 1
            producer.begin_transaction()
            for topic, partition in PLACES * EACH:
                producer.produce(topic, b"%d" % number, partition=partition)
                producer.poll(0)
            if number % 5 == 0:
                producer.flush(60)
                producer.abort_transaction(60)
            else:
                producer.commit_transaction(60)


def test_two_topics_read_jointly_never_show_half_a_transaction(tmp_path: Path) -> None:
    (tmp_path / "bucket").mkdir()
    store = f"file://{tmp_path}/bucket"
    with BrokerProcess.start(store, tmp_path / "broker.log") as broker:
        admin = AdminClient({"bootstrap.servers": broker.kafka})
        topics = [NewTopic("left", num_partitions=2), NewTopic("right", num_partitions=1)]
        for created in admin.create_topics(topics).values():
            created.result(60)
        # This transaction stays open, and an atomic snapshot does not wait for it.
        opening = Producer({"bootstrap.servers": broker.kafka, "transactional.id": "open"})
        opening.init_transactions(60)
        opening.begin_transaction()
        opening.produce("left", b"0", partition=0)
        opening.flush(60)
        writer = Writer(broker.kafka)
        writer.start()
        seen = []
        for turn in range(READS):
            if turn % 20 == 19:
                flush(broker.kafka, "right")
            writer.pace.release(TRANSACTIONS_A_READ)
            source = TidelogSource(
                {"store": store, "subscribe": "left,right", "snapshot": "atomic"}
            )
            rows = rows_of(source, ["topic", "partition", "value"])
            whole = Counter((row["value"], row["topic"], row["partition"]) for row in rows)
            numbers = {row["value"] for row in rows}
            expected = {(number, *place): EACH for number in numbers for place in PLACES}
            assert whole == expected
            assert b"0" not in numbers
            seen.append(len(numbers))
        writer.stopping.set()
        writer.pace.release()
        writer.join(60)
        assert seen[-1] > seen[0]
        assert broker.stop() == 0


def flush(kafka: str, topic: str) -> None:
    command = [sys.executable, "-m", "tidelog.cli", "topics", "flush", topic]
    subprocess.run([*command, "--bootstrap", kafka], check=True, capture_output=True)
