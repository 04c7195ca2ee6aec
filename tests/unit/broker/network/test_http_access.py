"""The HTTP side with a certificate and a bearer token."""

from __future__ import annotations

import http.client
import json
import signal
import socket
import ssl
from pathlib import Path

import pytest

from tests.kept_secrets import keep
from tests.unit.broker.authentication.certificates import Authority
from tests.unit.broker.network.test_health import closed, serving
from tidelog.broker.network.health import HealthServer
from tidelog.broker.network.http_access import HttpAccess
from tidelog.broker.settings.settings import BrokerSettings
from tidelog.errors import InvalidConfiguration
from tidelog.localstack.broker_process import BrokerProcess

TOKEN = keep("a-token.of~16_and+more/letters==", "the token of the HTTP server")
Answer = tuple[int, dict[str, str], bytes]


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority.create(tmp_path / "authority")


def access(**settings: object) -> HttpAccess:
    return HttpAccess.of(BrokerSettings.of(**settings))


def over_tls(authority: Authority, **settings: object) -> HttpAccess:
    return access(http_ssl_keystore_location=str(authority.issue("broker")), **settings)


def get(
    address: tuple[str, int], path: str, *, token: str = "", context: ssl.SSLContext | None = None
) -> Answer:
    if context is None:
        connection = http.client.HTTPConnection(*address, timeout=10)
    else:
        connection = http.client.HTTPSConnection(*address, timeout=10, context=context)
    try:
        connection.request("GET", path, headers={"Authorization": token} if token else {})
        response = connection.getresponse()
        return response.status, dict(response.getheaders()), response.read()
    finally:
        connection.close()


def test_metrics_need_the_token() -> None:
    with serving(access=access(http_bearer_token=TOKEN)) as server:
        for wrong in ("", "Bearer", "Bearer x", TOKEN, f"Basic {TOKEN}", f"Bearer {TOKEN}x"):
            status, headers, body = get(server.address, "/metrics", token=wrong)
            assert (status, headers["WWW-Authenticate"]) == (401, "Bearer")
            assert TOKEN.encode() not in body
            assert get(server.address, "/other", token=wrong)[0] == 401
        for right in (f"Bearer {TOKEN}", f"bearer  {TOKEN}"):
            status, headers, body = get(server.address, "/metrics", token=right)
            assert status == 200
            assert b"tidelog_requests" in body


def test_a_probe_without_the_token_learns_the_verdict_and_no_names() -> None:
    with serving(["orders-0 is corrupt"], access=access(http_bearer_token=TOKEN)) as server:
        status, _, body = get(server.address, "/healthz")
        assert (status, json.loads(body)) == (503, {"healthy": False})
        status, _, body = get(server.address, "/healthz", token=f"Bearer {TOKEN}")
        assert json.loads(body) == {"healthy": False, "problems": ["orders-0 is corrupt"]}


def test_a_server_with_a_certificate_speaks_https_alone(authority: Authority) -> None:
    with serving(access=over_tls(authority)) as server:
        assert get(server.address, "/healthz", context=authority.client())[0] == 200
        assert get(server.address, "/metrics", context=authority.client())[0] == 200
        with pytest.raises((http.client.HTTPException, ConnectionError)):
            get(server.address, "/healthz")
        with pytest.raises(ssl.SSLCertVerificationError):
            get(server.address, "/healthz", context=ssl.create_default_context())


def test_old_versions_of_tls_are_refused(authority: Authority) -> None:
    with serving(access=over_tls(authority, ssl_enabled_protocols="TLSv1.3")) as server:
        context = authority.client()
        context.maximum_version = ssl.TLSVersion.TLSv1_2
        with pytest.raises((ssl.SSLError, ConnectionError)):
            get(server.address, "/healthz", context=context)
        assert get(server.address, "/healthz", context=authority.client())[0] == 200


def test_clients_that_never_shake_hands_give_way(authority: Authority) -> None:
    with serving(access=over_tls(authority), connections_max=4) as server:
        silent = [socket.create_connection(server.address, timeout=10) for _ in range(20)]
        try:
            for _ in range(3):
                assert get(server.address, "/healthz", context=authority.client())[0] == 200
            assert all(closed(each) for each in silent[:16])
        finally:
            for each in silent:
                each.close()


def test_a_handshake_that_takes_too_long_ends(authority: Authority) -> None:
    with (
        serving(access=over_tls(authority), timeout_seconds=0.1) as server,
        socket.create_connection(server.address, timeout=10) as silent,
    ):
        assert closed(silent)
        assert isinstance(server, HealthServer)


def test_a_changed_certificate_is_taken(authority: Authority, tmp_path: Path) -> None:
    other = Authority.create(tmp_path / "other")
    with serving(access=(protected := over_tls(authority))) as server:
        assert protected.tls is not None
        other.issue("broker", path=authority.folder / "broker.pem")
        assert protected.tls.reload()
        assert get(server.address, "/healthz", context=other.client())[0] == 200


def test_missing_protection_beyond_loopback_is_named(authority: Authority) -> None:
    both = over_tls(authority, http_bearer_token=TOKEN)
    for host in ("127.0.0.1", "localhost", "::1"):
        assert access().missing_at(host) == []
    for host in ("0.0.0.0", "10.0.0.1", "::"):
        assert access().missing_at(host) == ["http.ssl.keystore.location", "http.bearer.token"]
        assert access(http_bearer_token=TOKEN).missing_at(host) == ["http.ssl.keystore.location"]
        assert both.missing_at(host) == []


@pytest.mark.parametrize("token", ["short", "with a space in it", "sixteen-letters-é"])
def test_a_token_that_no_header_carries_is_refused_and_not_repeated(token: str) -> None:
    with pytest.raises(InvalidConfiguration, match="at least 16") as refused:
        access(http_bearer_token=token)
    assert token not in str(refused.value)


def test_a_certificate_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfiguration, match=r"http\.ssl.*absent\.pem: cannot be read"):
        access(http_ssl_keystore_location=str(tmp_path / "absent.pem"))


def test_a_broker_takes_the_token_from_a_file_and_certificates_on_sighup(
    authority: Authority, tmp_path: Path
) -> None:
    (tmp_path / "secrets").write_text(f"token={TOKEN}\n")
    settings = {
        "http.ssl.keystore.location": authority.issue("broker"),
        "http.bearer.token": f"${{file:{tmp_path / 'secrets'}:token}}",
        "ssl.files.check.interval.ms": 2**31 - 1,
    }
    other = Authority.create(tmp_path / "other")
    store, log = f"file://{tmp_path / 'bucket'}", tmp_path / "log"
    with BrokerProcess.start(store, log, http="127.0.0.1:0", settings=settings) as process:
        host, port = process.http.rsplit(":", 1)
        address = host, int(port)
        trusting = authority.client()
        assert get(address, "/metrics", context=trusting)[0] == 401
        told = get(address, "/metrics", token=f"Bearer {TOKEN}", context=trusting)
        assert told[0] == 200
        assert get(address, "/healthz", context=trusting)[::2] == (200, b'{"healthy": true}\n')
        other.issue("broker", path=authority.folder / "broker.pem")
        process.process.send_signal(signal.SIGHUP)
        assert eventually_trusted(address, other)
        assert process.stop() == 0
    assert TOKEN not in log.read_text()


def eventually_trusted(address: tuple[str, int], authority: Authority) -> bool:
    """The signal arrives some time after it was sent."""
    for _ in range(1000):
        try:
            return get(address, "/healthz", context=authority.client())[0] == 200
        except ssl.SSLCertVerificationError:
            continue
    return False
