"""A Tidelog broker and Apache Kafka with the same listeners: plain text, TLS, users by PLAIN."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.broker.throughput import WAL_ALONE
from benchmarks.harness.targets import Target
from tidelog.localstack.broker_process import BrokerProcess
from tidelog.localstack.kafka import ApacheKafka
from tidelog.localstack.ports import free_ports

USER = "bench"
PASSWORD = "benchmark-secret"
_CURVE = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-noenc", "-days", "2")
_PROTOCOLS = "PLAIN:PLAINTEXT,TLS:SSL,USERS:SASL_PLAINTEXT"
TIDELOG_RULES = {"authorizer.class.name": "acl", "super.users": "User:ANONYMOUS"}
KAFKA_RULES = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:ANONYMOUS",
}


@dataclass(frozen=True, slots=True)
class Certificates:
    """An authority, and a server's key with its certificate, as PEM files."""

    authority: Path
    server: Path

    @classmethod
    def create(cls, folder: Path) -> Certificates:
        """Make them by openssl: elliptic curve P-256, for 127.0.0.1."""
        folder.mkdir(parents=True, exist_ok=True)
        found = cls(folder / "authority.pem", folder / "server.pem")
        key = str(folder / "authority.key")
        _openssl("-subj", "/CN=authority", "-keyout", key, "-out", str(found.authority))
        signed = ("-CA", str(found.authority), "-CAkey", key, "-subj", "/CN=server")
        names = ("-addext", "subjectAltName=IP:127.0.0.1")
        server = str(found.server)
        _openssl(*signed, *names, "-keyout", server, "-out", server)
        return found


@dataclass(frozen=True, slots=True)
class Listeners:
    """One server by each of its listeners."""

    plain: Target
    tls: Target
    users: Target
    """Clients authenticate as USER."""

    @classmethod
    def of(
        cls, plain: Target, tls_port: int, users_port: int, trusted: Path, password: str
    ) -> Listeners:
        """The listeners of a server beside the plain one. The password may be a reference."""
        by_tls = {"security.protocol": "SSL", "ssl.ca.location": str(trusted)}
        by_user = {
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "PLAIN",
            "sasl.username": USER,
            "sasl.password": password,
        }
        return cls(
            plain,
            replace(plain, bootstrap=f"127.0.0.1:{tls_port}", client=by_tls),
            replace(plain, bootstrap=f"127.0.0.1:{users_port}", client=by_user),
        )


@contextlib.contextmanager
def tidelog(
    name: str, folder: Path, certificates: Certificates, settings: Mapping[str, object]
) -> Iterator[Listeners]:
    """A broker on the filesystem store that does not roll."""
    bucket = folder / "bucket"
    bucket.mkdir(parents=True)
    store = f"file://{bucket}"
    password = _password_reference(folder)
    user = f"SCRAM-SHA-256=[name={USER},password={password}]"
    command = [sys.executable, "-m", "tidelog.cli", "bucket", "create", store, "--add-scram", user]
    subprocess.run(command, capture_output=True, check=True)
    plain, tls, users = free_ports(3)
    listening = {
        "listeners": _listeners(plain, tls, users),
        "listener.security.protocol.map": _PROTOCOLS,
        "inter.broker.listener.name": "PLAIN",
        "ssl.keystore.location": certificates.server,
        "sasl.enabled.mechanisms": "PLAIN",
    }
    with BrokerProcess.start(
        store,
        folder / "broker.log",
        listen=None,
        http="127.0.0.1:0",
        settings={**WAL_ALONE, **listening, **settings},
    ) as broker:
        url = f"http://{broker.http}/metrics"
        target = Target(name, f"127.0.0.1:{plain}", broker.process.pid, url)
        yield Listeners.of(target, tls, users, certificates.authority, password)
        broker.stop()


@contextlib.contextmanager
def kafka(
    name: str, folder: Path, cache: Path, certificates: Certificates, settings: Mapping[str, str]
) -> Iterator[Listeners]:
    """Apache Kafka on the local disk."""
    tls, users = free_ports(2)
    module = "org.apache.kafka.common.security.plain.PlainLoginModule"
    listening = {
        "listeners": f"{_listeners('{port}', tls, users)},CONTROLLER://127.0.0.1:{{controller_port}}",
        "advertised.listeners": _listeners("{port}", tls, users),
        "listener.security.protocol.map": f"{_PROTOCOLS},CONTROLLER:PLAINTEXT",
        "inter.broker.listener.name": "PLAIN",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(certificates.server),
        "listener.name.users.sasl.enabled.mechanisms": "PLAIN",
        "listener.name.users.plain.sasl.jaas.config": (
            f'{module} required user_{USER}="{PASSWORD}";'
        ),
    }
    with ApacheKafka.start(folder, cache, settings={**listening, **settings}) as server:
        target = Target(name, server.bootstrap, server.process.pid, None)
        yield Listeners.of(target, tls, users, certificates.authority, _password_reference(folder))


def _password_reference(folder: Path) -> str:
    """Write the password to a file, and refer to it: every process can read arguments."""
    path = folder / "passwords"
    path.write_text(f"{USER}={PASSWORD}\n")
    return f"${{file:{path}:{USER}}}"


def _listeners(plain: int | str, tls: int, users: int) -> str:
    ports = {"PLAIN": plain, "TLS": tls, "USERS": users}
    return ",".join(f"{name}://127.0.0.1:{port}" for name, port in ports.items())


def _openssl(*arguments: str) -> None:
    command = ["openssl", "req", "-x509", *_CURVE, *arguments]
    subprocess.run(command, capture_output=True, check=True)
