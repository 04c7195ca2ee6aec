"""Clients that authenticate by tokens: Kafka's own answers, groups, expiry, new keys."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.abc import AbstractTokenProvider
from confluent_kafka import Consumer, KafkaError, Producer

from tests.unit.broker.authentication.issuer import AUDIENCE, ISSUER, Issuer, bearer
from tests.unit.broker.authentication.test_kafka_clients_by_sasl import refusal, secured
from tests.unit.broker.authentication.test_sasl_socket import (
    authenticate,
    closed,
    closings,
    handshake,
    known,
    principal,
)
from tests.unit.broker.authentication.test_tls import until
from tests.unit.broker.loopback import Client as Framing
from tests.unit.broker.loopback import Loopback
from tests.unit.broker.loopback import run as run_loop
from tests.unit.broker.one_broker import TOPIC, run
from tidelog import Admin
from tidelog import Producer as OwnProducer
from tidelog.broker.authentication.inter_broker import inter_broker_security
from tidelog.broker.authentication.oauthbearer import signing_keys
from tidelog.broker.authentication.sasl import sasl_terms
from tidelog.broker.settings.listeners import ListenerConfig
from tidelog.broker.settings.settings import BrokerSettings
from tidelog.client.errors import RequestRefused
from tidelog.client.pool import Client
from tidelog.client.security import security_of
from tidelog.client.settings import ClientSettings
from tidelog.clock import SystemClock
from tidelog.entropy import SeededEntropy
from tidelog.errors import InvalidConfiguration
from tidelog.network import SocketNetwork
from tidelog.protocol.error_codes import ErrorCode
from tidelog.protocol.schemas.security.sasl import SaslAuthenticateResponse
from tidelog.security.security_protocol import SecurityProtocol
from tidelog.workers.offload import InlineOffload

INVALID = '{"status":"invalid_token"}'


def terms_of(url: str, **more: object) -> dict[str, object]:
    """The settings of a listener that takes the issuer's tokens."""
    return {
        "sasl_enabled_mechanisms": "OAUTHBEARER",
        "sasl_oauthbearer_jwks_endpoint_url": url,
        "sasl_oauthbearer_expected_issuer": ISSUER,
        "sasl_oauthbearer_expected_audience": f"other,{AUDIENCE}",
        "sasl_oauthbearer_groups_claim_name": "groups",
        "sasl_oauthbearer_jwks_endpoint_unknown_key_refresh_ms": 1,
    } | more


@asynccontextmanager
async def taking(url: str, **more: object) -> AsyncIterator[Loopback]:
    """A server that accepts tokens signed with the keys at this address."""
    settings = BrokerSettings.of(**terms_of(url, **more))
    keys = signing_keys("PLAINTEXT", settings, SocketNetwork(), SystemClock())
    running = asyncio.create_task(keys.run())
    terms = sasl_terms(
        "PLAINTEXT",
        settings,
        known,
        InlineOffload(),
        SystemClock(),
        SeededEntropy(1),
        keys,
    )
    try:
        async with closed(terms=terms) as broker:
            yield broker
    finally:
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running


async def by_token(client: Framing, message: bytes) -> SaslAuthenticateResponse:
    await handshake(client, "OAUTHBEARER")
    return await authenticate(client, message)


def test_a_token_authenticates_its_subject_and_extensions_are_ignored(tmp_path: Path) -> None:
    issuer = Issuer()

    async def story() -> None:
        async with taking(issuer.publish(tmp_path / "jwks")) as broker:
            client = await broker.connect()
            message = bearer(issuer.token(seconds=60), name="alice", traceId="a b")
            answer = await by_token(client, message)
            assert (answer.error_code, bytes(answer.auth_bytes)) == (0, b"")
            assert 50_000 < answer.session_lifetime_ms <= 60_000
            assert await principal(client) == "User:alice"

    run_loop(story())


@pytest.mark.parametrize(("max_reauth_ms", "longest"), [(5_000, 5_000), (600_000, 60_000)])
def test_a_session_ends_with_the_token_or_with_the_limit(
    tmp_path: Path, max_reauth_ms: int, longest: int
) -> None:
    issuer = Issuer()

    async def story() -> None:
        limit = {"connections_max_reauth_ms": max_reauth_ms}
        async with taking(issuer.publish(tmp_path / "jwks"), **limit) as broker:
            client = await broker.connect()
            answer = await by_token(client, bearer(issuer.token(seconds=60)))
            assert longest - 10_000 < answer.session_lifetime_ms <= longest

    run_loop(story())


def test_a_bad_token_is_answered_by_json_and_then_by_the_failure(tmp_path: Path) -> None:
    issuer = Issuer()

    async def story() -> None:
        async with taking(issuer.publish(tmp_path / "jwks")) as broker:
            client = await broker.connect()
            answer = await by_token(client, bearer(issuer.token(seconds=-60)))
            assert (answer.error_code, bytes(answer.auth_bytes)) == (0, INVALID.encode())
            answer = await authenticate(client, b"\x01")
            assert answer.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
            assert answer.error_message == INVALID
            assert await client.closed()
            await until(closings(broker, "authentication_failed"))

    run_loop(story())


def test_no_good_token_follows_a_bad_token(tmp_path: Path) -> None:
    issuer = Issuer()

    async def story() -> None:
        async with taking(issuer.publish(tmp_path / "jwks")) as broker:
            client = await broker.connect()
            await by_token(client, bearer(issuer.token(seconds=-60)))
            answer = await authenticate(client, bearer(issuer.token()))
            assert answer.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED

    run_loop(story())


@pytest.mark.parametrize(
    ("message", "why"),
    [
        (b"n,,\x01auth=Basic dTpw\x01\x01", "Invalid scheme in OAUTHBEARER client first message"),
        (b"\x01", "Invalid OAUTHBEARER client first message"),
        ("other name", "Authentication failed: Client requested an authorization id that is"),
    ],
)
def test_a_bad_message_fails_at_once(tmp_path: Path, message: bytes | str, why: str) -> None:
    issuer = Issuer()

    async def story() -> None:
        async with taking(issuer.publish(tmp_path / "jwks")) as broker:
            client = await broker.connect()
            sent = message
            if isinstance(sent, str):
                sent = bearer(issuer.token(), name=sent)
            answer = await by_token(client, sent)
            assert answer.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
            assert (answer.error_message or "").startswith(why)
            assert await client.closed()

    run_loop(story())


def test_a_connection_renews_with_a_new_token_and_new_groups_of_the_same_subject(
    tmp_path: Path,
) -> None:
    issuer = Issuer()

    async def story() -> None:
        async with taking(issuer.publish(tmp_path / "jwks")) as broker:
            client = await broker.connect()
            await by_token(client, bearer(issuer.token(groups=["a"])))
            await handshake(client, "OAUTHBEARER")
            renewed = await authenticate(client, bearer(issuer.token(groups=["b"])))
            assert renewed.error_code == 0
            await handshake(client, "OAUTHBEARER")
            refused = await authenticate(client, bearer(issuer.token("bob")))
            assert refused.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
            assert "from User:alice to User:bob" in (refused.error_message or "")

    run_loop(story())


def test_the_issuer_changes_its_keys(tmp_path: Path) -> None:
    issuer = Issuer()

    async def story() -> None:
        path = tmp_path / "jwks"
        async with taking(issuer.publish(path)) as broker:
            old = issuer.token()
            answer = await by_token(await broker.connect(), bearer(old))
            assert answer.auth_bytes == b""
            issuer.rotate("k2")
            issuer.publish(path)
            answer = await by_token(await broker.connect(), bearer(issuer.token()))
            assert answer.auth_bytes == b""
            answer = await by_token(await broker.connect(), bearer(old))
            assert answer.auth_bytes == INVALID.encode()

    run_loop(story())


def test_an_issuer_that_is_away_gives_no_verdict() -> None:
    async def story() -> None:
        async with taking("http://127.0.0.1:1/jwks") as broker:
            client = await broker.connect()
            await handshake(client, "OAUTHBEARER")
            with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
                await authenticate(client, bearer(Issuer().token()))
            await until(closings(broker, "credentials_unavailable"))

    run_loop(story())


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"sasl_oauthbearer_jwks_endpoint_url": None}, "set sasl.oauthbearer.jwks.endpoint.url"),
        (
            {"sasl_oauthbearer_jwks_endpoint_url": "file:///nowhere/jwks"},
            "sasl.oauthbearer.jwks.endpoint.url = file:///nowhere/jwks: it cannot be read",
        ),
        (
            {"sasl_oauthbearer_jwks_endpoint_url": "file:///dev/null"},
            "sasl.oauthbearer.jwks.endpoint.url = file:///dev/null: it is not JSON",
        ),
    ],
)
def test_keys_that_cannot_be_had_at_the_start_are_named(
    change: dict[str, str | None], why: str
) -> None:
    given = {key: value for key, value in (terms_of("") | change).items() if value is not None}
    with pytest.raises(InvalidConfiguration, match=why):
        signing_keys("CLIENTS", BrokerSettings.of(**given), SocketNetwork(), SystemClock())


# --- Whole brokers and clients of other projects ---


def confluent(address: str, issuer: Issuer, **claims: Any) -> dict[str, Any]:
    """The configuration of a client whose callback gives new tokens."""
    return {
        "bootstrap.servers": address,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "OAUTHBEARER",
        "oauth_cb": lambda _: (issuer.token(**claims), time.time() + 300),
    }


def round_trip(config: dict[str, Any]) -> bytes | None:
    """Produce a record in a transaction, and consume it in a group."""
    producer = Producer(config | {"transactional.id": "t"})
    producer.init_transactions(20)
    producer.begin_transaction()
    producer.produce(TOPIC, b"by a token")
    producer.commit_transaction(20)
    consumer = Consumer(config | {"group.id": "g", "auto.offset.reset": "earliest"})
    consumer.subscribe([TOPIC])
    try:
        message = consumer.poll(30)
        assert message is not None
        assert message.error() is None
        return message.value()
    finally:
        consumer.close()


def test_confluent_kafka_transacts_and_consumes_with_tokens(tmp_path: Path) -> None:
    issuer = Issuer("RS256")

    async def story() -> None:
        url = issuer.publish(tmp_path / "jwks")
        async with secured(**terms_of(url)) as (_, _, address):
            config = confluent(address, issuer)
            assert await asyncio.to_thread(round_trip, config) == b"by a token"

    run(story)


def test_confluent_kafka_hears_that_its_token_has_expired(tmp_path: Path) -> None:
    issuer = Issuer()

    async def story() -> None:
        url = issuer.publish(tmp_path / "jwks")
        async with secured(**terms_of(url)) as (_, _, address):
            heard = await asyncio.to_thread(refusal, confluent(address, issuer, seconds=-60))
        assert heard.code() == KafkaError._AUTHENTICATION
        assert INVALID in heard.str()

    run(story)


def test_aiokafka_authenticates_with_tokens(tmp_path: Path) -> None:
    issuer = Issuer("ES384")

    class Tokens(AbstractTokenProvider):  # type: ignore[misc]
        async def token(self) -> str:
            return issuer.token()

    async def story() -> None:
        url = issuer.publish(tmp_path / "jwks")
        async with (
            secured(**terms_of(url)) as (_, _, address),
            AIOKafkaProducer(
                bootstrap_servers=address,
                security_protocol="SASL_PLAINTEXT",
                sasl_mechanism="OAUTHBEARER",
                sasl_oauth_token_provider=Tokens(),
            ) as producer,
        ):
            await producer.send_and_wait(TOPIC, b"by a token")

    run(story)


def properties(**more: str) -> dict[str, str]:
    return {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "OAUTHBEARER",
    } | {name.replace("_", "."): value for name, value in more.items()}


async def connected(address: str, **more: str) -> None:
    host, _, port = address.rpartition(":")
    settings = ClientSettings(security=security_of(properties(**more)))
    async with Client(SocketNetwork(), SystemClock(), [(host, int(port))], settings) as client:
        await client.any_connection()


def test_our_own_client_takes_a_token_or_a_file_that_another_program_renews(
    tmp_path: Path,
) -> None:
    issuer = Issuer()

    async def story() -> None:
        url = issuer.publish(tmp_path / "jwks")
        async with secured(**terms_of(url)) as (_, _, address):
            await connected(address, sasl_oauthbearer_token=issuer.token())
            path = tmp_path / "token"
            path.write_text(issuer.token(seconds=-60))
            from_file = {"sasl_oauthbearer_token_endpoint_url": f"file://{path}"}
            with pytest.raises(RequestRefused, match=r"FAILED.*invalid_token"):
                await connected(address, **from_file)
            path.write_text(issuer.token() + "\n")
            await connected(address, **from_file)
            path.write_text("two words")
            with pytest.raises(RequestRefused, match="holds no token") as refused:
                await connected(address, **from_file)
            assert "two words" not in str(refused.value)
            path.unlink()
            with pytest.raises(RequestRefused, match="cannot be read: No such file"):
                await connected(address, **from_file)

    run(story)


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({}, "OAUTHBEARER needs one of sasl.oauthbearer.token and sasl"),
        (
            {"sasl_oauthbearer_token": "t", "sasl_oauthbearer_token_endpoint_url": "file:///t"},
            "OAUTHBEARER needs one of",
        ),
        ({"sasl_oauthbearer_token_endpoint_url": "https://i/t"}, "must name a file"),
        ({"sasl_oauthbearer_token": "hid den"}, "holds no token"),
    ],
)
def test_a_login_without_a_usable_token_is_refused(more: dict[str, str], why: str) -> None:
    with pytest.raises(InvalidConfiguration, match=why) as refused:
        security_of(properties(**more))
    assert "hid den" not in str(refused.value)


def test_the_sdk_takes_the_same_token_file(tmp_path: Path) -> None:
    issuer = Issuer()

    def produce(address: str, path: Path) -> dict[str, str]:
        given = {name.replace(".", "_"): value for name, value in properties().items()}
        given["sasl_oauthbearer_token_endpoint_url"] = f"file://{path}"
        with OwnProducer(address, **given) as producer:
            producer.send(TOPIC, "by a token")
        return Admin(address, **given).transactions()

    async def story() -> None:
        url = issuer.publish(tmp_path / "jwks")
        async with secured(**terms_of(url)) as (_, _, address):
            path = tmp_path / "token"
            path.write_text(issuer.token())
            assert await asyncio.to_thread(produce, address, path) == {}

    run(story)


BETWEEN = ListenerConfig("BROKERS", SecurityProtocol.SASL_PLAINTEXT, None, None)


def between(tmp_path: Path, **more: object) -> dict[str, object]:
    issuer = Issuer()
    path = tmp_path / "token"
    path.write_text(issuer.token("broker"))
    return terms_of(
        issuer.publish(tmp_path / "jwks"),
        sasl_mechanism_inter_broker_protocol="OAUTHBEARER",
        sasl_oauthbearer_token_endpoint_url=f"file://{path}",
        **more,
    )


def test_a_brokers_own_token_comes_from_a_file(tmp_path: Path) -> None:
    settings = between(tmp_path)
    security = inter_broker_security(BETWEEN, BrokerSettings.of(**settings)).client
    assert security is not None
    assert security.token is not None
    assert security.token() == (tmp_path / "token").read_text()
    (tmp_path / "token").write_text("renewed")
    assert security.token() == "renewed"
    assert "renewed" not in repr(security)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (
            {"sasl_oauthbearer_token_endpoint_url": None},
            "set listener.name.brokers.sasl.oauthbearer.token.endpoint.url to the file",
        ),
        (
            {"sasl_oauthbearer_token_endpoint_url": "file:///nowhere"},
            "token.endpoint.url: /nowhere cannot be read",
        ),
        (
            {"listener.name.brokers.oauthbearer.sasl.jaas.config": "hidden"},
            "listener.name.brokers.oauthbearer.sasl.jaas.config has no use",
        ),
    ],
)
def test_a_brokers_token_that_is_missing_is_named(
    tmp_path: Path, change: dict[str, object], why: str
) -> None:
    given = {key: each for key, each in (between(tmp_path) | change).items() if each is not None}
    with pytest.raises(InvalidConfiguration, match=why) as refused:
        inter_broker_security(BETWEEN, BrokerSettings.of(**given))
    assert "hidden" not in str(refused.value)
