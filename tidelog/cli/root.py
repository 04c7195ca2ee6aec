"""The command groups, and the mapping of errors to messages and exit codes."""

from __future__ import annotations

import errno
import json
import os
import sys
from typing import Final

import click
from click.shell_completion import CompletionItem

import tidelog
from tidelog.cli.examples import add_examples
from tidelog.cli.exits import INCONSISTENT, INTERRUPTED, REFUSED, UNREACHABLE, USAGE
from tidelog.cli.log_options import add_log_options
from tidelog.crash_points import NO_CRASH_POINTS, CrashPoints
from tidelog.errors import (
    CorruptObject,
    InvalidConfiguration,
    TidelogError,
    Unreachable,
)
from tidelog.extras import imported, installation, is_installed
from tidelog.storage.object_store import StoreNotApplied, StoreOutcomeUnknown

CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 100}


COMMANDS: Final = {
    "server": "Run a broker on a store until SIGTERM or SIGINT.",
    "cluster": "Show the brokers of a cluster, drain them, and move partitions between them.",
    "topics": "Create, list, describe, alter, flush and delete topics.",
    "configs": "Show and change the settings of topics and brokers.",
    "groups": "List, describe, move and delete consumer groups.",
    "acls": "List, add and remove access control rules.",
    "quotas": "List, set and remove quotas of clients.",
    "transactions": "List and describe transactions, find hanging ones, and end them.",
    "users": "List, add and remove the users of a cluster.",
    "produce": "Send each line of standard input to TOPIC as a record; returns when all are"
    " durable.",
    "consume": "Print the records of TOPIC as they arrive: partitions in turn, each in order.",
    "bench": "Measure how fast a topic is written and read, as Kafka's performance tools do.",
    "bucket": "Create, check, copy and repair the bucket of a cluster.",
    "fsck": "Prove a bucket consistent, also while brokers run; nothing is changed.",
    "inspect": "Print the content of the object at KEY, with every checksum verified.",
    "doctor": "Check a store, its cluster and this machine; each line has a verdict and the"
    " remedy.",
    "completion": "Print the script that completes commands, options and choices in SHELL.",
    "dev": "Run brokers and their store on this machine, for development, until Ctrl-C.",
}
"""The commands with their summaries, so that the list of commands imports none of them."""
MODULES: Final = {name: f"tidelog.cli.commands.{name}" for name in COMMANDS} | {
    "dev": "tidelog.localstack.dev"
}
"""The commands' modules; each has an object of the command's name."""
EXTRAS_OF: Final = {"server": "broker"}
"""The extras without which a command does not start."""
NO_SPACE: Final = {errno.ENOSPC, errno.EDQUOT}


class _Commands(click.Group):
    """Imports a command's module only when it is called.

    No command waits for the imports of others, nor does the list of commands.
    """

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*COMMANDS, *super().list_commands(ctx)]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name in COMMANDS:
            try:
                module = imported(MODULES[cmd_name], f"tidelog {cmd_name}")
            except InvalidConfiguration as missing:
                return _not_installed(cmd_name, missing)
            command: click.Command = getattr(module, cmd_name)
        elif found := super().get_command(ctx, cmd_name):
            command = found
        else:
            return None
        add_examples(command, cmd_name)
        add_log_options(command, cmd_name)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        shown = self._listed_commands()
        width = formatter.width - 6 - max(map(len, shown))
        with formatter.section("Commands"):
            formatter.write_dl(
                [(name, each.get_short_help_str(width)) for name, each in shown.items()]
            )

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        return [
            CompletionItem(name, help=each.get_short_help_str())
            for name, each in self._listed_commands().items()
            if name.startswith(incomplete)
        ] + click.Command.shell_complete(self, ctx, incomplete)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(ctx, args)
        except click.NoSuchCommand as error:
            raise click.NoSuchCommand(
                error.command_name, possibilities=self.list_commands(ctx), ctx=ctx
            ) from None

    def _listed_commands(self) -> dict[str, click.Command]:
        """All commands; those of `COMMANDS` have a name and a help alone."""
        listed = {}
        for name, summary in COMMANDS.items():
            extra = EXTRAS_OF.get(name)
            if extra is not None and not is_installed(extra):
                summary = f"Not installed: {installation(extra)}."
            listed[name] = click.Command(name, help=summary)
        return listed | dict(self.commands)


def _not_installed(name: str, missing: InvalidConfiguration) -> click.Command:
    """A command that lacks an extra: with any arguments it fails and names the extra."""

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
        try:
            _run(crash_points)
        finally:
            _end_output()
    except OSError as error:
        if error.errno not in NO_SPACE:
            raise
        _drop_output()
        where = "" if error.filename is None else f": {error.filename}"
        why = f"{error.strerror}{where}; free some, and run the command again"
        print(f"tidelog: {why}", file=sys.stderr)
        sys.exit(REFUSED)


def _run(crash_points: CrashPoints) -> None:
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
        sys.exit(INTERRUPTED)
    except TidelogError as error:
        said = "; ".join([str(error), *getattr(error, "__notes__", ())])
        print(f"tidelog: {said}", file=sys.stderr)
        sys.exit(_code(error))


def _end_output() -> None:
    """Write out the buffered output. A reader that has gone does not change the exit code."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        _drop_output()


def _drop_output() -> None:
    # Python writes it out again at its end: it would show the error and exit with 120.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _code(error: TidelogError) -> int:
    if isinstance(error, InvalidConfiguration):
        return USAGE
    if isinstance(error, Unreachable | StoreNotApplied | StoreOutcomeUnknown):
        return UNREACHABLE
    if isinstance(error, CorruptObject):
        return INCONSISTENT
    return REFUSED
