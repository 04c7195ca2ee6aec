"""A real process takes changed certificates on SIGHUP, and keeps its connections."""

from __future__ import annotations

import signal
import socket
import ssl
import time
from pathlib import Path

import pytest

from tests.unit.broker.authentication.certificates import Authority
from tidelog.localstack.broker_process import BrokerProcess

SECONDS_MAX = 60.0
API_VERSIONS = (10).to_bytes(4, "big") + b"\x00\x12\x00\x00\x00\x00\x00\x07\xff\xff"
"""An ApiVersions request of version 0, with correlation id 7 and without a client id."""
NEVER_MS = 2**31 - 1


def connect(broker: BrokerProcess, authority: Authority) -> ssl.SSLSocket:
    """A connection. SSLCertVerificationError if the authority has not signed the certificate."""
    host, _, port = broker.kafka.rpartition(":")
    plain = socket.create_connection((host, int(port)), timeout=SECONDS_MAX)
    try:
        return authority.client().wrap_socket(plain, server_hostname=host)
    except ssl.SSLError:
        plain.close()
        raise


def is_served(connection: ssl.SSLSocket) -> bool:
    """Whether the broker answers a request."""
    connection.sendall(API_VERSIONS)
    head = connection.recv(8)
    size = int.from_bytes(head[:4], "big")
    rest = size - 4
    while rest > 0:
        rest -= len(connection.recv(rest))
    return head[4:] == b"\x00\x00\x00\x07"


def connected_when_taken(broker: BrokerProcess, authority: Authority) -> ssl.SSLSocket:
    """A connection under the authority's certificate, as soon as the process shows it."""
    deadline = time.monotonic() + SECONDS_MAX
    while True:
        try:
            return connect(broker, authority)
        except ssl.SSLCertVerificationError:
            assert time.monotonic() < deadline, "the process did not take its new certificate"


def test_a_process_takes_changed_certificates_on_sighup_and_keeps_connections(
    tmp_path: Path,
) -> None:
    old = Authority.create(tmp_path / "old", "old")
    mine = old.issue("broker")
    settings = {
        "listeners": "SSL://127.0.0.1:0",
        "inter.broker.listener.name": "SSL",
        "ssl.keystore.location": mine,
        "ssl.files.check.interval.ms": NEVER_MS,
    }
    with BrokerProcess.start(
        "memory://sighup", tmp_path / "log", listen=None, settings=settings
    ) as broker:
        before = connect(broker, old)
        assert is_served(before)
        new = Authority.create(tmp_path / "new", "new")
        new.issue("broker", path=mine)
        # Without the signal the broker does not look at its files.
        connect(broker, old).close()
        with pytest.raises(ssl.SSLCertVerificationError):
            connect(broker, new)
        broker.process.send_signal(signal.SIGHUP)
        after = connected_when_taken(broker, new)
        assert is_served(after)
        assert is_served(before)
        with pytest.raises(ssl.SSLCertVerificationError):
            connect(broker, old)
        # A file that cannot be used is logged, and the process goes on.
        mine.write_text("nonsense")
        broker.process.send_signal(signal.SIGHUP)
        third = connect(broker, new)
        assert is_served(third)
        for each in (before, after, third):
            each.close()
        assert broker.stop() == 0
