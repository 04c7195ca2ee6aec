"""The command groups, and the mapping of errors to messages and exit codes."""

from __future__ import annotations

import importlib
import json
import sys

import click

import tidelog
from tidelog.cli.exits import INCONSISTENT, REFUSED, UNREACHABLE, USAGE
from tidelog.crash_points import NO_CRASH_POINTS, CrashPoints
from tidelog.errors import (
    CorruptObject,
    InvalidConfiguration,
    TidelogError,
    Unreachable,
)
from tidelog.storage.object_store import StoreNotApplied, StoreOutcomeUnknown

CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 100}


COMMANDS = (
    "server",
    "cluster",
    "topics",
    "groups",
    "transactions",
    "produce",
    "consume",
    "bucket",
    "fsck",
    "inspect",
)
"""The modules in `commands`; each has an object of the same name."""


class _Commands(click.Group):
    """Imports a command's module only when it is called, so that no command waits for others."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*COMMANDS, *super().list_commands(ctx)]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return super().get_command(ctx, cmd_name)
        module = importlib.import_module(f"tidelog.cli.commands.{cmd_name}")
        command: click.Command = getattr(module, cmd_name)
        return command


@click.group(cls=_Commands, context_settings=CONTEXT)
def cli() -> None:
    """Tidelog: a transactional log on object storage that speaks the Kafka protocol."""


@cli.command()
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def version(as_json: bool) -> None:
    """Print the version."""
    number = tidelog.__version__
    print(json.dumps({"version": number}) if as_json else f"tidelog {number}")


def run(crash_points: CrashPoints = NO_CRASH_POINTS) -> None:
    """Run the command line and exit with 0 done, 1 refused or failed, 2 usage, 3 not reachable,
    4 inconsistent.

    `crash_points`: the points at which a broker of this process dies, for tests. A command gets
    them as click's context object.
    """
    try:
        cli.main(standalone_mode=False, obj=crash_points)
    except click.UsageError as error:
        error.show()
        sys.exit(USAGE)
    except click.ClickException as error:
        error.show()
        sys.exit(REFUSED)
    except click.exceptions.Exit as exit_:
        sys.exit(exit_.exit_code)
    except (click.Abort, KeyboardInterrupt):
        sys.exit(130)
    except BrokenPipeError:
        # The reader of the output has closed it.
        sys.stderr.close()
        sys.exit(0)
    except TidelogError as error:
        said = "; ".join([str(error), *getattr(error, "__notes__", ())])
        print(f"tidelog: {said}", file=sys.stderr)
        sys.exit(_code(error))


def _code(error: TidelogError) -> int:
    if isinstance(error, InvalidConfiguration):
        return USAGE
    if isinstance(error, Unreachable | StoreNotApplied | StoreOutcomeUnknown):
        return UNREACHABLE
    if isinstance(error, CorruptObject):
        return INCONSISTENT
    return REFUSED
