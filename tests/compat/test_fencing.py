"""Fenced producers of foreign libraries: a second instance of the transactional id takes over while
the first is stopped. When the first wakes up, none of its requests has an effect."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from kafka import KafkaConsumer, KafkaProducer
from kafka import TopicPartition as PyTopicPartition
from kafka.errors import KafkaError
from kafka.structs import OffsetAndMetadata

from tests.compat.kit.broker_view import group_offsets, partition_view, with_client
from tests.compat.kit.clients import PROGRAMS
from tests.compat.kit.zombie import GROUP
from tidelog.client.operations import LATEST, IsolationLevel, list_offsets
from tidelog.client.pool import Client, CoordinatorKind
from tidelog.client.transactions.producer import TransactionalProducer
from tidelog.client.transactions.settings import TransactionalProducerSettings, TransactionVersion
from tidelog.clock import SystemClock
from tidelog.entropy import SeededEntropy
from tidelog.localstack.broker_process import BrokerProcess
from tidelog.localstack.kafka import java_command
from tidelog.protocol.error_codes import ErrorCode
from tidelog.protocol.schemas.transactions import EndTxnRequest
from tidelog.records.records import NewRecord

pytestmark = pytest.mark.compat

ACTIONS = ("produce", "commit", "offsets")
SECONDS_MAX = 120.0
COORDINATORS = {
    "confluent-kafka": "_FENCED",
    "kafka-python": "ProducerFencedError",
    "aiokafka": "ProducerFenced",
    "java": "ProducerFencedException",
    "java-first-version": "ProducerFencedException",
}
"""Each library's error for PRODUCER_FENCED, with which the coordinator refuses a commit or
offsets."""
LEADERS = COORDINATORS | {
    "kafka-python": "InvalidProducerEpochError",
    "java": "InvalidProducerEpochException",
    "java-first-version": "InvalidProducerEpochException",
}
"""Each library's error for INVALID_PRODUCER_EPOCH, with which a leader refuses records."""
JARS = {"java": "kafka_lib", "java-first-version": "first_version_lib"}


def create_topic(bootstrap: str, name: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(name, num_partitions=1)])[name].result(30)


def take_over(bootstrap: str, transactional_id: str, topic: str, value: bytes) -> None:
    """A second instance of the id: begins, writes and commits."""
    heir = Producer({"bootstrap.servers": bootstrap, "transactional.id": transactional_id})
    heir.init_transactions(SECONDS_MAX)
    heir.begin_transaction()
    heir.produce(topic, value, partition=0)
    heir.commit_transaction(SECONDS_MAX)


@pytest.mark.parametrize("library", COORDINATORS)
def test_every_action_of_a_zombie_that_wakes_up_is_refused(
    broker: BrokerProcess, library: str, request: pytest.FixtureRequest
) -> None:
    topic = f"fenced-{library}"
    create_topic(broker.kafka, topic)
    command = [sys.executable, "-m", "tests.compat.kit.zombie", library]
    if library in JARS:
        lib: Path = request.getfixturevalue(JARS[library])
        command = java_command(lib, str(PROGRAMS / "Zombie.java"), [])
    zombies = {
        action: subprocess.Popen(
            [*command, broker.kafka, action, topic],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for action in ACTIONS
    }
    try:
        for action, zombie in zombies.items():
            assert zombie.stdout is not None
            assert zombie.stdout.readline() == "open\n"
            zombie.send_signal(signal.SIGSTOP)
            take_over(broker.kafka, f"{topic}.{action}", topic, action.encode())
            zombie.send_signal(signal.SIGCONT)
        for action, zombie in zombies.items():
            said, _ = zombie.communicate("\n", timeout=SECONDS_MAX)
            refusals = LEADERS if action == "produce" else COORDINATORS
            assert said == f"{refusals[library]}\n", action
    finally:
        for zombie in zombies.values():
            zombie.kill()
            zombie.communicate()
    view = partition_view(broker.kafka, topic, 0)
    assert view.values == [action.encode() for action in ACTIONS]
    everything = partition_view(broker.kafka, topic, 0, IsolationLevel.READ_UNCOMMITTED)
    assert b"late" not in everything.values
    assert everything.end == view.end
    assert not {place for place in group_offsets(broker.kafka, GROUP) if place.topic == topic}


def left_behind_confluent(bootstrap: str, topic: str) -> str:
    """A producer that commits for a member that has left its group. Returns the error."""
    settings = {"bootstrap.servers": bootstrap, "group.id": topic, "enable.auto.commit": False}
    consumer = Consumer(settings)
    consumer.subscribe([topic])
    while not consumer.assignment():
        consumer.poll(0.1)
    metadata = consumer.consumer_group_metadata()
    consumer.close()
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": topic})
    producer.init_transactions(SECONDS_MAX)
    producer.begin_transaction()
    producer.produce(topic, b"late", partition=0)
    with pytest.raises(KafkaException) as refused:
        producer.send_offsets_to_transaction([TopicPartition(topic, 0, 7)], metadata, SECONDS_MAX)
    error = refused.value.args[0]
    assert error.txn_requires_abort()
    producer.abort_transaction(SECONDS_MAX)
    return str(error.name())


def left_behind_kafka_python(bootstrap: str, topic: str) -> str:
    """The same with kafka-python."""
    consumer = KafkaConsumer(
        topic, bootstrap_servers=bootstrap, group_id=topic, enable_auto_commit=False
    )
    while not consumer.assignment():
        consumer.poll(timeout_ms=100)
    metadata = consumer.group_metadata()
    consumer.close()
    producer = KafkaProducer(bootstrap_servers=bootstrap, transactional_id=topic)
    producer.init_transactions()
    producer.begin_transaction()
    producer.send(topic, b"late", partition=0).get(SECONDS_MAX)
    with pytest.raises(KafkaError) as refused:
        producer.send_offsets_to_transaction(
            {PyTopicPartition(topic, 0): OffsetAndMetadata(7, "", -1)}, metadata
        )
    producer.abort_transaction()
    producer.close()
    return type(refused.value).__name__


@pytest.mark.parametrize(
    ("left_behind", "error"),
    [(left_behind_confluent, "UNKNOWN_MEMBER_ID"), (left_behind_kafka_python, "CommitFailedError")],
)
def test_offsets_of_a_member_that_has_left_its_group_are_refused(
    broker: BrokerProcess, left_behind: Callable[[str, str], str], error: str
) -> None:
    """KIP-447: another member may have read on by now, so the transaction can only be aborted."""
    topic = left_behind.__name__
    create_topic(broker.kafka, topic)
    assert left_behind(broker.kafka, topic) == error
    assert partition_view(broker.kafka, topic, 0).values == []
    assert group_offsets(broker.kafka, topic) == {}


def test_a_delayed_end_of_a_transaction_does_not_end_the_next_transaction(
    broker: BrokerProcess,
) -> None:
    """Under the second version each transaction has an epoch of its own (KAFKA-17754)."""
    topic = "delayed-end"
    create_topic(broker.kafka, topic)

    async def story(client: Client) -> None:
        settings = TransactionalProducerSettings(version=TransactionVersion.V2)
        producer = TransactionalProducer(client, SystemClock(), SeededEntropy(0), topic, settings)
        await producer.init_transactions()
        producer.begin()
        await producer.send(topic, 0, [NewRecord(b"one")])
        delayed = [
            EndTxnRequest(
                transactional_id=topic,
                producer_id=producer.identity.producer_id,
                producer_epoch=producer.identity.producer_epoch,
                committed=committed,
            )
            for committed in (True, False)
        ]
        await producer.commit()
        producer.begin()
        await producer.send(topic, 0, [NewRecord(b"two")])
        begun = await list_offsets(client, topic, 0, LATEST, IsolationLevel.READ_COMMITTED)
        for each in delayed:
            response = await client.request_to_coordinator(CoordinatorKind.TRANSACTION, topic, each)
            assert response.error_code == ErrorCode.PRODUCER_FENCED
        stable = await list_offsets(client, topic, 0, LATEST, IsolationLevel.READ_COMMITTED)
        assert stable.offset == begun.offset == 2
        await producer.commit()

    with_client(broker.kafka, story)
    assert partition_view(broker.kafka, topic, 0).values == [b"one", b"two"]
