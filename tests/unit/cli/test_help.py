"""Every command's help teaches by examples, which the command takes as they are."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

import click
import pytest
from click.testing import CliRunner

from tidelog.cli.examples import EXAMPLES
from tidelog.cli.root import cli


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
    # The file of an example does not exist here, and nothing of it counts.
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
