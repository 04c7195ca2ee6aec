"""A cluster begins closed: its first users are made with its bucket."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.kept_secrets import keep
from tests.unit.broker.authentication.test_kafka_clients_by_sasl import client, round_trip
from tests.unit.broker.one_broker import PATIENT, World, run
from tidelog.broker.settings.settings import BrokerSettings
from tidelog.cli.root import cli
from tidelog.cli.scram_options import ScramOption
from tidelog.clock import SystemClock
from tidelog.entropy import SystemEntropy
from tidelog.errors import Refused
from tidelog.storage.stores.location import open_store

PASSWORD = keep("the operator's secret", "the first password")


def create(url: str, *credentials: str) -> str:
    options = [part for each in credentials for part in ("--add-scram", each)]
    done = CliRunner().invoke(
        cli, ["bucket", "create", url, *options], standalone_mode=False, catch_exceptions=False
    )
    if done.exception is not None:
        raise done.exception
    return done.output


def test_a_broker_on_a_new_bucket_knows_the_first_users(tmp_path: Path) -> None:
    url = f"file://{tmp_path}/bucket"
    said = create(
        url, f"SCRAM-SHA-256=[name=admin,password={PASSWORD}]", "SCRAM-SHA-512=[name=b,password=c]"
    )
    assert "created with 2 credentials" in said
    assert PASSWORD not in said

    async def story() -> None:
        world = World(open_store(url, SystemClock(), SystemEntropy()))
        world.settings = BrokerSettings.of(
            **PATIENT,
            listeners="PLAINTEXT://127.0.0.1:0,CLIENTS://127.0.0.1:0",
            listener_security_protocol_map="PLAINTEXT:PLAINTEXT,CLIENTS:SASL_PLAINTEXT",
            sasl_enabled_mechanisms="SCRAM-SHA-256",
        )
        async with world.broker(0) as one:
            await one.create_topic()
            host, port = one.broker.membership.listeners[1].advertised
            config = client(f"{host}:{port}", "SCRAM-SHA-256", "admin", PASSWORD)
            assert await asyncio.to_thread(round_trip, config) == b"by SASL"
        await world.store.close()

    run(story)
    with pytest.raises(Refused, match="holds a cluster that has begun"):
        create(url, "SCRAM-SHA-256=[name=mallory,password=x]")
    log = b"".join(path.read_bytes() for path in (tmp_path / "bucket/cluster/log").iterdir())
    assert b"cluster/credentials/" in log
    assert b"admin" not in log
    assert b"stored_key" not in log


@pytest.mark.parametrize(
    "text",
    [
        "SCRAM-SHA-1=[name=a,password=hidden]",
        "SCRAM-SHA-256=[name=a]",
        "SCRAM-SHA-256=[password=hidden]",
        "SCRAM-SHA-256=[name=a,password=hidden,iterations=1]",
        "SCRAM-SHA-256=[name=a,password=hidden,color=blue]",
        "SCRAM-SHA-256=name=a,password=hidden",
    ],
)
def test_a_bad_credential_is_refused_without_a_repetition(text: str) -> None:
    done = CliRunner().invoke(cli, ["bucket", "create", "file:///nowhere", "--add-scram", text])
    assert done.exit_code == 2
    assert "--add-scram" in done.output
    assert "hidden" not in done.output


def test_a_password_may_lie_in_a_variable_or_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So the password is not in the list of processes."""
    secrets = tmp_path / "secrets"
    secrets.write_text("admin=from, a file\n")
    monkeypatch.setenv("ALICES_PASSWORD", "from a variable")
    for reference, password in (
        (f"${{file:{secrets}:admin}}", "from, a file"),
        ("${env:ALICES_PASSWORD}", "from a variable"),
    ):
        text = f"SCRAM-SHA-256=[name=admin,password={reference}]"
        assert ScramOption().convert(text, None, None).password == password
    for reference, why in (
        (f"${{file:{secrets}:bob}}", "has no property bob"),
        ("${env:BOBS_PASSWORD}", "the environment has no such variable"),
    ):
        text = f"SCRAM-SHA-256=[name=admin,password={reference}]"
        done = CliRunner().invoke(cli, ["bucket", "create", "file:///nowhere", "--add-scram", text])
        assert done.exit_code == 2
        assert why in done.output
        assert "from" not in done.output


def test_passwords_may_be_quoted() -> None:
    made = ScramOption().convert(
        r'SCRAM-SHA-512=[iterations=8192,name=alice,password="a,\"b]"]', None, None
    )
    assert (made.user, made.password, made.iterations) == ("alice", 'a,"b]', 8192)
    assert "b" not in repr(made)
