"""Every command's help teaches by examples, and the command accepts these examples."""

from __future__ import annotations

import json
import logging
import os
import shlex
import subprocess
import sys
from collections.abc import Iterator

import click
import pytest
from click.testing import CliRunner

from tidelog.cli.examples import EXAMPLES
from tidelog.cli.root import COMMANDS, cli

HEAVY = {
    *("asyncio", "boto3", "botocore", "awscrt", "confluent_kafka", "cryptography", "cramjam"),
    *("lz4", "moto", "numpy", "obstore", "prometheus_client", "pyarrow", "uvloop"),
}
"""Modules that help, version and completion must not load, so that they begin at once."""
LIGHT = """
import runpy, sys
sys.argv[:] = ["tidelog", *sys.argv[1:]]
try:
    runpy.run_module("tidelog.cli", run_name="__main__")
finally:
    print(*sorted({name.partition(".")[0] for name in sys.modules}), file=sys.stderr)
"""


def leaves(group: click.Group, words: tuple[str, ...] = ()) -> Iterator[str]:
    """The words of all commands below a group."""
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        if isinstance(command, click.Group):
            yield from leaves(command, (*words, name))
        else:
            yield " ".join((*words, name))


def parse(arguments: list[str]) -> str:
    """The words of the command that takes these arguments. Raises click's errors."""
    context = cli.make_context("tidelog", arguments)
    words = []
    while isinstance(context.command, click.Group):
        name, command, rest = context.command.resolve_command(
            context, [*context._protected_args, *context.args]
        )
        assert name is not None
        assert command is not None
        words.append(name)
        context = command.make_context(name, rest, parent=context)
    return " ".join(words)


def test_each_command_has_examples_and_no_other_has() -> None:
    assert sorted(EXAMPLES) == sorted(leaves(cli))


@pytest.mark.parametrize(
    ("words", "line"), [(words, line) for words, lines in EXAMPLES.items() for line in lines]
)
def test_an_example_is_taken_as_it_is(
    words: str, line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The file of an example does not exist here, and its contents do not matter.
    monkeypatch.setattr("tidelog.cli.broker_client.read_properties", lambda _: {})
    monkeypatch.setenv("PASSWORD", "a-long-secret")
    before, _, behind = line.rpartition("| ")
    assert before == "" or before.startswith("echo ")
    program, *arguments = shlex.split(behind.partition(" > ")[0])
    assert program == "tidelog"
    assert parse(arguments) == words


def test_help_shows_the_examples_of_a_command_and_one_of_each_in_a_group() -> None:
    def shown(*words: str) -> str:
        return CliRunner().invoke(cli, [*words, "--help"]).output

    assert "Examples:" in shown("topics", "create")
    assert "tidelog topics create planes --config cleanup.policy=compact" in shown(
        "topics", "create"
    )
    assert "tidelog topics create flights --partitions 4" in shown("topics")
    assert "tidelog topics flush flights" in shown("topics")
    assert "tidelog cluster features upgrade" in shown("cluster", "features")
    assert "tidelog produce flights" in shown()


def test_the_list_of_commands_has_each_commands_own_summary() -> None:
    context = click.Context(cli)
    for name, summary in COMMANDS.items():
        command = cli.get_command(context, name)
        assert command is not None
        assert command.get_short_help_str(1000) == summary


@pytest.mark.parametrize(
    ("arguments", "variables", "shown"),
    [
        (["--help"], {}, "transactions"),
        (["--version"], {}, "tidelog "),
        (["completion", "bash"], {}, "complete"),
        ([], {"COMP_WORDS": "tidelog gro", "COMP_CWORD": "1"}, "plain,groups"),
    ],
    ids=["help", "version", "script", "completion"],
)
def test_help_version_and_completion_import_nothing_heavy(
    arguments: list[str], variables: dict[str, str], shown: str
) -> None:
    if variables:
        variables = variables | {"_TIDELOG_COMPLETE": "bash_complete"}
    done = subprocess.run(
        [sys.executable, "-c", LIGHT, *arguments],
        env=os.environ | variables,
        capture_output=True,
        text=True,
        check=True,
    )
    assert shown in done.stdout
    assert set(done.stderr.split()) & HEAVY == set()


def test_each_command_takes_the_options_of_its_log() -> None:
    for words in leaves(cli):
        help_text = CliRunner().invoke(cli, [*words.split(), "--help"]).output
        assert "--log-level [debug|info|warning|error]" in help_text
        assert "--log-format [text|json]" in help_text


def test_a_command_logs_to_stderr_as_it_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def listing(*options: str) -> tuple[int, list[str]]:
        done = CliRunner().invoke(cli, ["completion", "bash", *options])
        return done.exit_code, done.stderr.splitlines()

    def noisy(shell: str) -> None:
        logging.getLogger("tidelog.noisy").warning("seen", extra={"shell": shell})
        logging.getLogger("tidelog.noisy").info("seen too")

    assert listing() == (0, [])
    monkeypatch.setattr("tidelog.cli.commands.completion.get_completion_class", noisy)
    code, lines = listing("--log-format", "json")
    # The stand-in returns no class, so the command fails.
    assert code == 1
    assert [json.loads(line)["shell"] for line in lines] == ["bash"]
    monkeypatch.setenv("TIDELOG_LOG_LEVEL", "info")
    assert len(listing()[1]) == 2
    assert listing("--log-level", "error")[1] == []
    assert listing("--log-level", "loud")[0] == 2
