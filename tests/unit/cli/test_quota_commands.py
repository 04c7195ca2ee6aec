"""`tidelog quotas` as a user types it: output, exit codes, wrong input."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator

import pytest

from tests.unit.cli.test_acl_commands import Result
from tidelog.cli.root import run
from tidelog.localstack.broker_process import BrokerProcess

Command = Callable[..., Result]
HEADERS = ["USER", "CLIENT-ID", "IP", "QUOTA", "VALUE"]
PRODUCED = "alice - - producer_byte_rate 1048576"
SHARE = "alice - - request_percentage 12.5"
OF_OTHERS = "<default> app - consumer_byte_rate 2000"
CONNECTIONS = "- - 10.0.0.1 connection_creation_rate 5"


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    folder = tmp_path_factory.mktemp("quotas")
    with BrokerProcess.start(f"file://{folder / 'bucket'}", folder / "log") as process:
        yield process


@pytest.fixture
def command(
    broker: BrokerProcess, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Command:
    """Runs `tidelog quotas ...` in this process."""
    monkeypatch.setenv("TIDELOG_BOOTSTRAP", broker.kafka)

    def invoke(*arguments: str) -> Result:
        monkeypatch.setattr(sys, "argv", ["tidelog", "quotas", *arguments])
        try:
            run()
            code = 0
        except SystemExit as exit_:
            code = int(exit_.code or 0)
        return Result(code, *capsys.readouterr())

    return invoke


def rows(result: Result) -> list[str]:
    """The rows of a table, with columns one space apart, or no rows without a table."""
    assert (result.code, result.err) == (0, "")
    if result.out == "none\n":
        return []
    headers, *lines = [" ".join(line.split()) for line in result.out.splitlines()]
    assert headers.split() == HEADERS
    return lines


def test_quotas_are_set_listed_and_removed(command: Command) -> None:
    assert rows(command("list")) == []
    values = ("producer_byte_rate=1048576", "request_percentage=12.5")
    assert rows(command("set", *values, "--user", "alice")) == [PRODUCED, SHARE]
    of_others = ("--user", "<default>", "--client-id", "app")
    assert rows(command("set", "consumer_byte_rate=2e3", *of_others)) == [OF_OTHERS]
    address = ("--ip", "10.0.0.1")
    assert rows(command("set", "connection_creation_rate=5", *address)) == [CONNECTIONS]
    assert rows(command("list")) == [PRODUCED, SHARE, OF_OTHERS, CONNECTIONS]
    assert rows(command("list", "--client-id", "app")) == [OF_OTHERS]
    assert rows(command("list", "--user", "<default>")) == [OF_OTHERS]
    assert rows(command("list", "--user", "bob")) == []
    (facts,) = json.loads(command("list", *address, "--json").out)
    assert facts == {
        "user": None,
        "client_id": None,
        "ip": "10.0.0.1",
        "quota": "connection_creation_rate",
        "value": 5,
    }
    alice = ("--user", "alice")
    assert rows(command("remove", "request_percentage", *alice)) == [SHARE]
    assert rows(command("remove", *alice)) == [PRODUCED]
    assert rows(command("remove", *alice)) == []
    assert rows(command("remove", *address)) == [CONNECTIONS]
    assert rows(command("remove", *of_others)) == [OF_OTHERS]
    assert json.loads(command("list", "--json").out) == []


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (("set", "producer_byte_rate=1"), "Name a client"),
        (("remove", "producer_byte_rate"), "Name a client"),
        (("set", "--user", "a"), "Missing argument"),
        (("set", "producer_byte_rate", "--user", "a"), "is not NAME=VALUE"),
        (("set", "producer_byte_rate=fast", "--user", "a"), "'fast' is not a number"),
        (("set", "connection_creation_rate=1", "--user", "a", "--ip", "::1"), "--ip stands alone"),
    ],
)
def test_wrong_input_is_explained(command: Command, arguments: tuple[str, ...], why: str) -> None:
    result = command(*arguments)
    assert result.code == 2
    assert why in result.err


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (("set", "speed=1", "--user", "a"), "quotas of user a: "),
        (("set", "producer_byte_rate=-1", "--user", "a"), "must be greater than 0"),
        (("set", "producer_byte_rate=1", "--ip", "::1"), "Invalid configuration key"),
        (("set", "connection_creation_rate=1", "--ip", "here"), "not a valid IP address"),
        (("remove", "producer_byte_rate", "--user", "a"), "user a has no quota producer_byte_rate"),
    ],
)
def test_a_refusal_is_printed(command: Command, arguments: tuple[str, ...], why: str) -> None:
    result = command(*arguments)
    assert result.code == 1
    assert why in result.err
    assert command("list").out == "none\n"
