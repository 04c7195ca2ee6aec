"""Clients of other projects authenticate by SASL. Their own administration creates the users."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaConnectionError
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
from confluent_kafka.admin import (
    AdminClient,
    ScramCredentialInfo,
    UserScramCredentialDeletion,
    UserScramCredentialUpsertion,
)
from confluent_kafka.admin import ScramMechanism as AdminMechanism

from tests.kept_secrets import keep
from tests.unit.broker.authentication.certificates import Authority
from tests.unit.broker.one_broker import PATIENT, TOPIC, OneBroker, World, run
from tidelog.broker.settings.settings import BrokerSettings
from tidelog.clock import SystemClock
from tidelog.storage.object_store import ObjectStore
from tidelog.storage.stores.memory import MemoryStore

ALL = "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512"
MECHANISMS = ALL.split(",")
SECRET = keep("alices secret", "the password of alice")


@asynccontextmanager
async def secured(
    store: ObjectStore | None = None, **settings: object
) -> AsyncIterator[tuple[OneBroker, str, str]]:
    """A broker with a topic. Yields its open and its closed address."""
    world = World(store or MemoryStore(SystemClock()))
    defaults = {
        "listeners": "PLAINTEXT://127.0.0.1:0,CLIENTS://127.0.0.1:0",
        "listener_security_protocol_map": "PLAINTEXT:PLAINTEXT,CLIENTS:SASL_PLAINTEXT",
        "sasl_enabled_mechanisms": ALL,
        "connection_failed_authentication_delay_ms": 0,
    }
    world.settings = BrokerSettings.of(**(PATIENT | defaults | settings))
    async with world.broker(0) as one:
        await one.create_topic()
        plain, closed = (each.advertised for each in one.broker.membership.listeners)
        yield one, f"{plain[0]}:{plain[1]}", f"{closed[0]}:{closed[1]}"


def create_users(address: str, *users: tuple[str, str, str]) -> None:
    """Create users, each given as mechanism, name and password."""
    admin = AdminClient({"bootstrap.servers": address})
    changes = [
        UserScramCredentialUpsertion(
            name,
            ScramCredentialInfo(AdminMechanism[mechanism.replace("-", "_")], 4096),
            keep(password, f"the password of {name}").encode(),
        )
        for mechanism, name, password in users
    ]
    for future in admin.alter_user_scram_credentials(changes).values():
        future.result(20)


def client(address: str, mechanism: str, user: str, password: str) -> dict[str, Any]:
    return {
        "bootstrap.servers": address,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": mechanism,
        "sasl.username": user,
        "sasl.password": password,
    }


def round_trip(config: dict[str, Any]) -> bytes | None:
    """Produce a record, and consume it in a group."""
    producer = Producer(config)
    producer.produce(TOPIC, b"by SASL")
    assert producer.flush(20) == 0
    consumer = Consumer(config | {"group.id": "g", "auto.offset.reset": "earliest"})
    consumer.subscribe([TOPIC])
    try:
        message = consumer.poll(30)
        assert message is not None
        assert message.error() is None
        return message.value()
    finally:
        consumer.close()


def refusal(config: dict[str, Any]) -> KafkaError:
    """The error of a client that may not connect."""
    heard: list[KafkaError] = []
    producer = Producer(config | {"error_cb": heard.append})
    with pytest.raises(KafkaException):
        producer.list_topics(timeout=2)
    producer.poll(0)
    return heard[0]


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_confluent_kafka_authenticates_produces_and_consumes(mechanism: str) -> None:
    async def story() -> None:
        stored = "SCRAM-SHA-512" if mechanism == "PLAIN" else mechanism
        async with secured() as (_, plain, closed):
            await asyncio.to_thread(create_users, plain, (stored, "alice", "wonder,land="))
            config = client(closed, mechanism, "alice", "wonder,land=")
            assert await asyncio.to_thread(round_trip, config) == b"by SASL"

    run(story)


def test_scram_over_tls(tmp_path: Path) -> None:
    async def story() -> None:
        authority = Authority.create(tmp_path)
        async with secured(
            listener_security_protocol_map="PLAINTEXT:PLAINTEXT,CLIENTS:SASL_SSL",
            ssl_keystore_location=str(authority.issue("broker")),
        ) as (_, plain, closed):
            await asyncio.to_thread(create_users, plain, ("SCRAM-SHA-256", "alice", SECRET))
            config = client(closed, "SCRAM-SHA-256", "alice", SECRET) | {
                "security.protocol": "SASL_SSL",
                "ssl.ca.location": str(authority.trusted),
            }
            assert await asyncio.to_thread(round_trip, config) == b"by SASL"

    run(story)


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_confluent_kafka_renews_its_authentication_and_keeps_its_connections(
    mechanism: str,
) -> None:
    async def story() -> None:
        stored = "SCRAM-SHA-512" if mechanism == "PLAIN" else mechanism
        async with secured(connections_max_reauth_ms=1000) as (one, plain, closed):
            await asyncio.to_thread(create_users, plain, (stored, "alice", SECRET))
            metrics = one.broker.metrics
            asked = metrics.api("SaslAuthenticate")
            producer = Producer(client(closed, mechanism, "alice", SECRET))

            def send() -> None:
                producer.produce(TOPIC, b"by SASL")
                assert producer.flush(20) == 0

            await asyncio.to_thread(send)
            connected, messages = metrics.connections_accepted, asked.count
            # Twice as often on the same connections: each connection has renewed its
            # authentication.
            while asked.count < 3 * messages:
                await asyncio.to_thread(send)
            assert metrics.connections_accepted == connected
            assert metrics.connections_closed.of("session_expired").value == 0

    run(story)


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_a_wrong_password_and_an_unknown_user_hear_the_same(mechanism: str) -> None:
    async def story() -> None:
        stored = "SCRAM-SHA-256" if mechanism == "PLAIN" else mechanism
        async with secured() as (_, plain, closed):
            await asyncio.to_thread(create_users, plain, (stored, "alice", SECRET))
            heard = [
                await asyncio.to_thread(refusal, client(closed, mechanism, user, "wrong"))
                for user in ("alice", "mallory")
            ]
        assert {each.code() for each in heard} == {KafkaError._AUTHENTICATION}
        told = (
            "Authentication failed: Invalid username or password"
            if mechanism == "PLAIN"
            else "Authentication failed during authentication due to invalid credentials with SASL"
            f" mechanism {mechanism}"
        )
        assert all(told in each.str() for each in heard), [each.str() for each in heard]

    run(story)


def test_a_mechanism_that_is_not_enabled_is_answered_with_the_list() -> None:
    async def story() -> None:
        async with secured(sasl_enabled_mechanisms="SCRAM-SHA-512") as (_, _, closed):
            heard = await asyncio.to_thread(refusal, client(closed, "PLAIN", "alice", SECRET))
        assert heard.code() == KafkaError._AUTHENTICATION
        assert "SCRAM-SHA-512" in heard.str()

    run(story)


def test_aiokafka_authenticates_or_hears_why_not(caplog: pytest.LogCaptureFixture) -> None:
    async def story() -> None:
        async with secured() as (_, plain, closed):
            await asyncio.to_thread(create_users, plain, ("SCRAM-SHA-512", "alice", SECRET))
            how: dict[str, Any] = {
                "bootstrap_servers": closed,
                "security_protocol": "SASL_PLAINTEXT",
                "sasl_mechanism": "SCRAM-SHA-512",
                "sasl_plain_username": "alice",
            }
            async with AIOKafkaProducer(sasl_plain_password=SECRET, **how) as producer:
                await producer.send_and_wait(TOPIC, b"by SASL")
            wrong = AIOKafkaProducer(sasl_plain_password="wrong", **how)
            with pytest.raises(KafkaConnectionError):
                await wrong.start()
            await wrong.stop()

    run(story)
    assert "Authentication failed during authentication due to invalid credentials" in caplog.text


def test_users_are_described_replaced_and_deleted() -> None:
    def administer(address: str) -> None:
        admin = AdminClient({"bootstrap.servers": address})
        described = admin.describe_user_scram_credentials(["alice"])["alice"].result(20)
        assert [(each.mechanism, each.iterations) for each in described.scram_credential_infos] == [
            (AdminMechanism.SCRAM_SHA_256, 4096),
            (AdminMechanism.SCRAM_SHA_512, 4096),
        ]
        with pytest.raises(KafkaException) as unknown:
            admin.describe_user_scram_credentials(["nobody"])["nobody"].result(20)
        assert unknown.value.args[0].code() == KafkaError.RESOURCE_NOT_FOUND
        delete = UserScramCredentialDeletion("alice", AdminMechanism.SCRAM_SHA_256)
        admin.alter_user_scram_credentials([delete])["alice"].result(20)
        with pytest.raises(KafkaException) as gone:
            admin.alter_user_scram_credentials([delete])["alice"].result(20)
        assert gone.value.args[0].code() == KafkaError.RESOURCE_NOT_FOUND

    async def story() -> None:
        async with secured() as (one, plain, closed):
            users = [
                ("SCRAM-SHA-256", "alice", "former secret"),
                ("SCRAM-SHA-512", "alice", "former secret"),
            ]
            await asyncio.to_thread(create_users, plain, *users)
            await asyncio.to_thread(create_users, plain, ("SCRAM-SHA-512", "alice", "later secret"))
            await asyncio.to_thread(administer, plain)
            refused = await asyncio.to_thread(
                refusal, client(closed, "SCRAM-SHA-256", "alice", "former secret")
            )
            assert refused.code() == KafkaError._AUTHENTICATION
            config = client(closed, "SCRAM-SHA-512", "alice", "later secret")
            assert await asyncio.to_thread(round_trip, config) == b"by SASL"
            # The bucket holds one object of credentials; the earlier ones are deleted.
            store = one.broker.environment.store
            keys = [each.key async for each in store.list("cluster/credentials/")]
            assert keys == [one.broker.membership.state().credentials]

    run(story)
