"""kafka-python with its defaults; the same commands as `confluent_program`."""

from __future__ import annotations

from functools import partial
from typing import Any

from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from kafka.structs import OffsetAndMetadata

from tests.moves.lines import (
    ABORTED_EVERY,
    END_SECONDS_MAX,
    RECORDS_MAX,
    SEND_SECONDS,
    end_of_input,
    run,
    say,
)

POLL_MS = 200


def failed(error: BaseException) -> None:
    """A record was refused."""
    say("error", repr(error))


def delivered(number: int, metadata: Any) -> None:
    """A record was acknowledged."""
    say("sent", metadata.partition, number)


def produce(bootstrap: str, topic: str, partitions: str) -> None:
    """Send numbers; kafka-python's producers are idempotent by default."""
    ends = end_of_input()
    producer = KafkaProducer(bootstrap_servers=bootstrap.split(","), enable_idempotence=True)
    say("ready")
    number = 0
    while not ends.wait(SEND_SECONDS):
        future = producer.send(topic, b"%d" % number, partition=number % int(partitions))
        future.add_callback(partial(delivered, number))
        future.add_errback(failed)
        number += 1
    producer.flush(END_SECONDS_MAX)
    producer.close()


def consume(bootstrap: str, group: str, *topics: str) -> None:
    """Read as a group."""
    ends = end_of_input()
    consumer = KafkaConsumer(
        *topics,
        bootstrap_servers=bootstrap.split(","),
        group_id=group,
        auto_offset_reset="earliest",
        isolation_level="read_committed",
    )
    say("ready")
    while not ends.is_set():
        for found in consumer.poll(timeout_ms=POLL_MS).values():
            for m in found:
                say("got", m.topic, m.partition, m.offset, m.value.decode())
    consumer.close()


def transform(bootstrap: str, name: str, source: str, target: str) -> None:
    """Copy records in transactions, some of which are aborted."""
    ends = end_of_input()
    consumer = KafkaConsumer(
        source,
        bootstrap_servers=bootstrap.split(","),
        group_id=name,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
    )
    producer = KafkaProducer(bootstrap_servers=bootstrap.split(","), transactional_id=name)
    producer.init_transactions()
    say("ready")
    turn = 0
    while not ends.is_set():
        polled = consumer.poll(timeout_ms=POLL_MS, max_records=RECORDS_MAX)
        found = [m for each in polled.values() for m in each]
        if not found:
            continue
        turn += 1
        producer.begin_transaction()
        sent = [producer.send(target, m.value, partition=m.partition) for m in found]
        for future in sent:
            future.get(END_SECONDS_MAX)
        following = {
            TopicPartition(source, m.partition): OffsetAndMetadata(m.offset + 1, "", -1)
            for m in found
        }
        producer.send_offsets_to_transaction(following, consumer.group_metadata())
        if turn % ABORTED_EVERY:
            producer.commit_transaction()
            say("committed", len(found))
            continue
        producer.abort_transaction()
        say("aborted", len(found))
        for place, messages in polled.items():
            consumer.seek(place, messages[0].offset)
    producer.close()
    consumer.close()


if __name__ == "__main__":
    run({"produce": produce, "consume": consume, "transform": transform})
