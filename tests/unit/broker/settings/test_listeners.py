"""Listeners by Kafka's rules: names, protocols, addresses and refusals."""

from __future__ import annotations

import pytest

from tidelog.broker.settings.listeners import ListenerConfig, configured_listeners
from tidelog.broker.settings.settings import BrokerSettings
from tidelog.errors import InvalidConfiguration
from tidelog.security.security_protocol import SecurityProtocol

TWO = "CLIENT://0.0.0.0:9092, REPLICATION://10.0.0.1:9093"
MAP = "CLIENT:SASL_SSL,REPLICATION:PLAINTEXT"


def configs(**settings: object) -> list[ListenerConfig]:
    return list(configured_listeners(BrokerSettings.of(**settings), None, None, "me.example").all)


def test_a_broker_without_listeners_has_one_at_its_flags() -> None:
    found = configured_listeners(BrokerSettings(), ("0.0.0.0", 1), ("kafka.example", 2), "me")
    plain = SecurityProtocol.PLAINTEXT
    assert found.all == (ListenerConfig("PLAINTEXT", plain, ("0.0.0.0", 1), ("kafka.example", 2)),)
    assert found.inter_broker == "PLAINTEXT"


def test_each_listener_has_its_name_protocol_and_two_addresses() -> None:
    client, replication = configs(
        listeners=TWO,
        advertised_listeners="client://kafka.example:19092,REPLICATION://10.0.0.1:9093",
        listener_security_protocol_map=MAP,
        inter_broker_listener_name="replication",
    )
    assert client == ListenerConfig(
        "CLIENT", SecurityProtocol.SASL_SSL, ("0.0.0.0", 9092), ("kafka.example", 19092)
    )
    assert replication.advertised == ("10.0.0.1", 9093)


def test_a_listener_on_all_interfaces_tells_the_machines_name() -> None:
    (only,) = configs(listeners="PLAINTEXT://:9092")
    assert (only.address, only.advertised) == (("", 9092), ("me.example", 9092))


def test_an_address_of_ipv6_is_in_brackets() -> None:
    (only,) = configs(listeners="PLAINTEXT://[::1]:0")
    assert only.address == ("::1", 0)


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"listeners": "nonsense"}, "'nonsense', which is not NAME://HOST:PORT"),
        ({"listeners": "PLAINTEXT://h:70000"}, "is not NAME://HOST:PORT"),
        ({"listeners": "PLAINTEXT://a:1,plaintext://b:2"}, "names PLAINTEXT twice"),
        ({"listeners": "PLAINTEXT://a:1,SSL://a:1"}, "SSL and PLAINTEXT the same address"),
        ({"listeners": "CLIENT://a:1"}, "no security protocol is defined for listener CLIENT"),
        ({"listeners": "PLAINTEXT://0.0.0.0:1"}, "a wildcard: give the address"),
        ({"listeners": "SSL://a:1"}, "by the listener PLAINTEXT, which listeners lacks"),
        (
            {"listeners": "PLAINTEXT://a:1", "advertised_listeners": "SSL://a:1"},
            "advertised.listeners names SSL, which listeners lacks",
        ),
        (
            {"listeners": "PLAINTEXT://a:1,SSL://a:2", "advertised_listeners": "SSL://a:2"},
            "advertised.listeners lacks PLAINTEXT",
        ),
        ({"listener_security_protocol_map": "A:TELNET"}, "the protocol 'TELNET'; there are PLAIN"),
        ({"listener_security_protocol_map": "A"}, "'A', which is not NAME:PROTOCOL"),
        (
            {"inter_broker_listener_name": "A", "security_inter_broker_protocol": "SSL"},
            "only one of inter.broker.listener.name and security.inter.broker.protocol",
        ),
    ],
)
def test_listeners_that_kafka_refuses_are_refused(settings: dict[str, object], why: str) -> None:
    with pytest.raises(InvalidConfiguration, match=why.replace("(", r"\(")):
        configs(**settings)


def test_the_flags_and_the_setting_exclude_each_other() -> None:
    settings = BrokerSettings.of(listeners="PLAINTEXT://a:1")
    with pytest.raises(InvalidConfiguration, match="set together with --listen"):
        configured_listeners(settings, ("a", 1), None, "me")
