"""An administrator against a broker."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from tidelog import aio
from tidelog.client.errors import RequestFailed, RequestOutcome, check, check_read
from tidelog.client.pool import Client
from tidelog.errors import InvalidConfiguration
from tidelog.protocol.error_codes import ErrorCode
from tidelog.protocol.schemas.transaction_listing import ListedTransaction
from tidelog.sdk.access_rules import AccessRule
from tidelog.sdk.admin import Admin
from tidelog.sdk.errors import KafkaRequestError, RetriableError
from tidelog.sdk.producer import Producer
from tidelog.testing.broker import Broker


def test_topics_and_their_settings(shared: Broker) -> None:
    admin = Admin(shared.bootstrap)
    admin.create_topic("planes", 2, {"retention_ms": 1000, "cleanup.policy": "compact"})
    assert admin.topics()["planes"] == 2
    admin.add_partitions("planes", 3)
    assert admin.topics()["planes"] == 3
    assert admin.configs("planes")["cleanup.policy"] == "compact"
    admin.set_configs("planes", {"retention.ms": None, "max_message_bytes": 5000})
    configs = admin.configs("planes")
    assert (configs["retention.ms"], configs["max.message.bytes"]) == ("604800000", "5000")
    with pytest.raises(KafkaRequestError) as refusal:
        admin.create_topic("planes")
    assert refusal.value.name == "TOPIC_ALREADY_EXISTS"
    admin.delete_topic("planes")
    assert "planes" not in admin.topics()


def test_groups_and_their_offsets(shared: Broker) -> None:
    admin, topic, group = Admin(shared.bootstrap), shared.topic(), shared.group()
    admin.set_group_offsets(group, {(topic, 0): 7})
    assert group in admin.groups()
    assert admin.group_offsets(group) == {(topic, 0): 7}
    assert (admin.group(group).state, admin.group(group).members) == ("EMPTY", ())
    admin.delete_group(group)
    assert group not in admin.groups()


def test_an_open_transaction_is_described(shared: Broker) -> None:
    admin, topic = Admin(shared.bootstrap), shared.topic()
    producer = Producer(shared.bootstrap, transactional_id="described")
    with producer, producer.transaction():
        producer.send(topic, "")
        producer.flush(30)
        found = admin.transaction("described")
    assert (found.state, found.partitions) == ("Ongoing", ((topic, 0),))
    assert found.timeout_ms == 60_000


def test_a_coordinator_that_loads_is_asked_again(
    shared: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = iter([ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.NONE])

    async def ask(_: Client) -> list[ListedTransaction]:
        check_read("transactions of broker 0", next(answers))
        return []

    monkeypatch.setattr("tidelog.sdk.admin.list_transactions", ask)
    assert Admin(shared.bootstrap).transactions() == {}
    assert next(answers, None) is None


def test_a_broker_that_is_away_is_asked_again(
    shared: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    away = RequestFailed("connecting", "b:9092", RequestOutcome.NOT_APPLIED, "it is away")
    failures = [away, away]

    async def ask(_: Client) -> list[ListedTransaction]:
        if failures:
            raise failures.pop()
        return []

    monkeypatch.setattr("tidelog.sdk.admin.list_transactions", ask)
    assert Admin(shared.bootstrap).transactions() == {}
    failures = [away, away]
    with pytest.raises(RetriableError, match="it is away"):
        Admin(shared.bootstrap, max_block_ms=0).transactions()


def test_a_broker_that_does_not_answer_is_not_waited_for_above_the_limit(
    shared: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def ask(_: Client) -> list[ListedTransaction]:
        await asyncio.Event().wait()
        return []

    monkeypatch.setattr("tidelog.sdk.admin.list_transactions", ask)
    with pytest.raises(RetriableError, match=r"no answer within max\.block\.ms=1;"):
        Admin(shared.bootstrap, max_block_ms=1).transactions()


def test_a_coordinator_that_moves_is_asked_again(
    shared: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = iter([ErrorCode.NOT_COORDINATOR, ErrorCode.NONE, ErrorCode.GROUP_ID_NOT_FOUND])

    async def commit(*_: object) -> None:
        check("offset of group g in t-0", next(answers))

    monkeypatch.setattr("tidelog.sdk.admin.commit_offsets", commit)
    admin = Admin(shared.bootstrap)
    admin.set_group_offsets("g", {("t", 0): 1})
    with pytest.raises(KafkaRequestError, match="offset of group g in t-0") as refusal:
        admin.set_group_offsets("g", {("t", 0): 1})
    assert refusal.value.name == "GROUP_ID_NOT_FOUND"


def test_quotas_are_set_listed_and_removed(shared: Broker) -> None:
    admin = Admin(shared.bootstrap)
    admin.set_quotas({"producer_byte_rate": 1000, "request_percentage": 12.5}, user="alice")
    admin.set_quotas({"consumer_byte_rate": 2000}, user="alice", client_id="<default>")
    mine = {"producer_byte_rate": 1000, "request_percentage": 12.5}
    assert admin.quotas(user="alice") == {
        ("alice", None, None): mine,
        ("alice", "<default>", None): {"consumer_byte_rate": 2000},
    }
    assert admin.quotas(client_id="<default>").keys() == {("alice", "<default>", None)}
    admin.set_quotas({"producer_byte_rate": None, "request_percentage": None}, user="alice")
    assert [*asyncio.run(aio.Admin(shared.bootstrap).quotas())] == [("alice", "<default>", None)]
    asyncio.run(
        aio.Admin(shared.bootstrap).set_quotas(
            {"consumer_byte_rate": None}, user="alice", client_id="<default>"
        )
    )
    assert admin.quotas() == {}
    with pytest.raises(KafkaRequestError, match="Invalid empty client quota entity") as refusal:
        admin.set_quotas({"producer_byte_rate": 1})
    assert refusal.value.name == "INVALID_REQUEST"


def test_users_are_added_listed_and_removed(shared: Broker) -> None:
    admin = Admin(shared.bootstrap)
    admin.set_user("alice", "wonderland-1865")
    admin.set_user("alice", "wonderland-1865", "SCRAM-SHA-256", iterations=8192)
    asyncio.run(aio.Admin(shared.bootstrap).set_user("bob", "builder-1999"))
    mechanisms = {"SCRAM-SHA-512": 4096, "SCRAM-SHA-256": 8192}
    assert admin.users() == {"alice": mechanisms, "bob": {"SCRAM-SHA-512": 4096}}
    admin.delete_user("alice", "SCRAM-SHA-256")
    asyncio.run(aio.Admin(shared.bootstrap).delete_user("bob"))
    assert asyncio.run(aio.Admin(shared.bootstrap).users()) == {"alice": {"SCRAM-SHA-512": 4096}}
    with pytest.raises(KafkaRequestError) as refusal:
        admin.delete_user("bob")
    assert refusal.value.name == "RESOURCE_NOT_FOUND"
    with pytest.raises(InvalidConfiguration, match="none of SCRAM-SHA-256, SCRAM-SHA-512"):
        admin.set_user("bob", "builder-1999", "PLAIN")


def test_rules_are_added_listed_and_deleted() -> None:
    read = AccessRule("User:alice", "READ", "orders")
    groups = AccessRule("User:alice", "ALL", "billing-", "GROUP", "PREFIXED")
    never = AccessRule("User:bob", "WRITE", "*", host="10.0.0.1", permission="DENY")
    authorizer = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
    with Broker(authorizer_class_name=authorizer, super_users="User:ANONYMOUS") as broker:
        admin, other = Admin(broker.bootstrap), aio.Admin(broker.bootstrap)
        admin.add_rules([read, groups])
        asyncio.run(other.add_rules([read, never]))
        assert set(admin.rules()) == {read, groups, never}
        assert admin.rules(name="orders") == [read]
        admin.delete_rules(admin.rules(principal="User:alice"))
        assert asyncio.run(other.rules()) == [never]
        asyncio.run(other.delete_rules([read, never]))
        assert admin.rules() == []
        with pytest.raises(InvalidConfiguration, match=r"'read' is none of ALL, READ"):
            admin.add_rules([AccessRule("User:alice", "read", "orders")])


def test_without_a_broker_a_call_ends_at_its_limit(broker: Broker) -> None:
    bootstrap = broker.bootstrap
    broker.kill()
    with pytest.raises(RetriableError, match="topics"):
        Admin(bootstrap, max_block_ms=0).topics()
    with pytest.raises(InvalidConfiguration, match=r"did you mean client\.id"):
        Admin(bootstrap, client_ids="x")


@pytest.mark.parametrize(
    "ask",
    [
        lambda admin: admin.create_topic("t", -5),
        lambda admin: admin.create_topic("t\udc00"),
        lambda admin: admin.add_partitions("t", 0),
        lambda admin: admin.configs(""),
        lambda admin: admin.set_configs("t", {}),
        lambda admin: admin.group_offsets(""),
        lambda admin: admin.set_user("", "password"),
        lambda admin: admin.set_user("alice", "password", iterations=0),
    ],
)
def test_a_request_that_kafka_does_not_have_is_refused(
    shared: Broker, ask: Callable[[Admin], object]
) -> None:
    with pytest.raises(InvalidConfiguration, match=r"(topic|group|user) .*: "):
        ask(Admin(shared.bootstrap))
