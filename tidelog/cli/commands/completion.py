"""`tidelog completion`: the shell's script that completes commands and options."""

from __future__ import annotations

from typing import Final

import click
from click.shell_completion import get_completion_class

PROGRAM: Final = "tidelog"
VARIABLE: Final = "_TIDELOG_COMPLETE"
"""By this variable the script asks `tidelog` for completions: click's name for the program."""


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print the script that completes commands, options and choices in SHELL.

    Bash needs its package bash-completion, or `eval "$(tidelog completion bash)"` in ~/.bashrc. For
    zsh, put the same with zsh into ~/.zshrc, behind compinit.
    """
    found = get_completion_class(shell)
    assert found is not None
    print(found(context.find_root().command, {}, PROGRAM, VARIABLE).source())
