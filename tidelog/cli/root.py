"""The command groups, and the mapping of errors to messages and exit codes."""

from __future__ import annotations

import json
import sys

import click

import tidelog
from tidelog.cli.examples import add_examples
from tidelog.cli.exits import INCONSISTENT, REFUSED, UNREACHABLE, USAGE
from tidelog.crash_points import NO_CRASH_POINTS, CrashPoints
from tidelog.errors import (
    CorruptObject,
    InvalidConfiguration,
    TidelogError,
    Unreachable,
)
from tidelog.extras import imported
from tidelog.storage.object_store import StoreNotApplied, StoreOutcomeUnknown

CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 100}


COMMANDS = {
    name: f"tidelog.cli.commands.{name}"
    for name in (
        "server",
        "cluster",
        "topics",
        "configs",
        "groups",
        "acls",
        "quotas",
        "transactions",
        "users",
        "produce",
        "consume",
        "bench",
        "bucket",
        "fsck",
        "inspect",
        "doctor",
        "completion",
    )
} | {"dev": "tidelog.localstack.dev"}
"""The commands' modules; each has an object of the command's name."""


class _Commands(click.Group):
    """Imports a command's module only when it is called, so that no command waits for others."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*COMMANDS, *super().list_commands(ctx)]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return super().get_command(ctx, cmd_name)
        try:
            module = imported(COMMANDS[cmd_name], f"tidelog {cmd_name}")
        except InvalidConfiguration as missing:
            return _not_installed(cmd_name, missing)
        command: click.Command = getattr(module, cmd_name)
        add_examples(command, cmd_name)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(ctx, args)
        except click.NoSuchCommand as error:
            raise click.NoSuchCommand(
                error.command_name, possibilities=self.list_commands(ctx), ctx=ctx
            ) from None


def _not_installed(name: str, missing: InvalidConfiguration) -> click.Command:
    """A command that lacks an extra: it tells so, whatever its arguments are."""

    def refuse(**_: object) -> None:
        raise missing

    given = click.Argument(["given"], nargs=-1, type=click.UNPROCESSED)
    return click.Command(
        name,
        {"ignore_unknown_options": True},
        callback=refuse,
        params=[given],
        help=f"Not installed: {missing}.",
        add_help_option=False,
    )


@click.group(cls=_Commands, context_settings=CONTEXT)
@click.version_option(tidelog.__version__, message="tidelog %(version)s")
def cli() -> None:
    """Tidelog: a transactional log on object storage that speaks the Kafka protocol.

    \b
    Try it, in two terminals:
      tidelog dev
      tidelog topics create flights --partitions 4
      echo 'EWR to IAH' | tidelog produce flights
      tidelog consume flights --until-end

    Commands find a broker by --bootstrap or TIDELOG_BOOTSTRAP, a store by --store or TIDELOG_STORE.
    `tidelog COMMAND --help` shows options and examples.
    """


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
