"""No secret is in logs, metrics, DescribeConfigs, error texts or the command line of a broker."""

from __future__ import annotations

import asyncio
import urllib.request
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.kept_secrets import keep
from tests.unit.broker.authentication.issuer import Issuer
from tidelog.cli.root import cli
from tidelog.client.admin.administration import broker_holder, holder_configs
from tidelog.client.errors import RequestRefused
from tidelog.client.pool import Client
from tidelog.client.security import security_of
from tidelog.client.settings import ClientSettings
from tidelog.clock import SystemClock
from tidelog.localstack.broker_process import BrokerProcess
from tidelog.network import SocketNetwork

HUSH = keep("hush-hush", "a secret of the broker")
"""A part of every secret of this test."""
MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule"


async def configs(address: str, **login: str) -> str:
    """All values that DescribeConfigs returns for the broker."""
    host, _, port = address.rpartition(":")
    properties = {"security.protocol": "SASL_PLAINTEXT"} | {
        name.replace("_", "."): value for name, value in login.items()
    }
    settings = ClientSettings(security=security_of(properties))
    async with Client(SocketNetwork(), SystemClock(), [(host, int(port))], settings) as client:
        return str(await holder_configs(client, broker_holder(0)))


def test_secrets_are_told_nowhere(tmp_path: Path) -> None:
    store, log = f"file://{tmp_path / 'bucket'}", tmp_path / "log"
    user = "SCRAM-SHA-512=[name=admin,password=hush-hush-admin]"
    created = CliRunner().invoke(cli, ["bucket", "create", store, "--add-scram", user])
    assert created.exit_code == 0, created.output
    issuer = Issuer()
    issuer.publish(tmp_path / "jwks")
    secrets = tmp_path / "secrets"
    secrets.write_text("key = hush-hush-key\n")
    settings = {
        "listener.security.protocol.map": "PLAINTEXT:SASL_PLAINTEXT",
        "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-512,OAUTHBEARER",
        "sasl.mechanism.inter.broker.protocol": "PLAIN",
        "listener.name.plaintext.plain.sasl.jaas.config": "${env:LOGIN}",
        "sasl.oauthbearer.jwks.endpoint.url": f"file://{tmp_path / 'jwks'}",
        "ssl.key.password": f"${{file:{secrets}:key}}",
        "authorizer.class.name": "acl",
        "super.users": "User:admin",
    }
    login = f'{MODULE} required username="admin" password="hush-hush-broker";'
    seen = [created.output]

    async def ask(address: str) -> None:
        names = {"sasl_username": "admin", "sasl_password": "hush-hush-admin"}
        for mechanism in ("PLAIN", "SCRAM-SHA-512"):
            seen.append(await configs(address, sasl_mechanism=mechanism, **names))
            wrong = names | {"sasl_password": "hush-hush-wrong"}
            with pytest.raises(RequestRefused) as refused:
                await configs(address, sasl_mechanism=mechanism, **wrong)
            seen.append(str(refused.value))
        token = issuer.token("hush-hush-name-of-a-bad-token", seconds=-60)
        with pytest.raises(RequestRefused) as refused:
            await configs(address, sasl_mechanism="OAUTHBEARER", sasl_oauthbearer_token=token)
        assert token not in str(refused.value)
        seen.append(str(refused.value))

    with BrokerProcess.start(
        store, log, http="127.0.0.1:0", settings=settings, environment={"LOGIN": login}
    ) as broker:
        asyncio.run(ask(broker.kafka))
        with urllib.request.urlopen(f"http://{broker.http}/metrics", timeout=30) as answer:
            seen.append(answer.read().decode())
        command = Path(f"/proc/{broker.process.pid}/cmdline")
        if command.exists():
            seen.append(command.read_text())
            assert "${env:LOGIN}" in seen[-1]
    seen.append(log.read_text())
    assert "authentication_failed" in seen[-1]
    assert "sasl.oauthbearer.jwks.endpoint.url" in "".join(seen)
    assert [text for text in seen if HUSH in text] == []
