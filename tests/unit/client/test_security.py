"""A client's security by confluent-kafka's names; secrets are never repeated."""

from __future__ import annotations

from pathlib import Path

import pytest

from tidelog.client.security import security_of
from tidelog.errors import InvalidConfiguration
from tidelog.references import read_properties

SASL = {
    "security.protocol": "SASL_PLAINTEXT",
    "sasl.mechanism": "SCRAM-SHA-256",
    "sasl.username": "alice",
    "sasl.password": "hidden",
}


def test_plain_text_needs_nothing() -> None:
    assert security_of({}) is None
    assert security_of({"security.protocol": "plaintext"}) is None


def test_a_password_is_not_shown() -> None:
    assert "hidden" not in repr(security_of(SASL))


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"security.protocol": "TELNET"}, "must be one of PLAINTEXT"),
        ({"sasl.mechanism": "GSSAPI"}, "must be one of PLAIN, SCRAM"),
        ({"sasl.username": ""}, "needs sasl.username"),
        ({"sasl.passwd": "hidden"}, "unknown property sasl.passwd"),
        (
            {"sasl.jaas.config": 'ScramLoginModule required password="hidden";'},
            "a property of the Java client; write sasl.username and sasl.password",
        ),
        ({"ssl.truststore.location": "/t.jks"}, "write ssl.ca.location, a PEM file"),
        ({"ssl.keystore.password": "hidden"}, "write ssl.certificate.location and ssl.key"),
        (
            {"security.protocol": "SSL", "ssl.ca.location": "/nowhere.pem"},
            "/nowhere.pem: cannot be read",
        ),
        (
            {"security.protocol": "SSL", "ssl.certificate.location": "/nowhere.pem"},
            "ssl.certificate.location = /nowhere.pem: cannot be read",
        ),
        (
            {"security.protocol": "SSL", "ssl.endpoint.identification.algorithm": "x"},
            "must be https or none",
        ),
    ],
)
def test_contradictory_security_settings_are_refused(change: dict[str, str], why: str) -> None:
    with pytest.raises(InvalidConfiguration, match=why) as refused:
        security_of(SASL | change)
    assert "hidden" not in str(refused.value)


def test_secrets_come_from_variables_and_files(tmp_path: Path) -> None:
    secrets = tmp_path / "secrets"
    secrets.write_text("alice = from a file\n")
    config = tmp_path / "client.properties"
    config.write_text(f"a=${{env:A}}/x\nb=${{file:{secrets}:alice}}\n\n! c\n")
    assert read_properties(config, {"A": "from a variable"}) == {
        "a": "from a variable/x",
        "b": "from a file",
    }


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("a=${env:A}", "the environment has no such variable"),
        ("a=${file:/nowhere:b}", "/nowhere: cannot be read"),
        ("hidden", "line 1 is not name=value"),
    ],
)
def test_a_file_that_cannot_be_used_is_named(tmp_path: Path, text: str, why: str) -> None:
    config = tmp_path / "client.properties"
    config.write_text(text)
    with pytest.raises(InvalidConfiguration, match=why) as refused:
        read_properties(config, {})
    assert "hidden" not in str(refused.value)
