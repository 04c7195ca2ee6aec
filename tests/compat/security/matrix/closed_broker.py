"""A broker process with a listener for each way to authenticate, and for each bad certificate."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from tests.compat.security.matrix.attempt import SECONDS_MAX, Attempt
from tests.kept_secrets import keep
from tests.unit.broker.authentication.certificates import Authority
from tests.unit.broker.authentication.issuer import AUDIENCE, ISSUER, Issuer
from tidelog.localstack.broker_process import BrokerProcess
from tidelog.localstack.ports import free_ports

USER, PASSWORD = "alice", keep("wonder-land", "the password of alice")
BEARER = "OAUTHBEARER"
_SCRAM: Final = ("SCRAM-SHA-256", "SCRAM-SHA-512")
_WITH_PASSWORD: Final = ("PLAIN", *_SCRAM)
_LISTENERS: Final = {
    "PLAINTEXT": "PLAINTEXT",
    "TLS": "SSL",
    "MUTUAL": "SSL",
    "USERS": "SASL_SSL",
    "EXPIRED": "SSL",
    "ELSEWHERE": "SSL",
}


@dataclass(frozen=True)
class ClosedBroker:
    """The broker's addresses by listener, and the files and tokens of clients."""

    addresses: dict[str, str]
    authority: Authority
    stranger: Authority
    """An authority that has signed no certificate of the broker."""
    issuer: Issuer

    def create_topic(self, name: str) -> None:
        """Create a topic with one partition."""
        admin = AdminClient({"bootstrap.servers": self.addresses["PLAINTEXT"]})
        admin.create_topics([NewTopic(name, 1)])[name].result(SECONDS_MAX)

    def attempts(self, topic: str, mechanisms: frozenset[str]) -> list[Attempt]:
        """All attempts that must succeed, then all that must fail, for a client with these
        mechanisms."""
        trusted, tls = str(self.authority.trusted), self.addresses["TLS"]
        users = self.addresses["USERS"]
        certificate = str(self.authority.issue(USER))
        found = [
            Attempt("TLS", tls, topic, trusted),
            Attempt("mTLS", self.addresses["MUTUAL"], topic, trusted, certificate),
        ]
        refused = [
            Attempt("wrong CA", tls, topic, str(self.stranger.trusted)),
            Attempt("expired certificate", self.addresses["EXPIRED"], topic, trusted),
            Attempt("wrong host name", self.addresses["ELSEWHERE"], topic, trusted),
        ]
        for each in _WITH_PASSWORD:
            if each in mechanisms:
                login = {"mechanism": each, "username": USER}
                found.append(Attempt(each, users, topic, trusted, **login, password=PASSWORD))
                wrong = f"wrong password by {each}"
                refused.append(Attempt(wrong, users, topic, trusted, **login, password="wrong"))
        if BEARER in mechanisms:
            good, old = (self.issuer.token(USER, seconds=each) for each in (3000, -3000))
            found.append(Attempt(BEARER, users, topic, trusted, mechanism=BEARER, token=good))
            refused.append(
                Attempt("expired token", users, topic, trusted, mechanism=BEARER, token=old)
            )
        return [*found, *(Attempt(**vars(each) | {"is_refused": True}) for each in refused)]


@contextmanager
def closed_broker(folder: Path) -> Iterator[ClosedBroker]:
    """Start the broker on an empty folder, with one user."""
    authority = Authority.create(folder / "authority")
    issuer = Issuer()
    store = f"file://{folder / 'bucket'}"
    users = [
        part
        for each in _SCRAM
        for part in ("--add-scram", f"{each}=[name={USER},password=${{env:PASSWORD}}]")
    ]
    create = [sys.executable, "-m", "tidelog.cli", "bucket", "create", store, *users]
    secret = {**os.environ, "PASSWORD": PASSWORD}
    subprocess.run(create, check=True, capture_output=True, timeout=SECONDS_MAX, env=secret)
    addresses = {
        name: f"127.0.0.1:{port}"
        for name, port in zip(_LISTENERS, free_ports(len(_LISTENERS)), strict=True)
    }
    expired = authority.issue("expired", days=-1)
    elsewhere = authority.issue("elsewhere", host="10.9.8.7")
    settings = {
        "listeners": ",".join(f"{name}://{address}" for name, address in addresses.items()),
        "listener.security.protocol.map": ",".join(
            f"{name}:{protocol}" for name, protocol in _LISTENERS.items()
        ),
        "ssl.keystore.location": authority.issue("broker"),
        "ssl.truststore.location": authority.trusted,
        "listener.name.mutual.ssl.client.auth": "required",
        "listener.name.expired.ssl.keystore.location": expired,
        "listener.name.elsewhere.ssl.keystore.location": elsewhere,
        "sasl.enabled.mechanisms": ",".join([*_WITH_PASSWORD, BEARER]),
        "sasl.oauthbearer.jwks.endpoint.url": issuer.publish(folder / "keys.json"),
        "sasl.oauthbearer.expected.issuer": ISSUER,
        "sasl.oauthbearer.expected.audience": AUDIENCE,
        "group.initial.rebalance.delay.ms": 0,
    }
    with BrokerProcess.start(
        store, folder / "broker.log", listen=None, settings=settings
    ) as process:
        stranger = Authority.create(folder / "stranger", "stranger")
        yield ClosedBroker(addresses, authority, stranger, issuer)
        assert process.stop() == 0
