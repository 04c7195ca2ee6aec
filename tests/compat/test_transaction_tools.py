"""Apache Kafka's kafka-transactions.sh against a broker with hanging transactions."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.compat.kit.tools import Tools
from tests.unit.broker.hanging_transactions import make_hanging
from tidelog.coordinator.hashing import partition_for
from tidelog.localstack.broker_process import BrokerProcess

TRANSACTIONS = "org.apache.kafka.tools.TransactionsCommand"
TOPIC = "lost"
SECONDS_MAX = 120.0
NOW = ("--max-transaction-timeout", "0")

pytestmark = pytest.mark.compat


@pytest.fixture(scope="module")
def hanging(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[BrokerProcess, list[int]]]:
    """A broker, and the producers whose transactions hang in the two partitions of the topic."""
    folder = tmp_path_factory.mktemp("hanging")
    producer_ids = make_hanging(folder / "bucket", TOPIC, ["lost-0", "lost-1"])
    # The records have timestamps of 1970: on a slow machine retention would delete them before the
    # test's end.
    with BrokerProcess.start(
        f"file://{folder / 'bucket'}", folder / "log", settings={"log.retention.ms": -1}
    ) as process:
        yield process, producer_ids


def rows(output: str) -> list[dict[str, str]]:
    """The table that a command printed."""
    table = [
        [cell.strip() for cell in line.split("\t")] for line in output.splitlines() if "\t" in line
    ]
    head, *body = table
    return [{name: cell for name, cell in zip(head, row, strict=True) if name} for row in body]


def read_committed(bootstrap: str, partition: int) -> list[bytes]:
    """The values that a read_committed consumer gets up to the last stable offset."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "tools",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
        }
    )
    consumer.assign([TopicPartition(TOPIC, partition, 0)])
    values = []
    while (message := consumer.poll(SECONDS_MAX)) is not None and message.error() is None:
        values.append(message.value() or b"")
    assert message is not None, "the end of the partition was not reached"
    consumer.close()
    return values


def test_transactions_are_listed_described_and_ended_where_they_hang(
    kafka_lib: Path, hanging: tuple[BrokerProcess, list[int]]
) -> None:
    broker, (first, second) = hanging
    tools = Tools(kafka_lib, broker.kafka)
    producer = Producer(
        {
            "bootstrap.servers": broker.kafka,
            "transactional.id": "live",
            "transaction.timeout.ms": 900_000,
        }
    )
    producer.init_transactions(SECONDS_MAX)
    producer.begin_transaction()
    producer.produce(TOPIC, b"kept", partition=1)
    producer.flush(SECONDS_MAX)

    filters = ("--duration-filter", "0", "--transactional-id-pattern", "li.e")
    (listed,) = rows(tools.run(TRANSACTIONS, "list", *filters))
    assert (listed["TransactionalId"], listed["TransactionState"]) == ("live", "Ongoing")
    (described,) = rows(tools.run(TRANSACTIONS, "describe", "--transactional-id", "live"))
    assert described["ProducerId"] == listed["ProducerId"]
    assert described["TransactionTimeoutMs"] == "900000"
    assert described["TopicPartitions"] == f"{TOPIC}-1"
    missing = ("describe", "--transactional-id", "none")
    assert "could not be found" in tools.run(TRANSACTIONS, *missing, fails=True)

    place = ("--topic", TOPIC, "--partition", "1")
    described_producers = rows(tools.run(TRANSACTIONS, "describe-producers", *place))
    begins = {
        each["ProducerId"]: each["CurrentTransactionStartOffset"] for each in described_producers
    }
    assert begins == {str(second): "0", listed["ProducerId"]: "1"}

    found = rows(tools.run(TRANSACTIONS, "find-hanging", "--broker-id", "0", *NOW))
    hangs = [(each["Topic"], each["Partition"], each["ProducerId"]) for each in found]
    assert hangs == [(TOPIC, "0", str(first)), (TOPIC, "1", str(second))]
    assert rows(tools.run(TRANSACTIONS, "find-hanging", "--topic", TOPIC)) == []

    place = ("--topic", TOPIC, "--partition")
    tools.run(TRANSACTIONS, "abort", *place, "0", "--start-offset", "0")
    named = ("--producer-id", str(second), "--producer-epoch", "0", "--coordinator-epoch", "0")
    tools.run(TRANSACTIONS, "abort", *place, "1", *named)
    assert rows(tools.run(TRANSACTIONS, "find-hanging", "--topic", TOPIC, *NOW)) == []
    producer.commit_transaction(SECONDS_MAX)
    assert read_committed(broker.kafka, 0) == []
    assert read_committed(broker.kafka, 1) == [b"kept"]
    (listed,) = rows(tools.run(TRANSACTIONS, "list"))
    assert listed["TransactionState"] == "CompleteCommit"


def test_kafkas_formatter_reads_the_transaction_log(kafka_lib: Path, broker: BrokerProcess) -> None:
    """Keys and values are in Kafka's own format. Each step of the protocol has left its record."""
    admin = AdminClient({"bootstrap.servers": broker.kafka})
    admin.create_topics([NewTopic("steps", num_partitions=1)])["steps"].result(SECONDS_MAX)
    producer = Producer({"bootstrap.servers": broker.kafka, "transactional.id": "steps"})
    producer.init_transactions(SECONDS_MAX)
    for end in (producer.commit_transaction, producer.abort_transaction):
        producer.begin_transaction()
        producer.produce("steps", b"x", partition=0)
        producer.flush(SECONDS_MAX)
        end(SECONDS_MAX)
    topic, partition = "__transaction_state", partition_for("steps", 50)
    tools = Tools(kafka_lib, broker.kafka)
    records = tools.formatted(topic, partition, "TransactionLogMessageFormatter")
    values = [each["value"]["data"] for each in records if "steps" in each["key"]["data"].values()]
    committed, aborted = (1, 2, 4), (1, 3, 5)
    assert [each["transactionStatus"] for each in values] == [0, *committed, *aborted]
    enlisted = [{"topic": "steps", "partitionIds": [0]}]
    assert [each["transactionPartitions"] for each in values if each["transactionStatus"] == 2] == [
        enlisted
    ]
    assert not values[-1]["transactionPartitions"]
    assert len({each["producerId"] for each in values}) == 1
