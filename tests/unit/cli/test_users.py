"""Commands on a closed cluster: users, and the client's own security."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.kept_secrets import keep
from tests.unit.broker.authentication.certificates import Authority
from tests.unit.broker.authentication.test_kafka_clients_by_sasl import secured
from tests.unit.broker.one_broker import TOPIC, run, until
from tidelog.cli.root import cli
from tidelog.client.errors import RequestFailed, RequestRefused
from tidelog.client.pool import Client
from tidelog.client.security import security_of
from tidelog.client.settings import ClientSettings
from tidelog.clock import SystemClock
from tidelog.network import SocketNetwork

PASSWORD = keep("a long secret", "the password of users")


def called(*arguments: str, given: str = "") -> str:
    done = CliRunner().invoke(cli, arguments, input=given, standalone_mode=False)
    if done.exception is not None:
        raise done.exception
    return done.output


async def command(*arguments: str, given: str = "") -> str:
    return await asyncio.to_thread(called, *arguments, given=given)


def test_users_are_added_listed_replaced_and_removed() -> None:
    async def story() -> None:
        async with secured() as (_, plain, _):
            where = ("--bootstrap", plain)
            said = await command("users", "add", "alice", *where, given=f"{PASSWORD}\n")
            assert "user alice authenticates by SCRAM-SHA-512" in said
            assert PASSWORD not in said
            small = ("--mechanism", "SCRAM-SHA-256", "--iterations", "8192")
            await command("users", "add", "bob", *small, *where, given="builder\n")
            assert (await command("users", "list", *where)).splitlines() == [
                "USER   MECHANISM      ITERATIONS",
                "alice  SCRAM-SHA-512  4096",
                "bob    SCRAM-SHA-256  8192",
            ]
            await command("users", "remove", "alice", *where)
            with pytest.raises(RequestRefused, match="RESOURCE_NOT_FOUND"):
                await command("users", "remove", "alice", *where)
            assert "alice" not in await command("users", "list", *where)

    run(story)


@pytest.mark.parametrize(
    ("enabled", "chosen"),
    [
        ("SCRAM-SHA-256", "SCRAM-SHA-256"),
        ("SCRAM-SHA-256,SCRAM-SHA-512", "SCRAM-SHA-512"),
        ("PLAIN", "SCRAM-SHA-512"),
    ],
)
def test_a_new_user_can_log_in_by_an_enabled_mechanism(enabled: str, chosen: str) -> None:
    async def story() -> None:
        async with secured(sasl_enabled_mechanisms=enabled) as (_, plain, closed):
            where = ("--bootstrap", plain)
            said = await command("users", "add", "alice", *where, given=f"{PASSWORD}\n")
            assert said == f"user alice authenticates by {chosen}\n"
            security = security_of(
                {
                    "security.protocol": "sasl_plaintext",
                    "sasl.mechanism": enabled.split(",")[-1],
                    "sasl.username": "alice",
                    "sasl.password": PASSWORD,
                }
            )
            host, _, port = closed.rpartition(":")
            settings = ClientSettings(security=security)
            address = (host, int(port))
            async with Client(SocketNetwork(), SystemClock(), [address], settings) as client:
                await client.any_connection()
            await command("users", "remove", "alice", *where)
            assert await command("users", "list", *where) == "none\n"

    run(story)


def test_a_user_that_could_not_log_in_is_warned_of_by_name() -> None:
    async def story() -> None:
        async with secured(sasl_enabled_mechanisms="SCRAM-SHA-256") as (_, plain, _):
            add = ("users", "add", "alice", "--mechanism", "SCRAM-SHA-512", "--bootstrap", plain)
            said = await command(*add, given=f"{PASSWORD}\n")
            assert "sasl.enabled.mechanisms of the broker is SCRAM-SHA-256: the user can" in said
            assert "user alice authenticates by SCRAM-SHA-512" in said
        own = {"listener.name.clients.sasl.enabled.mechanisms": "SCRAM-SHA-256"}
        async with secured(sasl_enabled_mechanisms="", **own) as (_, plain, _):
            said = await command("users", "add", "bob", "--bootstrap", plain, given=f"{PASSWORD}\n")
            assert "does not tell sasl.enabled.mechanisms" in said

    run(story)


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_a_command_authenticates_over_tls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mechanism: str
) -> None:
    async def story() -> None:
        authority = Authority.create(tmp_path)
        stored = "SCRAM-SHA-512" if mechanism == "PLAIN" else mechanism
        async with secured(
            listener_security_protocol_map="PLAINTEXT:PLAINTEXT,CLIENTS:SASL_SSL",
            ssl_keystore_location=str(authority.issue("broker")),
        ) as (_, plain, closed):
            add = ("users", "add", "alice", "--mechanism", stored, "--bootstrap", plain)
            await command(*add, given=f"{PASSWORD}\n")
            config = tmp_path / "client.properties"
            lines = [
                "# how the command reaches the cluster",
                "security.protocol=SASL_SSL",
                f"ssl.ca.location={authority.trusted}",
                f"sasl.mechanism={mechanism}",
                "sasl.username=alice",
                "sasl.password=${env:ALICES_PASSWORD}",
            ]
            config.write_text("\n".join(lines))
            listing = ("topics", "list", "--bootstrap", closed, "--command-config", str(config))
            monkeypatch.setenv("ALICES_PASSWORD", PASSWORD)
            assert TOPIC in await command(*listing)
            monkeypatch.setenv("ALICES_PASSWORD", "wrong")
            with pytest.raises(RequestRefused, match="Authentication failed") as refused:
                await command(*listing)
            assert "wrong" not in str(refused.value)
            other = Authority.create(tmp_path / "other")
            changed = config.read_text().replace(str(authority.trusted), str(other.trusted))
            config.write_text(changed)
            with pytest.raises(RequestFailed, match="certificate verify failed"):
                await command(*listing)

    run(story)


def test_a_command_renews_its_authentication() -> None:
    async def story() -> None:
        async with secured(connections_max_reauth_ms=50) as (one, plain, closed):
            await command("users", "add", "alice", "--bootstrap", plain, given=f"{PASSWORD}\n")
            security = security_of(
                {
                    "security.protocol": "sasl_plaintext",
                    "sasl.mechanism": "SCRAM-SHA-512",
                    "sasl.username": "alice",
                    "sasl.password": PASSWORD,
                }
            )
            host, _, port = closed.rpartition(":")
            settings = ClientSettings(security=security)
            address = (host, int(port))
            async with Client(SocketNetwork(), SystemClock(), [address], settings) as client:
                connection = await client.any_connection()
                renewed = one.broker.metrics.api("SaslAuthenticate")
                # Each renewal takes two steps.
                await until(lambda: renewed.count >= 4)
                assert await client.any_connection() is connection

    run(story)
