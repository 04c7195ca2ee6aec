"""A producer that opens a transaction, waits, and then tries to go on. It is a separate process,
which a test may stop and wake up meanwhile.

    python -m tests.compat.kit.zombie LIBRARY BOOTSTRAP ACTION TOPIC

`ACTION`, which is part of its transactional id: produce, commit or offsets. It prints `open`, reads
a line, acts, and prints the name of the error that its library raises, or `done`.
"""

from __future__ import annotations

import asyncio
import sys

from aiokafka import AIOKafkaProducer
from aiokafka import TopicPartition as AioTopicPartition
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from kafka import KafkaProducer
from kafka import TopicPartition as PyTopicPartition
from kafka.structs import OffsetAndMetadata

SECONDS_MAX = 120.0
GROUP = "zombies"


def wait() -> None:
    """Report that the transaction is open, and wait for a line on standard input."""
    print("open", flush=True)
    sys.stdin.readline()


def confluent(bootstrap: str, action: str, topic: str) -> None:
    """The zombie on librdkafka."""
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "transactional.id": f"{topic}.{action}",
            "linger.ms": 0,
        }
    )
    producer.init_transactions(SECONDS_MAX)
    producer.begin_transaction()
    producer.produce(topic, b"zombie", partition=0)
    producer.flush(SECONDS_MAX)
    wait()
    if action == "produce":
        producer.produce(topic, b"late", partition=0)
        producer.flush(SECONDS_MAX)
    elif action == "offsets":
        # The commit names no member: its metadata are those of a consumer outside any group.
        consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": GROUP})
        metadata = consumer.consumer_group_metadata()
        producer.send_offsets_to_transaction([TopicPartition(topic, 0, 1)], metadata, SECONDS_MAX)
    producer.commit_transaction(SECONDS_MAX)


def kafka_python(bootstrap: str, action: str, topic: str) -> None:
    """The zombie on kafka-python."""
    producer = KafkaProducer(bootstrap_servers=bootstrap, transactional_id=f"{topic}.{action}")
    producer.init_transactions()
    producer.begin_transaction()
    producer.send(topic, b"zombie", partition=0).get(SECONDS_MAX)
    wait()
    if action == "produce":
        producer.send(topic, b"late", partition=0).get(SECONDS_MAX)
    elif action == "offsets":
        offsets = {PyTopicPartition(topic, 0): OffsetAndMetadata(1, "", -1)}
        producer.send_offsets_to_transaction(offsets, GROUP)
    producer.commit_transaction()


async def aiokafka(bootstrap: str, action: str, topic: str) -> None:
    """The zombie on aiokafka."""
    producer = AIOKafkaProducer(bootstrap_servers=bootstrap, transactional_id=f"{topic}.{action}")
    await producer.start()
    await producer.begin_transaction()
    await producer.send_and_wait(topic, b"zombie", partition=0)
    wait()
    if action == "produce":
        await producer.send_and_wait(topic, b"late", partition=0)
    elif action == "offsets":
        await producer.send_offsets_to_transaction({AioTopicPartition(topic, 0): 1}, GROUP)
    await producer.commit_transaction()


def main(library: str, *arguments: str) -> None:
    """Run the action. Returns `done` or the name of the error."""
    try:
        match library:
            case "confluent-kafka":
                confluent(*arguments)
            case "kafka-python":
                kafka_python(*arguments)
            case "aiokafka":
                asyncio.run(aiokafka(*arguments))
            case _:
                raise SystemExit(f"no such library: {library}")
    except KafkaException as error:
        print(error.args[0].name(), flush=True)
    except Exception as error:  # noqa: BLE001  # The result is the name of any error.
        print(type(error).__name__, flush=True)
    else:
        print("done", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
