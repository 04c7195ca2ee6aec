"""A connection before its client has authenticated: allowed requests, sizes and times."""

from __future__ import annotations

import asyncio
import gc
import struct
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from socket import SO_LINGER, SOL_SOCKET
from typing import Any

import pytest
import scramp

from tests.kept_secrets import keep, keep_verifier
from tests.unit.broker.authentication.test_tls import until
from tests.unit.broker.loopback import Client, Loopback, run, serving
from tests.unit.broker.network.served import gauge, held_bytes
from tidelog.broker.authentication.attempt import SaslTerms
from tidelog.broker.authentication.mechanisms import ReadCredentials
from tidelog.broker.authentication.sasl import sasl_terms
from tidelog.broker.handlers.authentication import sasl_authenticate, sasl_handshake
from tidelog.broker.handlers.request_context import RequestContext
from tidelog.broker.network.connection import ServedConnection
from tidelog.broker.network.sasl_socket import READ_BYTES_MAX
from tidelog.broker.settings.settings import BrokerSettings
from tidelog.broker.telemetry.metrics import CONNECTIONS, CONNECTIONS_WAITING
from tidelog.clock import SystemClock
from tidelog.coordinator.cluster.records.credentials import Credentials
from tidelog.entropy import SeededEntropy
from tidelog.errors import InvalidConfiguration
from tidelog.protocol.api import ApiKey
from tidelog.protocol.error_codes import ErrorCode
from tidelog.protocol.headers import encode_request
from tidelog.protocol.message import Response
from tidelog.protocol.schemas.cluster.api_versions import ApiVersionsRequest, ApiVersionsResponse
from tidelog.protocol.schemas.cluster.metadata import (
    DescribeClusterRequest,
    DescribeClusterResponse,
)
from tidelog.protocol.schemas.security.sasl import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)
from tidelog.security.scram import ScramMechanism, salted_password, verifier
from tidelog.storage.object_store import StoreNotApplied
from tidelog.workers.offload import InlineOffload

LOOPS = ("uvloop", "asyncio")
SALT = bytes(range(20))


def verified(name: str, password: str, mechanism: ScramMechanism, iterations: int = 4096) -> Any:
    salted = salted_password(mechanism, keep(password, f"the password of {name}"), SALT, iterations)
    made = verifier(mechanism, salted, SALT, iterations)
    return {(name, mechanism): keep_verifier(made, name)}


CREDENTIALS = Credentials(
    b"decoy",
    {
        **verified("alice", "wonderland", ScramMechanism.SCRAM_SHA_256, 5000),
        **verified("bob", "the-builder", ScramMechanism.SCRAM_SHA_512),
    },
)


async def known() -> Credentials:
    return CREDENTIALS


async def told(_b: object, _r: object, context: RequestContext) -> Response:
    return DescribeClusterResponse(cluster_id=str(context.principal))


def of_sessions(handler: Any) -> Any:
    return lambda services, request, context: handler(services.sessions, request, context)


@asynccontextmanager
async def closed(
    credentials: ReadCredentials = known, terms: SaslTerms | None = None, **settings: object
) -> AsyncIterator[Loopback]:
    """A server whose clients must authenticate, by `terms` or else by the terms of these
    settings."""
    settings = {
        "sasl_enabled_mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
        "connection_failed_authentication_delay_ms": 0,
    } | settings
    terms = terms or sasl_terms(
        "PLAINTEXT",
        BrokerSettings.of(**settings),
        credentials,
        InlineOffload(),
        SystemClock(),
        SeededEntropy(1),
    )
    handlers = {
        ApiKey.DESCRIBE_CLUSTER: told,
        ApiKey.SASL_HANDSHAKE: of_sessions(sasl_handshake),
        ApiKey.SASL_AUTHENTICATE: of_sessions(sasl_authenticate),
    }
    async with serving(handlers, sasl={"PLAINTEXT": terms}, **settings) as broker:
        yield broker


async def handshake(client: Client, mechanism: str = "PLAIN", version: int = 1) -> int:
    request = SaslHandshakeRequest(mechanism=mechanism)
    return (await client.ask(request, SaslHandshakeResponse, version)).error_code


async def authenticate(client: Client, token: bytes) -> SaslAuthenticateResponse:
    request = SaslAuthenticateRequest(auth_bytes=token)
    return await client.ask(request, SaslAuthenticateResponse, 2)


async def plain(client: Client, text: str = "\0alice\0wonderland") -> SaslAuthenticateResponse:
    await handshake(client)
    return await authenticate(client, text.encode())


async def principal(client: Client) -> str:
    return (await client.ask(DescribeClusterRequest(), DescribeClusterResponse, 0)).cluster_id


def reset(client: Client) -> None:
    """End a connection without the usual goodbye: the server hears of it at once."""
    socket = client.writer.get_extra_info("socket")
    socket.setsockopt(SOL_SOCKET, SO_LINGER, struct.pack("ii", 1, 0))
    client.writer.transport.abort()


def served_connections() -> list[ServedConnection]:
    """Those that anything still refers to."""
    gc.collect()
    return [each for each in gc.get_objects() if isinstance(each, ServedConnection)]


def closings(broker: Loopback, reason: str) -> Callable[[], bool]:
    return lambda: broker.metrics.connections_closed.of(reason).value == 1


@pytest.mark.parametrize("loop", LOOPS)
def test_a_client_asks_for_versions_authenticates_and_is_served_as_itself(loop: str) -> None:
    async def story() -> None:
        async with closed() as broker:
            client = await broker.connect()
            versions = await client.ask(ApiVersionsRequest(), ApiVersionsResponse, 0)
            assert ApiKey.DESCRIBE_CLUSTER in {each.api_key for each in versions.api_keys}
            answer = await plain(client)
            assert (answer.error_code, answer.session_lifetime_ms) == (0, 0)
            for _ in range(3):
                assert await principal(client) == "User:alice"

    run(story(), loop)


def test_versions_that_a_newer_client_asks_for_are_told() -> None:
    async def story() -> None:
        async with closed() as broker:
            client = await broker.connect()
            frame = struct.pack(">hhihb", ApiKey.API_VERSIONS, 99, 7, -1, 0)
            client.writer.write(struct.pack(">i", len(frame)) + frame)
            _, answer = await client.receive(ApiVersionsResponse, 0)
            assert answer.error_code == ErrorCode.UNSUPPORTED_VERSION
            assert (await plain(client)).error_code == 0

    run(story())


@pytest.mark.parametrize(
    ("request_", "version", "reason"),
    [
        (DescribeClusterRequest(), 0, "illegal_sasl_state"),
        (SaslAuthenticateRequest(auth_bytes=b"\0alice\0wonderland"), 2, "illegal_sasl_state"),
    ],
)
def test_anything_else_closes_the_connection_unanswered(
    request_: Any, version: int, reason: str
) -> None:
    async def story() -> None:
        async with closed() as broker:
            client = await broker.connect()
            client.send(request_, version)
            assert await client.closed()
            await until(closings(broker, reason))

    run(story())


def test_a_mechanism_that_is_not_enabled_is_told_the_list_and_closed() -> None:
    async def story() -> None:
        async with closed(sasl_enabled_mechanisms="SCRAM-SHA-512") as broker:
            client = await broker.connect()
            request = SaslHandshakeRequest(mechanism="PLAIN")
            answer = await client.ask(request, SaslHandshakeResponse, 1)
            assert answer.error_code == ErrorCode.UNSUPPORTED_SASL_MECHANISM
            assert answer.mechanisms == ["SCRAM-SHA-512"]
            assert await client.closed()

    run(story())


@pytest.mark.parametrize(
    ("token", "why"),
    [
        ("\0alice\0wrong", "Authentication failed: Invalid username or password"),
        ("\0mallory\0wonderland", "Authentication failed: Invalid username or password"),
        ("\0\0wonderland", "Authentication failed: username not specified"),
        ("\0alice\0", "Authentication failed: password not specified"),
        ("alice\0wonderland", "Invalid SASL/PLAIN response: expected 3 tokens, got 2"),
        (
            "bob\0alice\0wonderland",
            "Authentication failed: Client requested an authorization id",
        ),
    ],
)
def test_plain_is_refused_in_kafkas_words(token: str, why: str) -> None:
    async def story() -> None:
        async with closed() as broker:
            client = await broker.connect()
            answer = await plain(client, token)
            assert answer.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
            assert (answer.error_message or "").startswith(why)
            assert await client.closed()
            await until(closings(broker, "authentication_failed"))

    run(story())


def test_a_failure_is_answered_late_and_a_success_at_once() -> None:
    """The delay slows down guesses. Here it is ten minutes, and the client does not wait for it."""

    async def story() -> None:
        async with closed(connection_failed_authentication_delay_ms=600_000) as broker:
            assert (await plain(await broker.connect())).error_code == 0
        async with closed(connection_failed_authentication_delay_ms=200) as broker:
            client = await broker.connect()
            assert await handshake(client) == 0
            begun = time.monotonic()
            answer = await authenticate(client, b"\0alice\0guess")
            assert time.monotonic() - begun >= 0.2
            assert answer.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
            assert await client.closed()

    run(story())


def scram_client(user: str, password: str, mechanism: str) -> Any:
    return scramp.ScramClient([mechanism], user, password, c_nonce="abcdef")


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_an_unknown_user_gets_the_same_salt_each_time_and_the_usual_form(
    mechanism: str,
) -> None:
    async def first_answer(broker: Loopback, user: str) -> dict[str, str]:
        client = await broker.connect()
        await handshake(client, mechanism)
        sent = scram_client(user, "x", mechanism).get_client_first()
        answer = await authenticate(client, sent.encode())
        assert answer.error_code == 0
        parts = bytes(answer.auth_bytes).decode().split(",")
        return {part[0]: part[2:] for part in parts}

    async def story() -> None:
        name = "alice" if mechanism == "SCRAM-SHA-256" else "bob"
        async with closed() as broker:
            mine = await first_answer(broker, name)
            unknown = await first_answer(broker, "mallory")
            again = await first_answer(broker, "mallory")
            other = await first_answer(broker, "trudy")
            assert unknown["s"] == again["s"] != other["s"]
            assert len(unknown["s"]) == len(mine["s"])
            assert unknown["i"] == mine["i"]
            assert unknown["r"] != again["r"], "the server's nonce is new each time"

    run(story())


def test_messages_of_scram_cannot_be_replayed() -> None:
    async def story() -> None:
        async with closed() as broker:
            client = await broker.connect()
            machine = scram_client("alice", "wonderland", "SCRAM-SHA-256")
            first = machine.get_client_first().encode()
            await handshake(client, "SCRAM-SHA-256")
            machine.set_server_first(bytes((await authenticate(client, first)).auth_bytes).decode())
            final = machine.get_client_final().encode()
            machine.set_server_final(bytes((await authenticate(client, final)).auth_bytes).decode())
            assert await principal(client) == "User:alice"
            thief = await broker.connect()
            await handshake(thief, "SCRAM-SHA-256")
            assert (await authenticate(thief, first)).error_code == 0
            answer = await authenticate(thief, final)
            assert answer.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED

    run(story())


def test_an_old_client_exchanges_bare_messages() -> None:
    """SaslHandshake version 0: the mechanism's messages have no Kafka headers."""

    async def story() -> None:
        async with closed() as broker:
            client = await broker.connect()
            assert await handshake(client, version=0) == 0
            token = b"\0alice\0wonderland"
            client.writer.write(struct.pack(">i", len(token)) + token)
            assert await client.receive_frame() == b""
            assert await principal(client) == "User:alice"
            wrong = await broker.connect()
            assert await handshake(wrong, version=0) == 0
            wrong.writer.write(struct.pack(">i", 3) + b"\0a\0")
            assert await wrong.closed()

    run(story())


@pytest.mark.parametrize("loop", LOOPS)
def test_requests_behind_the_last_message_are_served(loop: str) -> None:
    async def story() -> None:
        async with closed() as broker:
            client = await broker.connect()
            await handshake(client)
            client.send(SaslAuthenticateRequest(auth_bytes=b"\0alice\0wonderland"), 2)
            client.send(DescribeClusterRequest(), 0)
            client.writer.write(b"\0\0")
            _, answer = await client.receive(SaslAuthenticateResponse, 2)
            assert answer.error_code == 0
            _, served = await client.receive(DescribeClusterResponse, 0)
            assert served.cluster_id == "User:alice"

    run(story(), loop)


@pytest.mark.parametrize("loop", LOOPS)
def test_a_large_request_behind_the_last_message_waits_for_memory(loop: str) -> None:
    async def story() -> None:
        large = SaslAuthenticateRequest(auth_bytes=bytes(400_000))
        frame = b"".join(map(bytes, encode_request(large, 2, 7, "test")))
        async with closed(queued_max_request_bytes=300_000) as broker:
            holder, client = await broker.connect(), await broker.connect()
            await plain(holder)
            holder.writer.write(frame[:10_000])
            await until(lambda: held_bytes(broker) == len(frame))
            await handshake(client)
            client.send(SaslAuthenticateRequest(auth_bytes=b"\0alice\0wonderland"), 2)
            client.writer.write(frame)
            await client.receive(SaslAuthenticateResponse, 2)
            await until(lambda: gauge(broker, CONNECTIONS_WAITING) == 1)
            assert held_bytes(broker) <= len(frame) + READ_BYTES_MAX
            holder.writer.write(frame[10_000:])
            for each in (holder, client):
                _, answer = await each.receive(SaslAuthenticateResponse, 2)
                assert answer.error_code == ErrorCode.ILLEGAL_SASL_STATE

    run(story(), loop)


def test_large_frames_and_many_requests_are_refused() -> None:
    async def story() -> None:
        async with closed(sasl_server_max_receive_size=1000) as broker:
            client = await broker.connect()
            client.writer.write(struct.pack(">i", 1001))
            assert await client.closed()
            hasty = await broker.connect()
            for _ in range(20):
                hasty.send(ApiVersionsRequest(), 0)
            await hasty.reader.read()
            await until(lambda: broker.metrics.connections_closed.of("malformed").value == 2)

    run(story())


@pytest.mark.parametrize("loop", LOOPS)
def test_a_client_that_does_not_authenticate_has_a_deadline_and_gives_way(loop: str) -> None:
    async def story() -> None:
        async with closed(authentication_timeout_ms=50) as broker:
            client = await broker.connect()
            await handshake(client)
            assert await client.closed()
            await until(closings(broker, "authentication_late"))
        async with closed(max_connections=2) as broker:
            silent = [await broker.connect() for _ in range(2)]
            client = await broker.connect()
            assert (await plain(client)).error_code == 0
            assert await principal(client) == "User:alice"
            assert await silent[0].closed()

    run(story(), loop)


def test_credentials_that_cannot_be_read_close_the_connection_without_a_verdict() -> None:
    async def unreadable() -> Credentials:
        raise StoreNotApplied("cluster/credentials/a", "the store is away")

    async def story() -> None:
        async with closed(unreadable) as broker:
            client = await broker.connect()
            await handshake(client)
            client.send(SaslAuthenticateRequest(auth_bytes=b"\0alice\0wonderland"), 2)
            assert await client.closed()
            await until(closings(broker, "credentials_unavailable"))

    run(story())


def test_a_client_whose_authentication_has_expired_renews_it_or_is_closed() -> None:
    async def story() -> None:
        async with closed(connections_max_reauth_ms=1) as broker:
            diligent, idle = await broker.connect(), await broker.connect()
            for client in (diligent, idle, diligent, diligent):
                answer = await plain(client)
                assert (answer.error_code, answer.session_lifetime_ms) == (0, 1)
            with suppress(asyncio.IncompleteReadError, ConnectionError):
                while True:
                    await principal(idle)
            await until(closings(broker, "session_expired"))

    run(story())


@pytest.mark.parametrize(
    ("mechanism", "token", "why"),
    [
        ("PLAIN", "\0bob\0the-builder", "Cannot change principals during re-authentication"),
        ("PLAIN", "\0alice\0wrong", "Authentication failed: Invalid username or password"),
        ("SCRAM-SHA-256", "n,,n=alice,r=x", "is not supported for re-authentication of mechanism"),
    ],
)
def test_another_client_cannot_take_a_connection_over(mechanism: str, token: str, why: str) -> None:
    async def story() -> None:
        async with closed() as broker:
            client = await broker.connect()
            assert (await plain(client)).error_code == 0
            assert await handshake(client, mechanism) == 0
            answer = await authenticate(client, token.encode())
            assert answer.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
            assert why in (answer.error_message or "")
            assert await client.closed()

    run(story())


def test_a_renewal_that_ends_after_its_connection_leaves_nothing_behind() -> None:
    async def story() -> None:
        ready, reads = asyncio.Event(), [0]
        of_others = served_connections()

        async def slow_the_second_time() -> Credentials:
            reads[0] += 1
            if reads[0] > 1:
                await ready.wait()
            return CREDENTIALS

        async with closed(slow_the_second_time, connections_max_reauth_ms=60_000) as broker:
            client = await broker.connect()
            assert (await plain(client)).error_code == 0
            await handshake(client)
            client.send(SaslAuthenticateRequest(auth_bytes=b"\0alice\0wonderland"), 2)
            await until(lambda: reads[0] == 2)
            reset(client)
            await until(lambda: gauge(broker, CONNECTIONS) == 0)
            ready.set()
            for _ in range(100):
                await asyncio.sleep(0)
            assert not [each for each in served_connections() if each not in of_others]

    run(story())


def test_a_token_out_of_turn_is_an_illegal_state() -> None:
    async def story() -> None:
        async with closed() as broker:
            client = await broker.connect()
            await plain(client)
            answer = await authenticate(client, b"\0alice\0wonderland")
            assert answer.error_code == ErrorCode.ILLEGAL_SASL_STATE
            assert await principal(client) == "User:alice"

    run(story())


def test_a_listener_without_mechanisms_is_refused() -> None:
    with pytest.raises(InvalidConfiguration, match="listener CLIENTS has no mechanism: set sasl"):
        sasl_terms(
            "CLIENTS",
            BrokerSettings(),
            known,
            InlineOffload(),
            SystemClock(),
            SeededEntropy(1),
        )
