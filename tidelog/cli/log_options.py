"""`--log-level` and `--log-format`, which every command takes."""

from __future__ import annotations

import sys
from functools import wraps
from typing import Any, Final

import click

from tidelog.cli.log_format import FORMATTERS, LEVELS, logging_to

LEVEL: Final = "log_level"
FORMAT: Final = "log_format"
"""The two parameters in a command's context."""
BROKERS: Final = ("server", "dev")
"""Commands that run brokers, whose usual lines operators want to see."""


def add_log_options(command: click.Command, name: str) -> None:
    """Make a command, or all of a group, take the two options and log by them while it runs.

    `name` is the command's first word behind `tidelog`.
    """
    if isinstance(command, click.Group):
        for part in command.commands.values():
            add_log_options(part, name)
        return
    body = command.callback
    if body is None or any(each.name == LEVEL for each in command.params):
        return

    @wraps(body)
    def logged(**arguments: Any) -> Any:
        level, form = arguments.pop(LEVEL), arguments.pop(FORMAT)
        with logging_to(sys.stderr, level, form):
            return body(**arguments)

    command.callback = logged
    command.params += [
        click.Option(
            ["--log-level"],
            type=click.Choice(LEVELS),
            envvar="TIDELOG_LOG_LEVEL",
            default="info" if name in BROKERS else "warning",
            show_default=True,
            help="The least urgent lines of the log, which goes to stderr.",
        ),
        click.Option(
            ["--log-format"],
            type=click.Choice(list(FORMATTERS)),
            envvar="TIDELOG_LOG_FORMAT",
            default="text",
            show_default=True,
            help="json: one object a line.",
        ),
    ]
