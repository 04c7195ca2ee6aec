"""Shells complete Tidelog's commands by the script that `tidelog completion` prints."""

from __future__ import annotations

import os
import pty
import re
import select
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from tidelog.cli.root import cli

PROGRAMS = Path(sys.executable).parent
SECONDS_MAX = 120
TYPED = [
    (["tidelog", "comp"], "completion"),
    (["tidelog", "topics", "cre"], "create"),
    (["tidelog", "topics", "create", "--part"], "--partitions"),
    (["tidelog", "consume", "flights", "--format", "j"], "json"),
]
"""Typed words, and the completion of the last word."""
ZSHRC = """
autoload -Uz compinit
compinit -u -d "$ZDOTDIR/dump"
eval "$(tidelog completion zsh)"
show() { print -r -- "<<$BUFFER>>" }
zle -N show
bindkey '^T' show
print is set up
"""
"""The set-up of the command's help. Ctrl-T also prints the line that is edited."""


def environment(**variables: str) -> dict[str, str]:
    """This process's variables and others, with `tidelog` on the path."""
    path = f"{PROGRAMS}{os.pathsep}{os.environ['PATH']}"
    return {**os.environ, "PATH": path, **variables}


class Terminal:
    """An interactive program, and the keys that a user types into it."""

    def __init__(self, command: list[str], variables: dict[str, str]) -> None:
        self._keys, programs_end = pty.openpty()
        self._process = subprocess.Popen(
            command,
            env=variables,
            stdin=programs_end,
            stdout=programs_end,
            stderr=programs_end,
            start_new_session=True,
        )
        os.close(programs_end)
        self._shown = ""

    def type(self, keys: str) -> None:
        os.write(self._keys, keys.encode())

    def wait_for(self, pattern: str) -> re.Match[str]:
        """The next text on the terminal that matches this pattern."""
        while (found := re.search(pattern, self._shown)) is None:
            readable, _, _ = select.select([self._keys], [], [], SECONDS_MAX)
            assert readable, f"{pattern} does not come behind\n{self._shown}"
            self._shown += os.read(self._keys, 65_536).decode(errors="replace")
        self._shown = self._shown[found.end() :]
        return found

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._keys)


def in_bash(typed: list[str]) -> list[str]:
    """The words that bash offers for the last one typed."""
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
        env=environment(),
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return done.stdout.split()


@pytest.mark.parametrize(("typed", "offered"), TYPED)
def test_bash_completes_commands_options_and_choices(typed: list[str], offered: str) -> None:
    assert in_bash(typed) == [offered]


@pytest.mark.slow
def test_zsh_completes_commands_options_and_choices(
    require_tool: Callable[[str], str], tmp_path: Path
) -> None:
    (tmp_path / ".zshrc").write_text(ZSHRC)
    variables = environment(ZDOTDIR=str(tmp_path), HOME=str(tmp_path), TERM="dumb", COLUMNS="200")
    terminal = Terminal([require_tool("zsh"), "-d", "-i"], variables)
    try:
        terminal.wait_for("is set up")
        for typed, offered in TYPED:
            # Ctrl-U leaves an empty line for the next one.
            terminal.type(f"{' '.join(typed)}\t\x14")
            completed = terminal.wait_for(r"<<(tidelog .*?)>>")[1]
            terminal.type("\x15")
            assert completed.split() == [*typed[:-1], offered]
    finally:
        terminal.close()


@pytest.mark.slow
def test_fish_completes_commands_options_and_choices(
    require_tool: Callable[[str], str], tmp_path: Path
) -> None:
    for typed, offered in TYPED:
        script = f"tidelog completion fish | source; complete -C '{' '.join(typed)}'"
        done = subprocess.run(
            [require_tool("fish"), "--no-config", "-c", script],
            env=environment(HOME=str(tmp_path), XDG_CONFIG_HOME=str(tmp_path)),
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
        assert [line.split("\t")[0] for line in done.stdout.splitlines()] == [offered]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_has_a_script_that_asks_tidelog(shell: str) -> None:
    done = CliRunner().invoke(cli, ["completion", shell])
    assert done.exit_code == 0
    assert f"_TIDELOG_COMPLETE={shell}_complete" in done.output


def test_an_unknown_shell_is_refused_with_a_list_of_known_shells() -> None:
    done = CliRunner().invoke(cli, ["completion", "tcsh"])
    assert done.exit_code == 2
    assert "'bash', 'zsh', 'fish'" in done.output
