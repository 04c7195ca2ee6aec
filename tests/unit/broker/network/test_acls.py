"""A broker with an authorizer, as confluent-kafka's clients see it.

The clients do not authenticate, so all of them are `User:ANONYMOUS`. Here every client may use a
resource without rules, so a client can make rules for itself.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)
from confluent_kafka.cimpl import NewTopic

from tidelog.localstack.broker_process import BrokerProcess

WAIT_SECONDS = 30
ANONYMOUS = "User:ANONYMOUS"


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    folder = tmp_path_factory.mktemp("acls")
    settings = {"authorizer.class.name": "acl", "allow.everyone.if.no.acl.found": "true"}
    store = f"file://{folder / 'bucket'}"
    with BrokerProcess.start(store, folder / "log", settings=settings) as process:
        yield process


def binding(operation: AclOperation, name: str, permission: AclPermissionType) -> AclBinding:
    return AclBinding(
        ResourceType.TOPIC,
        name,
        ResourcePatternType.LITERAL,
        ANONYMOUS,
        "*",
        operation,
        permission,
    )


def everything() -> AclBindingFilter:
    return AclBindingFilter(
        ResourceType.ANY,
        None,
        ResourcePatternType.ANY,
        None,
        None,
        AclOperation.ANY,
        AclPermissionType.ANY,
    )


def produced(bootstrap: str, topic: str) -> KafkaError | None:
    """The error of one record."""
    errors: list[KafkaError | None] = []

    def delivered(error: KafkaError | None, _message: Message) -> None:
        errors.append(error)

    producer = Producer({"bootstrap.servers": bootstrap, "log_level": 0})
    producer.produce(topic, b"x", on_delivery=delivered)
    assert producer.flush(WAIT_SECONDS) == 0
    return errors[0]


def consumed(bootstrap: str, topic: str) -> bytes | int | None:
    """The first record's value, or the error's code."""
    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "g", "enable.auto.commit": False}
    )
    consumer.assign([TopicPartition(topic, 0, 0)])
    try:
        message = consumer.poll(WAIT_SECONDS)
        assert message is not None
        error = message.error()
        return error.code() if error is not None else message.value()
    finally:
        consumer.close()


def test_a_client_makes_rules_that_bind_itself(broker: BrokerProcess) -> None:
    admin = AdminClient({"bootstrap.servers": broker.kafka, "log_level": 0})
    admin.create_topics([NewTopic("orders", 1)])["orders"].result(WAIT_SECONDS)
    assert produced(broker.kafka, "orders") is None
    assert consumed(broker.kafka, "orders") == b"x"
    write = binding(AclOperation.WRITE, "orders", AclPermissionType.ALLOW)
    for each in admin.create_acls([write]).values():
        each.result(WAIT_SECONDS)
    # Without rules every client may use the topic. This rule ends that, and allows no reads.
    assert produced(broker.kafka, "orders") is None
    assert consumed(broker.kafka, "orders") == KafkaError.TOPIC_AUTHORIZATION_FAILED
    assert admin.describe_acls(everything()).result(WAIT_SECONDS) == [write]
    deny = binding(AclOperation.WRITE, "orders", AclPermissionType.DENY)
    read = binding(AclOperation.READ, "orders", AclPermissionType.ALLOW)
    for each in admin.create_acls([deny, read]).values():
        each.result(WAIT_SECONDS)
    refused = produced(broker.kafka, "orders")
    assert refused is not None
    assert refused.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED
    assert consumed(broker.kafka, "orders") == b"x"
    (deleted,) = admin.delete_acls([everything()]).values()
    assert len(deleted.result(WAIT_SECONDS)) == 3
    assert produced(broker.kafka, "orders") is None
    refusals = [
        line for line in broker.log_path.read_text().splitlines() if "tidelog.audit" in line
    ]
    found = [json.loads(line[line.index("{") :]) for line in refusals]
    assert {(each["decision"], each["api"], each["operation"]) for each in found} >= {
        ("denied", "Fetch", "Read"),
        ("denied", "Produce", "Write"),
        ("allowed", "CreateAcls", "Alter"),
        ("allowed", "DeleteAcls", "Alter"),
        ("allowed", "CreateTopics", "Create"),
    }
    assert {each["principal"] for each in found} == {ANONYMOUS}


def test_without_an_authorizer_no_rules_are_made(tmp_path: Path) -> None:
    rule = binding(AclOperation.READ, "orders", AclPermissionType.ALLOW)
    with BrokerProcess.start(f"file://{tmp_path / 'bucket'}", tmp_path / "log") as process:
        admin = AdminClient({"bootstrap.servers": process.kafka, "log_level": 0})
        (creation,) = admin.create_acls([rule]).values()
        with pytest.raises(KafkaException) as caught:
            creation.result(WAIT_SECONDS)
        assert caught.value.args[0].code() == KafkaError.SECURITY_DISABLED
