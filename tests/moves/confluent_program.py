"""confluent-kafka's producer, consumer and transactions, with the library's defaults.

python -m tests.moves.confluent_program produce BOOTSTRAP TOPIC PARTITIONS
python -m tests.moves.confluent_program consume BOOTSTRAP GROUP TOPIC...
python -m tests.moves.confluent_program transform BOOTSTRAP NAME SOURCE TARGET
"""

from __future__ import annotations

from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition

from tests.moves.lines import (
    ABORTED_EVERY,
    END_SECONDS_MAX,
    RECORDS_MAX,
    SEND_SECONDS,
    end_of_input,
    run,
    say,
)


def informed(error: KafkaError) -> None:
    """librdkafka reports passing errors here, such as lost connections, beside its fatal ones."""
    say("error" if error.fatal() else "note", error)


def produce(bootstrap: str, topic: str, partitions: str) -> None:
    """Send numbers, idempotently."""
    ends = end_of_input()

    def delivered(error: KafkaError | None, message: Message) -> None:
        if error is None:
            say("sent", message.partition(), (message.value() or b"").decode())
        else:
            say("error", error)

    producer = Producer(
        {"bootstrap.servers": bootstrap, "enable.idempotence": True, "error_cb": informed}
    )
    say("ready")
    number = 0
    while not ends.wait(SEND_SECONDS):
        partition = number % int(partitions)
        producer.produce(topic, b"%d" % number, partition=partition, on_delivery=delivered)
        producer.poll(0)
        number += 1
    if left := producer.flush(END_SECONDS_MAX):
        say("error", left, "records are without an answer")


def group_consumer(bootstrap: str, group: str, **more: object) -> Consumer:
    """A member of a group."""
    return Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "error_cb": informed,
            **more,
        }
    )


def received(found: list[Message]) -> list[Message]:
    """The records of a poll. Errors are reported."""
    for message in found:
        if fault := message.error():
            say("error", fault)
    return [message for message in found if not message.error()]


def consume(bootstrap: str, group: str, *topics: str) -> None:
    """Read as a group; librdkafka's default is read_committed."""
    ends = end_of_input()
    consumer = group_consumer(bootstrap, group)
    consumer.subscribe(list(topics))
    say("ready")
    while not ends.is_set():
        for m in received(consumer.consume(RECORDS_MAX, timeout=0.2)):
            say("got", m.topic(), m.partition(), m.offset(), (m.value() or b"").decode())
    consumer.close()


def transform(bootstrap: str, name: str, source: str, target: str) -> None:
    """Copy records in transactions, some of which are aborted."""
    ends = end_of_input()
    settings = {"bootstrap.servers": bootstrap, "transactional.id": name, "error_cb": informed}
    producer = Producer(settings)
    producer.init_transactions()
    consumer = group_consumer(bootstrap, name, **{"enable.auto.commit": False})
    consumer.subscribe([source])
    say("ready")
    turn = 0
    while not ends.is_set():
        found = received(consumer.consume(RECORDS_MAX, timeout=0.2))
        if not found:
            continue
        turn += 1
        first: dict[int, int] = {}
        following: dict[int, int] = {}
        producer.begin_transaction()
        for m in found:
            partition, offset = m.partition() or 0, m.offset() or 0
            producer.produce(target, m.value(), partition=partition)
            first.setdefault(partition, offset)
            following[partition] = offset + 1
        producer.send_offsets_to_transaction(
            [TopicPartition(source, *place) for place in following.items()],
            consumer.consumer_group_metadata(),
        )
        if turn % ABORTED_EVERY:
            producer.commit_transaction()
            say("committed", len(found))
            continue
        producer.abort_transaction()
        say("aborted", len(found))
        for place in first.items():
            consumer.seek(TopicPartition(source, *place))
    consumer.close()


if __name__ == "__main__":
    run({"produce": produce, "consume": consume, "transform": transform})
