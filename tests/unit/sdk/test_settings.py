"""Kafka's names, the Java client's defaults, and refusals that name the rule."""

from __future__ import annotations

from typing import Any

import confluent_kafka
import pytest

from tidelog.errors import InvalidConfiguration
from tidelog.sdk.connecting import made
from tidelog.sdk.settings import (
    admin_configuration,
    consumer_configuration,
    producer_configuration,
)

BOOTSTRAP = "127.0.0.1:9"


def producer(**given: Any) -> dict[str, Any]:
    return producer_configuration(BOOTSTRAP, given).passed


def consumer(group: str | None = "g", **given: Any) -> dict[str, Any]:
    return consumer_configuration(BOOTSTRAP, group, given).passed


def test_the_java_clients_defaults_are_passed_on() -> None:
    passed = producer()
    assert passed["enable.idempotence"] is True
    assert passed["acks"] == "all"
    assert passed["partitioner"] == "murmur2_random"
    assert passed["delivery.timeout.ms"] == 120_000
    assert passed["metadata.recovery.strategy"] == "rebootstrap"
    assert passed["connections.max.idle.ms"] == 540_000
    passed = consumer()
    assert passed["auto.offset.reset"] == "latest"
    assert passed["isolation.level"] == "read_committed"
    assert passed["check.crcs"] is True
    assert passed["metadata.recovery.strategy"] == "rebootstrap"


def test_idle_connections_of_transactional_producers_end_soon() -> None:
    """librdkafka looks for a dead coordinator's successor when a connection ends."""
    passed = producer(transactional_id="t")
    assert passed["connections.max.idle.ms"] < passed["transaction.timeout.ms"] / 10
    passed = producer(transactional_id="t", connections_max_idle_ms=7)
    assert passed["connections.max.idle.ms"] == 7


@pytest.mark.parametrize("name", ["linger_ms", "linger.ms", "queue_buffering_max_ms"])
def test_dots_underscores_and_librdkafkas_names_mean_the_same(name: str) -> None:
    assert producer(**{name: 7})["linger.ms"] == 7


def test_names_of_the_java_client_alone_are_translated() -> None:
    assert producer(max_request_size=2000)["message.max.bytes"] == 2000
    assert producer(buffer_memory=1_500_000)["queue.buffering.max.kbytes"] == 1465
    assert consumer(fetch_max_wait_ms=9)["fetch.wait.max.ms"] == 9
    assert consumer(auto_offset_reset="none")["auto.offset.reset"] == "error"
    assert consumer_configuration(BOOTSTRAP, "g", {"max.poll.records": 3}).poll_records_max == 3
    assert producer_configuration(BOOTSTRAP, {"max.block.ms": 3}).block_ms_max == 3


def test_other_acks_turn_an_idempotence_that_was_not_asked_for_off_as_in_java() -> None:
    assert producer(acks=1)["enable.idempotence"] is False
    assert producer(retries=0)["enable.idempotence"] is False


def test_a_message_does_not_outlast_its_transaction() -> None:
    passed = producer(transactional_id="t", transaction_timeout_ms=10_000)
    assert passed["delivery.timeout.ms"] == 10_000
    assert passed["request.timeout.ms"] < 10_000


def test_a_group_of_the_new_protocol_gets_none_of_the_classic_settings() -> None:
    passed = consumer(group_protocol="consumer")
    assert "session.timeout.ms" not in passed
    assert "partition.assignment.strategy" not in passed


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"enable_idempotence": True, "acks": 1}, ["acks=1", "must be all"]),
        ({"enable_idempotence": True, "retries": 0}, ["retries", "above 0"]),
        ({"max_in_flight_requests_per_connection": 6}, ["at most 5"]),
        ({"transactional_id": "t", "acks": 1}, ["acks=1", "transactional.id"]),
        ({"transactional_id": "t", "enable_idempotence": False}, ["idempotent"]),
        ({"transactional_id": ""}, ["transactional.id is empty"]),
        ({"transaction_timeout_ms": 1}, ["only with transactional.id"]),
        (
            {
                "transactional_id": "t",
                "transaction_timeout_ms": 50_000,
                "delivery_timeout_ms": 60_000,
            },
            ["delivery.timeout.ms=60000", "transaction.timeout.ms=50000"],
        ),
        ({"delivery_timeout_ms": 100}, ["delivery.timeout.ms=100", "linger.ms"]),
        ({"group_id": "g"}, ["group.id", "consumers"]),
        ({"linger_ms": "soon"}, ["linger.ms='soon'", "whole number"]),
        ({"enable_idempotence": "perhaps"}, ["neither true nor false"]),
        ({"linger_ms": 1, "linger.ms": 2}, ["twice"]),
        ({"bootstrap_servers": "a:1"}, ["bootstrap"]),
        ({"acks": None}, ["acks=None", "leave"]),
        ({"max_block_ms": -1}, ["negative"]),
    ],
)
def test_a_producers_wrong_combinations_name_their_rule(
    given: dict[str, Any], words: list[str]
) -> None:
    with pytest.raises(InvalidConfiguration) as refusal:
        producer(**given)
    assert all(word in str(refusal.value) for word in words), str(refusal.value)


@pytest.mark.parametrize(
    ("group", "given", "words"),
    [
        (None, {"enable_auto_commit": True}, ["enable.auto.commit", "group="]),
        (None, {"session_timeout_ms": 1}, ["session.timeout.ms", "group="]),
        (None, {"group_instance_id": "i"}, ["group.instance.id"]),
        ("", {}, ["empty"]),
        ("g", {"group_id": "h"}, ["group.id", "third argument"]),
        ("g", {"isolation_level": "committed"}, ["read_committed", "read_uncommitted"]),
        ("g", {"auto_offset_reset": "first"}, ["earliest", "latest"]),
        ("g", {"acks": "all"}, ["acks", "producers"]),
        ("g", {"group_protocol": "new"}, ["classic, consumer"]),
        ("g", {"group_protocol": "consumer", "session_timeout_ms": 1}, ["the broker decides"]),
        ("g", {"heartbeat_interval_ms": 50_000}, ["below", "session.timeout.ms=45000"]),
        ("g", {"max_poll_interval_ms": 1000}, ["at least", "session.timeout.ms"]),
        ("g", {"max_poll_records": 0}, ["max.poll.records=0"]),
        ("g", {"enable_auto_offset_store": True}, ["set by Consumer"]),
    ],
)
def test_a_consumers_wrong_combinations_name_their_rule(
    group: str | None, given: dict[str, Any], words: list[str]
) -> None:
    with pytest.raises(InvalidConfiguration) as refusal:
        consumer(group, **given)
    assert all(word in str(refusal.value) for word in words), str(refusal.value)


@pytest.mark.parametrize("bootstrap", ["", " ", "http://127.0.0.1:9092", 9092])
def test_a_malformed_bootstrap_address_is_refused(bootstrap: Any) -> None:
    with pytest.raises(InvalidConfiguration, match="bootstrap"):
        admin_configuration(bootstrap, {})


def test_a_mistyped_name_is_answered_with_the_one_that_was_meant() -> None:
    with pytest.raises(InvalidConfiguration, match=r"did you mean compression\.type"):
        made(confluent_kafka.Producer, producer(compresion_type="lz4"))


@pytest.mark.parametrize(
    "passed",
    [
        producer(),
        producer(transactional_id="t", transaction_timeout_ms=5000),
        producer(acks=1),
        producer(buffer_memory=1 << 25, max_request_size=5_000_000),
    ],
)
def test_librdkafka_takes_the_options_of_producers(passed: dict[str, Any]) -> None:
    made(confluent_kafka.Producer, passed)


@pytest.mark.parametrize(
    "passed", [consumer(), consumer(None), consumer(group_protocol="consumer")]
)
def test_librdkafka_takes_the_options_of_consumers(passed: dict[str, Any]) -> None:
    made(confluent_kafka.Consumer, passed).close()
