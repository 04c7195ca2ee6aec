"""Foreign clients read segments through a broker that has no records in memory. Other engines read
the same rows from the bucket."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pytest
from aiokafka import AIOKafkaConsumer
from aiokafka import TopicPartition as AioTopicPartition
from confluent_kafka import Consumer, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from kafka import KafkaConsumer
from kafka import TopicPartition as PyTopicPartition
from pyspark.sql import SparkSession

from benchmarks.harness.targets import scrape
from tests.compat.kit.clients import SECONDS_MAX, Client
from tests.compat.kit.delta_spark import by_delta_spark
from tests.compat.kit.records import CODECS, PARTITIONS, Record, sample
from tests.unit.storage.table.test_table_readers import READERS, Reader
from tidelog.localstack.broker_process import BrokerProcess

CLIENTS = ("confluent-kafka", "aiokafka", "kafka-python", "java", "kafkajs", "kcat")
TOPICS = ("by-producers", "by-broker")
STAMP = 1_700_000_000_000
LOG_APPEND_TIME = 2
"""The value that confluent-kafka gives for log append time."""

pytestmark = pytest.mark.compat


class Place(NamedTuple):
    """A record's partition and offset."""

    partition: int
    offset: int


@dataclass(frozen=True, slots=True)
class Stored:
    """A record as readers must return it."""

    record: Record
    timestamp: int
    by_broker: bool


@dataclass(slots=True)
class Written:
    """A topic's committed records, by the places that their producers were told."""

    topic: str
    records: dict[Place, Stored] = field(default_factory=dict)

    def sorted(self) -> list[tuple[Place, Stored]]:
        return sorted(self.records.items(), key=lambda each: each[0])


def produce(
    producer: Producer, written: Written, records: list[Record], *, counts: bool = True
) -> None:
    """Send records with timestamps from STAMP on. Remember the acknowledged records that were not
    aborted."""
    for number, record in enumerate(records):

        def remember(error: object, message: Message, record: Record = record) -> None:
            assert error is None, error
            if counts:
                kind, timestamp = message.timestamp()
                place = Place(record.partition, message.offset())
                written.records[place] = Stored(record, timestamp, kind == LOG_APPEND_TIME)

        producer.produce(
            written.topic,
            value=record.value,
            key=record.key,
            partition=record.partition,
            headers=list(record.headers) or None,
            timestamp=STAMP + 10 * number,
            on_delivery=remember,
        )
    assert producer.flush(SECONDS_MAX) == 0


def fill(bootstrap: str, written: Written) -> None:
    """Batches of all codecs and of one to hundreds of records, among interleaved transactions."""
    base = {"bootstrap.servers": bootstrap, "message.max.bytes": 2_000_000, "log_level": 0}
    for codec in CODECS:
        together = Producer({**base, "compression.type": codec, "linger.ms": 50})
        produce(together, written, sample())
        alone = Producer({**base, "compression.type": codec, "batch.num.messages": 1})
        produce(alone, written, sample()[:12])
    producers = [
        Producer({**base, "transactional.id": f"{written.topic}-{number}"}) for number in range(3)
    ]
    for producer in producers:
        producer.init_transactions(SECONDS_MAX)
    commits = (True, False, True)
    for _ in range(3):
        for producer in producers:
            producer.begin_transaction()
        for part in (slice(0, 20), slice(20, 40)):
            for producer, commit in zip(producers, commits, strict=True):
                produce(producer, written, sample()[part], counts=commit)
        for producer, commit in zip(producers, commits, strict=True):
            if commit:
                producer.commit_transaction(SECONDS_MAX)
            else:
                producer.abort_transaction(SECONDS_MAX)


def flush(bootstrap: str, topic: str) -> None:
    """Flush all records into the table."""
    command = [sys.executable, "-m", "tidelog.cli", "topics", "flush", topic]
    command += ["--bootstrap", bootstrap, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS_MAX, check=True)
    for partition in json.loads(done.stdout)["partitions"]:
        assert partition["table_next"] == partition["high_watermark"] > 0, partition


@dataclass(frozen=True, slots=True)
class ColdBroker:
    """A broker started on a bucket whose topics lie in their tables."""

    process: BrokerProcess
    bucket: Path
    topics: dict[str, Written]

    @property
    def kafka(self) -> str:
        return self.process.kafka

    def chunks_made(self) -> float:
        return scrape(f"http://{self.process.http}/metrics")["tidelog_cold_chunks_total"]


@pytest.fixture(scope="module")
def cold(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ColdBroker]:
    folder = tmp_path_factory.mktemp("cold")
    bucket = folder / "bucket"
    bucket.mkdir()
    store, log = f"file://{bucket}", folder / "broker.log"
    topics = {name: Written(name) for name in TOPICS}
    with BrokerProcess.start(store, log) as first:
        admin = AdminClient({"bootstrap.servers": first.kafka})
        for name in TOPICS:
            by_broker = {"message.timestamp.type": "LogAppendTime"}
            # Retention must not remove the records, whose timestamps are old.
            configs = {"retention.ms": "-1", **(by_broker if name == "by-broker" else {})}
            new = NewTopic(name, num_partitions=PARTITIONS, config=configs)
            admin.create_topics([new])[name].result(30)
            fill(first.kafka, topics[name])
            flush(first.kafka, name)
        assert first.stop() == 0
    with BrokerProcess.start(store, log, http="127.0.0.1:0") as process:
        yield ColdBroker(process, bucket, topics)
        assert process.stop() == 0


@pytest.mark.parametrize("topic", TOPICS)
@pytest.mark.parametrize("client", CLIENTS, indirect=True)
def test_a_client_reads_exactly_the_committed_records(
    cold: ColdBroker, client: Client, topic: str
) -> None:
    expected = {place: stored.record for place, stored in cold.topics[topic].records.items()}
    seen = client.consume(cold.kafka, topic, PARTITIONS, len(expected))
    assert cold.chunks_made() > 0
    assert len(seen) == len(expected)
    last = dict.fromkeys(range(PARTITIONS), -1)
    for record in seen:
        assert record.offset is not None
        assert record.offset > last[record.partition]
        last[record.partition] = record.offset
        wanted = expected[Place(record.partition, record.offset)]
        assert (record.key, record.value) == (wanted.key, wanted.value)
        assert record.headers == wanted.headers


def times_by_confluent(bootstrap: str, topic: str, count: int) -> dict[Place, tuple[int, bool]]:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "times"})
    consumer.assign([TopicPartition(topic, p, 0) for p in range(PARTITIONS)])
    found = {}
    try:
        while len(found) < count:
            message = consumer.poll(SECONDS_MAX)
            assert message is not None
            assert message.error() is None, message.error()
            kind, timestamp = message.timestamp()
            place = Place(message.partition(), message.offset())
            found[place] = (timestamp, kind == LOG_APPEND_TIME)
    finally:
        consumer.close()
    return found


def times_by_aiokafka(bootstrap: str, topic: str, count: int) -> dict[Place, tuple[int, bool]]:
    async def read() -> dict[Place, tuple[int, bool]]:
        consumer = AIOKafkaConsumer(
            bootstrap_servers=bootstrap, auto_offset_reset="earliest", enable_auto_commit=False
        )
        await consumer.start()
        found = {}
        try:
            consumer.assign([AioTopicPartition(topic, p) for p in range(PARTITIONS)])
            async with asyncio.timeout(SECONDS_MAX):
                while len(found) < count:
                    message = await consumer.getone()
                    place = Place(message.partition, message.offset)
                    found[place] = (message.timestamp, message.timestamp_type == 1)
        finally:
            await consumer.stop()
        return found

    return asyncio.run(read())


def times_by_kafka_python(bootstrap: str, topic: str, count: int) -> dict[Place, tuple[int, bool]]:
    consumer = KafkaConsumer(
        bootstrap_servers=bootstrap,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        consumer_timeout_ms=SECONDS_MAX * 1000,
    )
    consumer.assign([PyTopicPartition(topic, p) for p in range(PARTITIONS)])
    found = {}
    try:
        for message in consumer:
            place = Place(message.partition, message.offset)
            found[place] = (message.timestamp, message.timestamp_type == 1)
            if len(found) == count:
                break
    finally:
        consumer.close()
    return found


@pytest.mark.parametrize("topic", TOPICS)
@pytest.mark.parametrize("read", [times_by_confluent, times_by_aiokafka, times_by_kafka_python])
def test_times_are_those_that_producers_were_told(
    cold: ColdBroker, read: object, topic: str
) -> None:
    expected = {
        place: (stored.timestamp, stored.by_broker)
        for place, stored in cold.topics[topic].records.items()
    }
    assert callable(read)
    assert read(cold.kafka, topic, len(expected)) == expected


@pytest.fixture
def delta_reader(delta_spark: SparkSession) -> Reader:
    return partial(by_delta_spark, delta_spark)


@pytest.mark.parametrize("topic", TOPICS)
def test_delta_spark_reads_the_same_rows_from_the_bucket(
    cold: ColdBroker, delta_reader: Reader, topic: str
) -> None:
    check_rows(cold, delta_reader, topic)


@pytest.mark.parametrize("topic", TOPICS)
@pytest.mark.parametrize("read", READERS)
def test_engines_read_the_same_rows_from_the_bucket(
    cold: ColdBroker, read: Reader, topic: str
) -> None:
    check_rows(cold, read, topic)


def check_rows(cold: ColdBroker, read: Reader, topic: str) -> None:
    """Compare the rows that an engine reads with the records that producers got acknowledged."""
    tables = {}
    for log in cold.bucket.glob(f"topics/*/_delta_log/{0:020d}.json"):
        actions = [json.loads(line) for line in log.read_text().splitlines()]
        [name] = [action["metaData"]["name"] for action in actions if "metaData" in action]
        tables[name] = str(log.parents[1])
    rows = sorted(read(tables[topic]), key=lambda row: (row["partition"], row["offset"]))
    expected = cold.topics[topic].sorted()
    assert [Place(row["partition"], row["offset"]) for row in rows] == [p for p, _ in expected]
    for row, (_, stored) in zip(rows, expected, strict=True):
        record = stored.record
        assert (row["key"], row["value"]) == (record.key, record.value)
        assert row["timestamp"].timestamp() * 1000 == stored.timestamp
        assert row["timestamp_type"] == int(stored.by_broker)
        headers = tuple((h["key"], h["value"]) for h in row["headers"] or ())
        assert headers == record.headers


def test_consumers_go_on_from_segments_into_the_wal(cold: ColdBroker) -> None:
    written = cold.topics["by-producers"]
    before = len(written.records)
    produce(Producer({"bootstrap.servers": cold.kafka}), written, [Record(1, b"k", b"late")] * 5)
    assert len(written.records) == before + 5
    expected = {place: (each.timestamp, each.by_broker) for place, each in written.records.items()}
    assert times_by_confluent(cold.kafka, written.topic, len(expected)) == expected
