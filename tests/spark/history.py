"""The log of the tests: transactions of every kind, gaps, headers, nulls, segments, a tail."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from typing import Any

from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from pyspark.sql import Row

from tidelog.localstack.broker_process import BrokerProcess

TOPIC = "orders"
PARTITIONS = 2
GROUP = "watchers"


@dataclass(frozen=True)
class History:
    """The store and the topic, and the producer whose transaction is still open."""

    kafka: str
    store: str
    open_producer: Producer


def write_history(broker: BrokerProcess, store: str) -> History:
    admin = AdminClient({"bootstrap.servers": broker.kafka, "log_level": 0})
    admin.create_topics([NewTopic(TOPIC, num_partitions=PARTITIONS)])[TOPIC].result(30)
    plain = Producer({"bootstrap.servers": broker.kafka, "linger.ms": 0, "log_level": 0})
    sent = 0
    for round_ in range(3):
        for partition in range(PARTITIONS):
            for number in range(20):
                sent += 1
                key = None if number % 5 == 0 else b"k%d" % number
                value = None if number % 7 == 0 else b"plain %d %d" % (round_, number)
                headers = [("h", b"x"), ("empty", b""), ("none", None)] if number % 3 == 0 else None
                plain.produce(
                    TOPIC,
                    value,
                    key,
                    partition,
                    timestamp=1_700_000_000_000 + sent,
                    headers=headers,
                )
        plain.flush(30)
        transact(broker.kafka, f"commits {round_}", commit=True)
        transact(broker.kafka, f"aborts {round_}", commit=False)
        if round_ < 2:
            flush(broker)
    open_producer = begin(broker.kafka, "stays open")
    open_producer.produce(TOPIC, b"never seen", partition=0)
    open_producer.flush(30)
    plain.produce(TOPIC, b"behind an open transaction", partition=0)
    plain.produce(TOPIC, b"at the end of the other", partition=1)
    plain.flush(30)
    return History(broker.kafka, store, open_producer)


def begin(kafka: str, transactional_id: str) -> Producer:
    producer = Producer(
        {
            "bootstrap.servers": kafka,
            "transactional.id": transactional_id,
            # The open transaction stays open, however long the tests take.
            "transaction.timeout.ms": 900_000,
            "linger.ms": 0,
            "log_level": 0,
        }
    )
    producer.init_transactions(30)
    producer.begin_transaction()
    return producer


def transact(kafka: str, transactional_id: str, *, commit: bool, topic: str = TOPIC) -> None:
    producer = begin(kafka, transactional_id)
    for partition in range(PARTITIONS):
        for number in range(3):
            producer.produce(topic, f"{transactional_id} {number}".encode(), partition=partition)
    producer.flush(30)
    if commit:
        producer.commit_transaction(30)
    else:
        producer.abort_transaction(30)


def flush(broker: BrokerProcess, topic: str = TOPIC) -> None:
    command = [sys.executable, "-m", "tidelog.cli", "topics", "flush", topic]
    subprocess.run([*command, "--bootstrap", broker.kafka], check=True, capture_output=True)


def consume(kafka: str, topic: str = TOPIC, group: str = "reader") -> list[tuple[Any, ...]]:
    """All records that a read_committed consumer gets, by partition and offset."""
    consumer = Consumer(
        {
            "bootstrap.servers": kafka,
            "group.id": group,
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "enable.auto.commit": False,
        }
    )
    consumer.assign([TopicPartition(topic, number, 0) for number in range(PARTITIONS)])
    found, ended = [], set()
    while len(ended) < PARTITIONS:
        message = consumer.poll(30)
        assert message is not None, "the consumer got nothing for too long"
        error = message.error()
        if error is not None:
            assert error.code() == KafkaError._PARTITION_EOF, error
            ended.add(message.partition())
            continue
        found.append(
            (
                message.partition(),
                message.offset(),
                message.key(),
                message.value(),
                message.timestamp()[1],
                message.headers(),
            )
        )
    consumer.close()
    return sorted(found, key=lambda row: row[:2])


def as_consumed(row: Row) -> tuple[Any, ...]:
    """A row of Spark's in the form of `consume`."""
    headers = row.headers and [
        (each.key, None if each.value is None else bytes(each.value)) for each in row.headers
    ]
    return (
        row.partition,
        row.offset,
        None if row.key is None else bytes(row.key),
        None if row.value is None else bytes(row.value),
        round(row.timestamp.timestamp() * 1000),
        headers,
    )
