"""`tidelog acls` as a user types it: output, exit codes, wrong input."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from typing import NamedTuple

import pytest

from tidelog.cli.root import run
from tidelog.localstack.broker_process import BrokerProcess


class Result(NamedTuple):
    """The result of a command."""

    code: int
    out: str
    err: str


Command = Callable[..., Result]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    folder = tmp_path_factory.mktemp("acls")
    settings = {"authorizer.class.name": "acl", "super.users": "User:ANONYMOUS"}
    store = f"file://{folder / 'bucket'}"
    with BrokerProcess.start(store, folder / "log", settings=settings) as process:
        yield process


@pytest.fixture
def command(
    broker: BrokerProcess, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Command:
    """Runs `tidelog acls ...` in this process."""
    monkeypatch.setenv("TIDELOG_BOOTSTRAP", broker.kafka)

    def invoke(*arguments: str) -> Result:
        monkeypatch.setattr(sys, "argv", ["tidelog", "acls", *arguments])
        try:
            run()
            code = 0
        except SystemExit as exit_:
            code = int(exit_.code or 0)
        return Result(code, *capsys.readouterr())

    return invoke


HEADERS = ["PERMISSION", "PRINCIPAL", "OPERATION", "RESOURCE", "PATTERN", "NAME", "HOST"]
READ = "allow User:alice read topic literal orders *"
CONFIGS = "allow User:alice describe-configs topic literal orders *"
DENIED = "deny Group:guests all group prefixed app- 10.0.0.1"
CLUSTER = "allow User:broker cluster-action cluster literal kafka-cluster *"


def rows(result: Result) -> list[str]:
    """The rows of a table, with columns one space apart, or no rows without a table."""
    assert (result.code, result.err) == (0, "")
    if result.out == "none\n":
        return []
    headers, *lines = [" ".join(line.split()) for line in result.out.splitlines()]
    assert headers.split() == HEADERS
    return lines


def test_rules_are_added_listed_and_removed(command: Command) -> None:
    assert rows(command("list")) == []
    added = command("add", "User:alice", "read", "describe-configs", "--topic", "orders")
    assert rows(added) == [READ, CONFIGS]
    guests = ("Group:guests", "all", "--group", "app-", "--prefixed", "--host", "10.0.0.1")
    assert rows(command("add", *guests, "--deny")) == [DENIED]
    assert rows(command("add", "User:broker", "cluster-action", "--cluster")) == [CLUSTER]
    assert rows(command("list")) == [READ, CONFIGS, DENIED, CLUSTER]
    # A repeated command changes nothing.
    assert rows(command("add", "User:broker", "cluster-action", "--cluster")) == [CLUSTER]
    assert rows(command("list")) == [READ, CONFIGS, DENIED, CLUSTER]
    assert rows(command("list", "--topic", "orders", "--operation", "read")) == [READ]
    assert rows(command("list", "--group", "app-")) == []
    assert rows(command("list", "--group", "app-", "--prefixed")) == [DENIED]
    (facts,) = json.loads(command("list", "--host", "10.0.0.1", "--json").out)
    assert facts == {
        "permission": "deny",
        "principal": "Group:guests",
        "operation": "all",
        "resource_type": "group",
        "pattern": "prefixed",
        "name": "app-",
        "host": "10.0.0.1",
    }
    assert rows(command("remove", "--principal", "User:alice")) == [READ, CONFIGS]
    assert rows(command("remove", "--principal", "User:alice")) == []
    assert rows(command("remove", "--all")) == [DENIED, CLUSTER]
    assert json.loads(command("list", "--json").out) == []


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (("add", "User:alice", "read"), "Name a resource"),
        (("add", "User:alice", "--topic", "t"), "Missing argument"),
        (("add", "User:alice", "fly", "--topic", "t"), "'fly' is not one of"),
        (("add", "User:alice", "read", "--topic", "t", "--cluster"), "Name one resource"),
        (("list", "--prefixed"), "--prefixed needs a resource"),
        (("remove", "--principal", "User:alice", "--topic", ""), "resource's name is empty"),
        (("list", "--topic", "t", "--group", ""), "Name one resource"),
        (("remove",), "remove every rule by --all"),
        (("remove", "--all", "--topic", "t"), "remove every rule by --all"),
    ],
)
def test_wrong_input_is_explained(command: Command, arguments: tuple[str, ...], why: str) -> None:
    result = command(*arguments)
    assert result.code == 2
    assert why in result.err


def test_the_brokers_refusal_is_printed(command: Command) -> None:
    result = command("add", "alice", "read", "--topic", "t")
    assert result.code == 1
    assert "principal 'alice' has not the form User:name" in result.err
    assert command("list").out == "none\n"
