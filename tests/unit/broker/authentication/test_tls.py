"""TLS: versions, client certificates and principals, files that change or are bad, deadlines."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.unit.broker.authentication.certificates import Authority
from tests.unit.broker.loopback import Client, Loopback, run, serving
from tests.unit.broker.network.served import describe
from tidelog.broker.authentication.tls import ListenerTls
from tidelog.broker.handlers.request_context import RequestContext
from tidelog.broker.settings.settings import BrokerSettings
from tidelog.errors import InvalidConfiguration
from tidelog.protocol.api import ApiKey
from tidelog.protocol.headers import encode_request
from tidelog.protocol.message import Response
from tidelog.protocol.schemas.cluster.metadata import (
    DescribeClusterRequest,
    DescribeClusterResponse,
)

LOOPS = ("uvloop", "asyncio")
Broker = Any
ALL = {ApiKey.DESCRIBE_CLUSTER: describe}


async def told_principal(_b: Broker, _r: object, context: RequestContext) -> Response:
    return DescribeClusterResponse(cluster_id=str(context.principal))


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority.create(tmp_path / "authority")


def settings(authority: Authority, certificate: Path | None = None, **more: object) -> dict:
    return {
        "ssl_keystore_location": str(certificate or authority.issue("broker")),
        "ssl_truststore_location": str(authority.trusted),
        **more,
    }


@asynccontextmanager
async def tls_server(
    authority: Authority, handlers: Any = ALL, **more: object
) -> AsyncIterator[Loopback]:
    async with serving(handlers, protocol="SSL", **settings(authority, **more)) as broker:
        yield broker


async def connect(broker: Loopback, context: ssl.SSLContext) -> Client:
    client = Client(*await asyncio.open_connection(*broker.address, ssl=context))
    broker.clients.append(client)
    return client


async def asked(client: Client) -> str:
    answer = await client.ask(DescribeClusterRequest(), DescribeClusterResponse, 0)
    return answer.cluster_id


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_requests_are_answered_over_tls(
    authority: Authority, version: ssl.TLSVersion, loop: str
) -> None:
    async def story() -> None:
        async with tls_server(authority) as broker:
            context = authority.client()
            context.minimum_version = context.maximum_version = version
            client = await connect(broker, context)
            for _ in range(3):
                assert await asked(client) == "c"
            used = client.writer.get_extra_info("ssl_object").version()
            assert used == version.name.replace("_", ".")

    run(story(), loop)


@pytest.mark.parametrize("loop", LOOPS)
def test_a_request_in_the_last_packet_of_the_handshake_is_answered(
    authority: Authority, loop: str
) -> None:
    """A client of TLS 1.3 may send its first request with the end of its handshake."""

    async def story() -> None:
        async with tls_server(authority) as broker:
            reader, writer = await asyncio.open_connection(*broker.address)
            incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
            machine = authority.client().wrap_bio(
                incoming, outgoing, server_hostname=broker.address[0]
            )
            while True:
                try:
                    machine.do_handshake()
                    break
                except ssl.SSLWantReadError:
                    writer.write(outgoing.read())
                    incoming.write(await reader.read(1 << 16))
            # The end of the handshake has not been sent yet.
            request = encode_request(DescribeClusterRequest(), 0, 1, "test")
            machine.write(b"".join(map(bytes, request)))
            writer.write(outgoing.read())
            found = b""
            while not found:
                incoming.write(await reader.read(1 << 16))
                try:
                    found = machine.read(1 << 16)
                except ssl.SSLWantReadError:
                    continue
            assert found[4:8] == (1).to_bytes(4, "big")
            writer.close()

    run(story(), loop)


@pytest.mark.parametrize("loop", LOOPS)
def test_a_client_is_the_principal_of_its_certificate(authority: Authority, loop: str) -> None:
    async def story() -> None:
        handlers = {ApiKey.DESCRIBE_CLUSTER: told_principal}
        rules = r"RULE:^CN=(.*?),OU=ops,.*$/$1/"
        async with tls_server(
            authority, handlers, ssl_client_auth="requested", ssl_principal_mapping_rules=rules
        ) as broker:
            known = await connect(broker, authority.client(authority.issue("alice")))
            assert await asked(known) == "User:alice"
            unknown = await connect(broker, authority.client())
            assert await asked(unknown) == "User:ANONYMOUS"

    run(story(), loop)


def test_without_rules_the_principal_is_the_whole_name(authority: Authority) -> None:
    async def story() -> None:
        handlers = {ApiKey.DESCRIBE_CLUSTER: told_principal}
        async with tls_server(authority, handlers, ssl_client_auth="required") as broker:
            client = await connect(broker, authority.client(authority.issue("alice")))
            assert await asked(client) == r"User:CN=alice,OU=ops,O=Harbour\, Inc,C=PT"

    run(story())


@pytest.mark.parametrize("case", ["none", "foreign", "expired", "no rule"])
def test_a_client_without_a_good_certificate_is_not_served(
    authority: Authority, tmp_path: Path, case: str
) -> None:
    async def story() -> None:
        rules = r"RULE:^CN=bob,.*$/bob/" if case == "no rule" else "DEFAULT"
        async with tls_server(
            authority, ssl_client_auth="required", ssl_principal_mapping_rules=rules
        ) as broker:
            certificate = {
                "none": lambda: None,
                "foreign": lambda: Authority.create(tmp_path / "foreign").issue("alice"),
                "expired": lambda: authority.issue("old", days=-1),
                "no rule": lambda: authority.issue("alice"),
            }[case]()
            with pytest.raises((ssl.SSLError, ConnectionError, asyncio.IncompleteReadError)):
                await asked(await connect(broker, authority.client(certificate)))
            reason = "no_principal" if case == "no rule" else "tls_handshake"
            await until(lambda: broker.metrics.connections_closed.of(reason).value == 1)

    run(story())


async def until(is_so: Callable[[], bool]) -> None:
    for _ in range(100_000):
        if is_so():
            return
        await asyncio.sleep(0)
    raise AssertionError("the condition did not come about")


def test_an_old_version_of_tls_is_refused(authority: Authority) -> None:
    async def story() -> None:
        async with tls_server(authority, ssl_enabled_protocols="TLSv1.3") as broker:
            context = authority.client()
            context.maximum_version = ssl.TLSVersion.TLSv1_2
            with pytest.raises((ssl.SSLError, ConnectionError)):
                await connect(broker, context)

    run(story())


def test_a_client_that_speaks_plain_text_is_closed(authority: Authority) -> None:
    async def story() -> None:
        async with tls_server(authority) as broker:
            client = await broker.connect()
            client.send(DescribeClusterRequest(), 0)
            await client.reader.read()
            assert client.reader.at_eof()
            await until(lambda: broker.metrics.connections_closed.of("tls_handshake").value == 1)

    run(story())


@pytest.mark.parametrize("loop", LOOPS)
def test_silent_clients_count_give_way_and_have_a_deadline(authority: Authority, loop: str) -> None:
    async def story() -> None:
        async with tls_server(
            authority, max_connections=3, authentication_timeout_ms=60_000
        ) as broker:
            silent = [await broker.connect() for _ in range(3)]
            client = await connect(broker, authority.client())
            assert await asked(client) == "c"
            assert await silent[0].closed()
        async with tls_server(authority, authentication_timeout_ms=50) as broker:
            silent = [await broker.connect()]
            assert await silent[0].closed()
            await until(lambda: broker.metrics.connections_closed.of("tls_handshake").value == 1)

    run(story(), loop)


def test_silent_clients_do_not_hold_up_the_end(authority: Authority) -> None:
    async def story() -> None:
        async with tls_server(authority, authentication_timeout_ms=60_000) as broker:
            silent = await broker.connect()
            client = await connect(broker, authority.client())
            assert await asked(client) == "c"
            await broker.server.close()
            assert await silent.closed()

    run(story())


@pytest.mark.parametrize("loop", LOOPS)
def test_a_client_that_hangs_up_over_a_request_does_not_hold_up_the_end(
    authority: Authority, loop: str
) -> None:
    async def story() -> None:
        begun, gate = asyncio.Event(), asyncio.Event()

        async def slow(_b: Broker, _r: object, context: RequestContext) -> Response:
            begun.set()
            await gate.wait()
            return await describe(_b, _r, context)

        handlers = {ApiKey.DESCRIBE_CLUSTER: slow}
        async with tls_server(authority, handlers, shutdown_timeout_ms=600_000) as broker:
            client = await connect(broker, authority.client())
            idle = await connect(broker, authority.client())
            client.send(DescribeClusterRequest(), 0)
            await begun.wait()
            closing = asyncio.create_task(broker.server.close())
            # The server reads from no connection any more.
            assert await idle.closed()
            fd = os.dup(client.writer.get_extra_info("socket").fileno())
            with socket.socket(fileno=fd) as hanging_up:
                hanging_up.shutdown(socket.SHUT_WR)
            # The server has seen that end before a later connection, which it refuses.
            assert await (await broker.connect()).closed()
            gate.set()
            async with asyncio.timeout(60):
                await closing

    run(story(), loop)


def test_changed_certificates_are_taken_and_connections_stay(
    authority: Authority, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def story() -> None:
        mine = authority.issue("broker")
        async with tls_server(authority, certificate=mine) as broker:
            tls = broker.tls
            before = await connect(broker, authority.client())
            assert not tls.reload()
            other = Authority.create(tmp_path / "other")
            other.issue("broker", path=mine)
            assert tls.reload()
            assert await asked(await connect(broker, other.client())) == "c"
            assert await asked(before) == "c"
            mine.write_text("nonsense")
            with caplog.at_level(logging.ERROR):
                assert not tls.reload()
                assert not tls.reload()
            assert len(caplog.records) == 1
            assert str(mine) in caplog.records[0].__dict__["why"]
            assert await asked(await connect(broker, other.client())) == "c"
            assert await asked(before) == "c"

    run(story())


@pytest.mark.parametrize(
    ("damage", "why"),
    [
        (lambda path: path.unlink(), "cannot be read: No such file"),
        (lambda path: path.write_text("nonsense"), "not a usable PEM file|is no PEM file"),
        (lambda path: path.write_text(path.read_text().split("-----BEGIN CERT")[0]), "PEM"),
    ],
)
def test_a_bad_file_is_named_at_the_start(
    authority: Authority, damage: Callable[[Path], object], why: str
) -> None:
    path = authority.issue("broker")
    damage(path)
    values = BrokerSettings.of(**settings(authority, path)).at_listener("SSL")
    with pytest.raises(InvalidConfiguration, match=rf"keystore.location = .*broker.pem.*({why})"):
        ListenerTls("SSL", values)


def test_a_key_is_opened_by_its_password_alone(authority: Authority) -> None:
    path = authority.issue("broker", password="open sesame")
    for password in ("open sesame", "wrong", None):
        more = {} if password is None else {"ssl_key_password": password}
        values = BrokerSettings.of(**settings(authority, path, **more)).at_listener("SSL")
        if password == "open sesame":
            ListenerTls("SSL", values)
            continue
        with pytest.raises(
            InvalidConfiguration, match=r"ssl.key.password does not open"
        ) as refused:
            ListenerTls("SSL", values)
        assert "wrong" not in str(refused.value)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"ssl_keystore_location": ""}, "listener CLIENT has no certificate: set ssl.keystore"),
        (
            {"ssl_client_auth": "required", "ssl_truststore_location": ""},
            "trusts no authority: set ssl.truststore.location",
        ),
        ({"ssl_cipher_suites": "TLS_AES_128_GCM_SHA256"}, "a suite of TLS 1.3"),
        (
            {"ssl_cipher_suites": "TLS_RSA_WITH_NOTHING"},
            "WITH_NOTHING, which is unknown",
        ),
        ({"ssl_enabled_protocols": ""}, "names no version"),
    ],
)
def test_settings_that_make_no_sense_are_refused(
    authority: Authority, change: dict[str, object], why: str
) -> None:
    values = BrokerSettings.of(**(settings(authority) | change)).at_listener("CLIENT")
    with pytest.raises(InvalidConfiguration, match=why):
        ListenerTls("CLIENT", values)


def test_without_a_choice_all_suites_are_safe(authority: Authority) -> None:
    context = ListenerTls(
        "SSL", BrokerSettings.of(**settings(authority)).at_listener("SSL")
    ).context
    assert context.minimum_version is ssl.TLSVersion.TLSv1_2
    offered = context.get_ciphers()
    assert {each["protocol"] for each in offered} == {"TLSv1.2", "TLSv1.3"}
    for each in offered:
        assert each["strength_bits"] >= 128, each["name"]
        assert each["auth"] != "auth-null", each["name"]
        # A key that leaks later decrypts no recorded traffic.
        assert each["kea"] in ("kx-ecdhe", "kx-dhe", "kx-any"), each["name"]


def test_suites_have_their_standard_names(authority: Authority) -> None:
    names = "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256,TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256"
    values = BrokerSettings.of(**settings(authority, ssl_cipher_suites=names)).at_listener("SSL")
    offered = [each["name"] for each in ListenerTls("SSL", values).context.get_ciphers()]
    assert [name for name in offered if not name.startswith("TLS_")] == [
        "ECDHE-ECDSA-AES128-GCM-SHA256",
        "ECDHE-ECDSA-CHACHA20-POLY1305",
    ]


def test_a_listener_has_settings_of_its_own(authority: Authority) -> None:
    other = str(authority.issue("other"))
    made = BrokerSettings.of(
        **settings(authority), **{"listener.name.client.ssl.keystore.location": other}
    )
    assert made.at_listener("CLIENT").text("ssl.keystore.location") == other
    assert made.at_listener("BROKERS").text("ssl.keystore.location") != other
    with pytest.raises(InvalidConfiguration, match=r"unknown setting listener.name.client.broker"):
        BrokerSettings.of(**{"listener.name.client.broker.rack": "a"})
