"""The command groups, and how a command's errors become messages and exit codes."""

from __future__ import annotations

import json
import sys

import click

import tidelog
from tidelog.cli.bucket import bucket
from tidelog.cli.consume import consume
from tidelog.cli.exits import INCONSISTENT, REFUSED, UNREACHABLE, USAGE
from tidelog.cli.fsck import fsck
from tidelog.cli.groups import groups
from tidelog.cli.inspect import inspect
from tidelog.cli.produce import produce
from tidelog.cli.server import server
from tidelog.cli.topics import topics
from tidelog.cli.transactions import transactions
from tidelog.errors import (
    CorruptObject,
    InvalidConfiguration,
    TidelogError,
    Unreachable,
)
from tidelog.storage.object_store import StoreNotApplied, StoreOutcomeUnknown

CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 100}


@click.group(context_settings=CONTEXT)
def cli() -> None:
    """Tidelog: a transactional log on object storage that speaks the Kafka protocol."""


@cli.command()
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def version(as_json: bool) -> None:
    """Print the version."""
    number = tidelog.__version__
    print(json.dumps({"version": number}) if as_json else f"tidelog {number}")


for command in (server, topics, groups, transactions, produce, consume, bucket, fsck, inspect):
    cli.add_command(command)


def run() -> None:
    """Run the command line and exit with 0 done, 1 refused or failed, 2 usage, 3 not reachable,
    4 inconsistent."""
    try:
        cli.main(standalone_mode=False)
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
        # Whoever read our output has had enough; nothing is left to say.
        sys.stderr.close()
        sys.exit(0)
    except TidelogError as error:
        print(f"tidelog: {error}", file=sys.stderr)
        sys.exit(_code(error))


def _code(error: TidelogError) -> int:
    if isinstance(error, InvalidConfiguration):
        return USAGE
    if isinstance(error, Unreachable | StoreNotApplied | StoreOutcomeUnknown):
        return UNREACHABLE
    if isinstance(error, CorruptObject):
        return INCONSISTENT
    return REFUSED
