"""A closed cluster: users by SCRAM over TLS, certificates between brokers, rules for each user."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

from tests.kept_secrets import keep
from tests.unit.broker.authentication.certificates import Authority

ADMIN, JOBS, STRANGER = "admin", "jobs", "stranger"
MECHANISM: Final = "SCRAM-SHA-512"
LISTENERS: Final = ("CLIENTS", "BROKERS")
CHECK_MS: Final = 500
"""How often brokers look for changed files."""


class Protection:
    """The certificates, users and rules of a cluster, and the properties of its clients."""

    def __init__(self, folder: Path, check_ms: int = CHECK_MS) -> None:
        self._folder = folder
        self._check_ms = check_ms
        folder.mkdir()
        self._authority = Authority.create(folder / "authority")
        self._broker = folder / "broker.pem"
        self._issued = 0
        self.rotate()

    def rotate(self) -> None:
        """Replace the brokers' certificate, at once, by another one of the same name."""
        self._issued += 1
        fresh = self._authority.issue(
            "broker", path=self._folder / f"broker-{self._issued}.pem", units=(str(self._issued),)
        )
        fresh.replace(self._broker)

    @property
    def issued(self) -> str:
        """The number of the present certificate, which is part of its name."""
        return str(self._issued)

    @property
    def trusted(self) -> Path:
        """The authority's certificate."""
        return self._authority.trusted

    def create_cluster(self, store: str) -> None:
        """Make the cluster with its users, before its first broker."""
        command = [sys.executable, "-m", "tidelog.cli", "bucket", "create", store]
        secrets = {user: _password(user) for user in (ADMIN, JOBS, STRANGER)}
        passwords = self._file("passwords", secrets)
        for user in secrets:
            reference = f"${{file:{passwords}:{user}}}"
            command += ["--add-scram", f"{MECHANISM}=[name={user},password={reference}]"]
        subprocess.run(command, check=True, capture_output=True, timeout=120)

    def settings(self, ports: Sequence[int], advertised: Sequence[int]) -> dict[str, object]:
        """The settings of a broker that listens on these ports, one for each listener."""
        return {
            "listeners": _listeners(ports),
            "advertised.listeners": _listeners(advertised),
            "listener.security.protocol.map": "CLIENTS:SASL_SSL,BROKERS:SSL",
            "inter.broker.listener.name": "BROKERS",
            "sasl.enabled.mechanisms": MECHANISM,
            "ssl.keystore.location": self._broker,
            "ssl.truststore.location": self.trusted,
            "ssl.files.check.interval.ms": self._check_ms,
            "listener.name.brokers.ssl.client.auth": "required",
            "ssl.principal.mapping.rules": "RULE:^CN=(.*?),.*$/$1/",
            "authorizer.class.name": "acl",
            "super.users": f"User:{ADMIN};User:broker",
        }

    def client(self, user: str) -> dict[str, str]:
        """A client's properties by confluent-kafka's names."""
        return {
            "security.protocol": "SASL_SSL",
            "ssl.ca.location": str(self.trusted),
            "sasl.mechanism": MECHANISM,
            "sasl.username": user,
            "sasl.password": _password(user),
        }

    def files(self, user: str) -> dict[str, str]:
        """Variables that name files with a client's properties: under confluent-kafka's names, and
        under those of Kafka's Java client."""
        module = "org.apache.kafka.common.security.scram.ScramLoginModule"
        login = f'{module} required username="{user}" password="{_password(user)}";'
        java = {
            "security.protocol": "SASL_SSL",
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(self.trusted),
            "sasl.mechanism": MECHANISM,
            "sasl.jaas.config": login,
        }
        return {
            "CLIENT_PROPERTIES": self._file(f"{user}.properties", self.client(user)),
            "JAVA_CLIENT_PROPERTIES": self._file(f"{user}-java.properties", java),
        }

    def allow_jobs(self, bootstrap: str, topics: Sequence[str], jobs: Sequence[str]) -> None:
        """Allow the user JOBS these topics, and the groups and transactional ids of the jobs with
        these names."""
        rules = [_rule(ResourceType.TOPIC, topic) for topic in topics]
        for job in jobs:
            prefixed = ResourcePatternType.PREFIXED
            rules.append(_rule(ResourceType.TOPIC, f"{job}-", prefixed))
            rules.append(_rule(ResourceType.GROUP, job, prefixed))
            rules.append(_rule(ResourceType.GROUP, f"reader-{job}"))
            rules.append(_rule(ResourceType.TRANSACTIONAL_ID, job, prefixed))
        admin = AdminClient({"bootstrap.servers": bootstrap, **self.client(ADMIN)})
        for created in admin.create_acls(rules, request_timeout=60).values():
            created.result(60)

    def _file(self, name: str, properties: dict[str, str]) -> str:
        path = self._folder / name
        path.write_text("".join(f"{key}={value}\n" for key, value in properties.items()))
        return str(path)


def _password(user: str) -> str:
    return keep(f"the-password-of-{user}", f"the password of {user}")


def _listeners(ports: Sequence[int]) -> str:
    pairs = zip(LISTENERS, ports, strict=True)
    return ",".join(f"{name}://127.0.0.1:{port}" for name, port in pairs)


def _rule(
    resource: ResourceType, name: str, pattern: ResourcePatternType = ResourcePatternType.LITERAL
) -> AclBinding:
    allow, all_ = AclPermissionType.ALLOW, AclOperation.ALL
    return AclBinding(resource, name, pattern, f"User:{JOBS}", "*", all_, allow)
