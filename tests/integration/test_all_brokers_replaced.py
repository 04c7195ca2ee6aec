"""All brokers of a cluster are killed at once. Brokers with other ids and addresses continue the
records, groups and transactions of its bucket. A cluster on another bucket is not affected."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, Message, Producer
from confluent_kafka.admin import AdminClient, ClusterMetadata, NewTopic

from tidelog.localstack.broker_process import BrokerProcess

pytestmark = pytest.mark.integration

TOPIC, GROUP = "flights", "readers"
PARTITIONS = 6
RECORDS = 600
TIMEOUT_MS = 10_000
"""The timeout of a transaction whose producer does not come back."""
SECONDS_MAX = 90.0
SETTINGS = {
    "group.initial.rebalance.delay.ms": 0,
    "offsets.topic.num.partitions": 6,
    "transaction.state.log.num.partitions": 6,
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": 500,
}


def start(store: str, folder: Path, ids: Iterable[int], until: ExitStack) -> list[BrokerProcess]:
    return [
        until.enter_context(
            BrokerProcess.start(
                store,
                folder / f"broker-{number}.log",
                broker_id=number,
                settings=SETTINGS,
                ready_seconds_max=120,
            )
        )
        for number in ids
    ]


def client_of(brokers: Sequence[BrokerProcess], **settings: object) -> dict[str, object]:
    addresses = ",".join(broker.kafka for broker in brokers)
    return {"bootstrap.servers": addresses, "log_level": 0, **settings}


def create_topic(brokers: Sequence[BrokerProcess], name: str) -> None:
    admin = AdminClient(client_of(brokers))
    admin.create_topics([NewTopic(name, PARTITIONS)])[name].result(30)


def send(producer: Producer, words: Sequence[str]) -> None:
    """Produce each word to the next partition, and wait for all acknowledgements."""
    errors: list[KafkaError | None] = []

    def delivered(error: KafkaError | None, _: Message) -> None:
        errors.append(error)

    for number, word in enumerate(words):
        producer.produce(TOPIC, word, partition=number % PARTITIONS, on_delivery=delivered)
    assert producer.flush(SECONDS_MAX) == 0
    assert errors == [None] * len(words)


def begin(
    brokers: Sequence[BrokerProcess], name: str, words: Sequence[str], **more: object
) -> Producer:
    """A producer with an open transaction that holds these records."""
    producer = Producer(client_of(brokers, **{"transactional.id": name}, **more))
    producer.init_transactions(SECONDS_MAX)
    producer.begin_transaction()
    send(producer, words)
    return producer


def metadata_of(living: Sequence[BrokerProcess]) -> ClusterMetadata:
    """The cluster's metadata, when the asked broker knows all brokers."""
    admin = AdminClient(client_of(living))
    deadline = time.monotonic() + SECONDS_MAX
    while True:
        found = admin.list_topics(timeout=30)
        if len(found.brokers) == len(living) or time.monotonic() > deadline:
            return found


def member(brokers: Sequence[BrokerProcess]) -> Consumer:
    consumer = Consumer(
        client_of(
            brokers,
            **{
                "group.id": GROUP,
                "session.timeout.ms": 6000,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
            },
        )
    )
    consumer.subscribe([TOPIC])
    return consumer


def read(consumer: Consumer, count: int) -> dict[int, list[str]]:
    """The values of `count` records, by partition, or fewer if some do not arrive in time."""
    found: dict[int, list[str]] = {}
    deadline = time.monotonic() + SECONDS_MAX
    while sum(map(len, found.values())) < count and time.monotonic() < deadline:
        message = consumer.poll(0.5)
        if message is not None:
            assert message.error() is None, message.error()
            values = found.setdefault(message.partition() or 0, [])
            values.append((message.value() or b"").decode())
    return found


def numbers(first: int, end: int) -> list[str]:
    return [str(number) for number in range(first, end)]


def in_partitions(words: Sequence[str]) -> dict[int, list[str]]:
    return {number: list(words[number::PARTITIONS]) for number in range(PARTITIONS)}


def test_other_brokers_go_on_with_the_bucket_of_brokers_that_all_died(tmp_path: Path) -> None:
    store, other_store = (f"file://{tmp_path / name}" for name in ("bucket", "other"))
    (tmp_path / "beside").mkdir()
    with ExitStack() as until:
        beside = start(other_store, tmp_path / "beside", [0], until)
        create_topic(beside, "own")
        dying = start(store, tmp_path, [0, 1, 2], until)
        create_topic(dying, TOPIC)
        send(Producer(client_of(dying, **{"enable.idempotence": True})), numbers(0, RECORDS))
        begin(dying, "done", numbers(RECORDS, RECORDS + 60)).commit_transaction(SECONDS_MAX)
        # The clients live on, and find none of the brokers that they know.
        reader = member(dying)
        before = read(reader, RECORDS // 2)
        reader.commit(asynchronous=False)
        left = begin(dying, "left", ["left"] * 6, **{"transaction.timeout.ms": TIMEOUT_MS})
        returning = begin(dying, "returning", ["returning"] * 6)
        for broker in dying:
            broker.process.kill()
        for broker in dying:
            broker.kill()

        living = start(store, tmp_path, [10, 11, 12], until)
        assert {broker.cluster for broker in living} == {dying[0].cluster}
        metadata = metadata_of(living)
        assert sorted(metadata.brokers) == [10, 11, 12]
        assert {f"{each.host}:{each.port}" for each in metadata.brokers.values()} == {
            broker.kafka for broker in living
        }
        # One transaction ends when its producer returns, and the other by its timeout.
        successor = begin(living, "returning", numbers(RECORDS + 60, RECORDS + 120))
        successor.commit_transaction(SECONDS_MAX)

        # An open transaction would hide the records behind it.
        later = member(living)
        after = read(later, RECORDS + 120 - RECORDS // 2)
        whole = {number: before.get(number, []) + after[number] for number in range(PARTITIONS)}
        assert whole == in_partitions(numbers(0, RECORDS + 120))
        assert later.poll(1.0) is None
        later.close()
        assert_sees_nothing(beside, living)
        del reader, left, returning
        for broker in (*living, *beside):
            assert broker.stop() == 0
    for each in (store, other_store):
        command = [sys.executable, "-m", "tidelog.cli", "fsck", "--store", each]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
        assert done.returncode == 0, done.stdout + done.stderr


def assert_sees_nothing(beside: Sequence[BrokerProcess], living: Sequence[BrokerProcess]) -> None:
    """The cluster on the other bucket has its own id, broker and topic, and no group."""
    assert beside[0].cluster != living[0].cluster
    admin = AdminClient(client_of(beside))
    metadata = admin.list_topics(timeout=30)
    assert metadata.cluster_id == beside[0].cluster
    assert list(metadata.brokers) == [0]
    assert list(metadata.topics) == ["own"]
    assert groups_of(beside) == []
    assert groups_of(living) == [GROUP]


def groups_of(brokers: Sequence[BrokerProcess]) -> list[str]:
    admin = AdminClient(client_of(brokers))
    # librdkafka fails requests to a bootstrap address when it learns the brokers.
    admin.list_topics(timeout=30)
    found = admin.list_consumer_groups().result(30)
    assert found.errors == []
    return [each.group_id for each in found.valid]
