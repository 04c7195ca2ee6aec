"""Shells complete Tidelog's commands by the script that `tidelog completion` prints."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from tidelog.cli.root import cli

PROGRAMS = Path(sys.executable).parent


def in_bash(typed: list[str]) -> list[str]:
    """What bash offers for the last of the words typed."""
    words = " ".join(f"'{word}'" for word in typed)
    script = f"""
        eval "$(tidelog completion bash)"
        COMP_WORDS=({words})
        COMP_CWORD={len(typed) - 1}
        _tidelog_completion tidelog
        printf '%s\\n' "${{COMPREPLY[@]}}"
    """
    done = subprocess.run(
        ["bash", "--norc", "-c", script],
        env=os.environ | {"PATH": f"{PROGRAMS}{os.pathsep}{os.environ['PATH']}"},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return done.stdout.split()


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        (["tidelog", "comp"], ["completion"]),
        (["tidelog", "topics", "cre"], ["create"]),
        (["tidelog", "topics", "create", "--part"], ["--partitions"]),
        (["tidelog", "consume", "flights", "--format", "j"], ["json"]),
    ],
)
def test_bash_completes_commands_options_and_choices(typed: list[str], offered: list[str]) -> None:
    assert in_bash(typed) == offered


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_has_a_script_that_asks_tidelog(shell: str) -> None:
    done = CliRunner().invoke(cli, ["completion", shell])
    assert done.exit_code == 0
    assert f"_TIDELOG_COMPLETE={shell}_complete" in done.output


def test_an_unknown_shell_is_refused_with_a_list_of_the_known_ones() -> None:
    done = CliRunner().invoke(cli, ["completion", "tcsh"])
    assert done.exit_code == 2
    assert "'bash', 'zsh', 'fish'" in done.output
