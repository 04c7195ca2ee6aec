"""Clients of other projects over TLS: certificates on both sides, and refused connections."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer

from tests.unit.broker.authentication.certificates import Authority
from tests.unit.broker.one_broker import PATIENT, TOPIC, World, run
from tidelog.broker.settings.settings import BrokerSettings
from tidelog.clock import SystemClock
from tidelog.storage.stores.memory import MemoryStore


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority.create(tmp_path / "authority")


@asynccontextmanager
async def secured(authority: Authority, **settings: object) -> AsyncIterator[str]:
    """A broker with a topic. Yields the address of its listener with TLS."""
    world = World(MemoryStore(SystemClock()))
    world.settings = BrokerSettings.of(
        **PATIENT,
        listeners="PLAINTEXT://127.0.0.1:0,SSL://127.0.0.1:0",
        ssl_keystore_location=str(authority.issue("broker")),
        ssl_truststore_location=str(authority.trusted),
        **settings,
    )
    async with world.broker(0) as one:
        await one.create_topic()
        host, port = one.broker.membership.listeners[1].advertised
        yield f"{host}:{port}"


def client(address: str, authority: Authority, **more: str) -> dict[str, Any]:
    return {
        "bootstrap.servers": address,
        "security.protocol": "ssl",
        "ssl.ca.location": str(authority.trusted),
    } | more


def sent(config: dict[str, Any]) -> None:
    producer = Producer(config)
    producer.produce(TOPIC, b"over TLS")
    assert producer.flush(20) == 0


def received(config: dict[str, Any]) -> bytes | None:
    consumer = Consumer(config | {"group.id": "g", "auto.offset.reset": "earliest"})
    consumer.subscribe([TOPIC])
    try:
        message = consumer.poll(30)
        assert message is not None
        assert message.error() is None
        return message.value()
    finally:
        consumer.close()


def failure(config: dict[str, Any]) -> KafkaError:
    """The error of a client that cannot connect."""
    heard: list[KafkaError] = []
    producer = Producer(config | {"error_cb": heard.append})
    with pytest.raises(KafkaException):
        producer.list_topics(timeout=3)
    producer.poll(0)
    return heard[0]


def test_confluent_kafka_produces_and_consumes_with_certificates(authority: Authority) -> None:
    async def story() -> None:
        pem = str(authority.issue("alice"))
        async with secured(authority, ssl_client_auth="required") as address:
            mine = {"ssl.certificate.location": pem, "ssl.key.location": pem}
            config = client(address, authority, **mine)
            await asyncio.to_thread(sent, config)
            assert await asyncio.to_thread(received, config) == b"over TLS"

    run(story)


def test_aiokafka_produces_and_consumes(authority: Authority) -> None:
    async def story() -> None:
        async with secured(authority) as address:
            how: dict[str, Any] = {
                "bootstrap_servers": address,
                "security_protocol": "SSL",
                "ssl_context": authority.client(),
            }
            async with AIOKafkaProducer(**how) as producer:
                await producer.send_and_wait(TOPIC, b"over TLS")
            reading = AIOKafkaConsumer(TOPIC, auto_offset_reset="earliest", **how)
            async with reading as consumer:
                assert (await consumer.getone()).value == b"over TLS"

    run(story)


@pytest.mark.parametrize("case", ["foreign authority", "expired", "other host", "no certificate"])
def test_confluent_kafka_names_the_fault_of_a_certificate(
    authority: Authority, tmp_path: Path, case: str
) -> None:
    async def story() -> None:
        settings: dict[str, object] = {}
        trusted = authority
        if case == "foreign authority":
            trusted = Authority.create(tmp_path / "other")
        elif case == "expired":
            path = authority.issue("expired", days=-1)
            settings["listener_name_ssl"] = path
        elif case == "other host":
            path = authority.issue("elsewhere", host="10.9.8.7")
            settings["listener_name_ssl"] = path
        else:
            settings["ssl_client_auth"] = "required"
        if path := settings.pop("listener_name_ssl", None):
            settings["listener.name.ssl.ssl.keystore.location"] = str(path)
        async with secured(authority, **settings) as address:
            heard = await asyncio.to_thread(failure, client(address, trusted))
        assert heard.code() in (
            KafkaError._SSL,
            KafkaError._ALL_BROKERS_DOWN,
            KafkaError._TRANSPORT,
        )
        said = {
            "foreign authority": "certificate verify failed",
            "expired": "certificate",
            "other host": "certificate verify failed",
            "no certificate": "",
        }
        assert said[case] in heard.str()

    run(story)


def test_a_listener_beyond_this_machine_without_authentication_is_warned_of(
    authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    async def story() -> None:
        world = World(MemoryStore(SystemClock()))
        world.settings = BrokerSettings.of(
            **PATIENT,
            listeners="PLAINTEXT://127.0.0.1:0,SSL://0.0.0.0:0,MUTUAL://0.0.0.0:0",
            advertised_listeners="PLAINTEXT://127.0.0.1:0,SSL://127.0.0.1:0,MUTUAL://127.0.0.1:0",
            listener_security_protocol_map="PLAINTEXT:PLAINTEXT,SSL:SSL,MUTUAL:SSL",
            ssl_keystore_location=str(authority.issue("broker")),
            ssl_truststore_location=str(authority.trusted),
            **{"listener.name.mutual.ssl.client.auth": "required"},
        )
        with caplog.at_level(logging.WARNING):
            async with world.broker(0):
                pass

    run(story)
    warned = [each for each in caplog.records if "without authentication" in each.message]
    assert [each.__dict__["listener"] for each in warned] == ["SSL"]
