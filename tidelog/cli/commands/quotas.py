"""`tidelog quotas`: lists, sets and removes quotas of clients."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import partial, reduce
from typing import Any, TypeVar

import click

from tidelog.cli.address import Bootstrap
from tidelog.cli.assignments import assignments_of
from tidelog.cli.broker_client import bootstrap_option, json_option, with_client
from tidelog.cli.table import shown_table
from tidelog.client.admin.quotas import DEFAULT, LimitedClient, alter_quotas, describe_quotas
from tidelog.errors import Refused

F = TypeVar("F", bound=Callable[..., Any])


def _client_options(command: F) -> F:
    options = (
        click.option("--user", metavar="NAME", help=f"A user; '{DEFAULT}' for all others."),
        click.option("--client-id", metavar="NAME", help=f"A client id; '{DEFAULT}' likewise."),
        click.option("--ip", metavar="ADDRESS", help=f"An address; '{DEFAULT}' likewise."),
    )
    return reduce(lambda found, option: option(found), reversed(options), command)


def _limited(user: str | None, client_id: str | None, ip: str | None) -> LimitedClient:
    """The client that the options name. Raises UsageError if they name none."""
    found = LimitedClient(user, client_id, ip)
    if found == LimitedClient():
        raise click.UsageError("Name a client: --user, --client-id, both of them, or --ip")
    if ip is not None and found != LimitedClient(ip=ip):
        raise click.UsageError("--ip stands alone: addresses have quotas of their own")
    return found


@click.group()
def quotas() -> None:
    """List, set and remove quotas of clients."""


@quotas.command("list")
@_client_options
@bootstrap_option
@json_option
def list_(
    user: str | None,
    client_id: str | None,
    ip: str | None,
    bootstrap: Bootstrap,
    as_json: bool,
) -> None:
    """List the quotas, all or those of clients with these names."""
    chosen = LimitedClient(user, client_id, ip)
    _show(with_client(bootstrap, partial(describe_quotas, chosen=chosen)), as_json)


@quotas.command("set")
@click.argument("assignments", nargs=-1, required=True, metavar="NAME=VALUE...")
@_client_options
@bootstrap_option
@json_option
def set_(
    assignments: tuple[str, ...],
    user: str | None,
    client_id: str | None,
    ip: str | None,
    bootstrap: Bootstrap,
    as_json: bool,
) -> None:
    """Set quotas, as producer_byte_rate=1048576; the client's others stay."""
    limited = _limited(user, client_id, ip)
    pairs = assignments_of(assignments, "NAME=VALUE")
    values = {name: _number(name, text) for name, text in pairs.items()}
    with_client(bootstrap, partial(alter_quotas, limited=limited, changes=values))
    _show({limited: values}, as_json)


@quotas.command()
@click.argument("names", nargs=-1, metavar="[NAME]...")
@_client_options
@bootstrap_option
@json_option
def remove(
    names: tuple[str, ...],
    user: str | None,
    client_id: str | None,
    ip: str | None,
    bootstrap: Bootstrap,
    as_json: bool,
) -> None:
    """Remove quotas of a client by their names; without a name, all that it has."""
    limited = _limited(user, client_id, ip)
    found = with_client(bootstrap, partial(describe_quotas, chosen=limited)).get(limited, {})
    if missing := [name for name in names if name not in found]:
        raise Refused(f"{limited} has no quota {', '.join(missing)}")
    gone = {name: found[name] for name in names or found}
    if gone:
        changes = dict.fromkeys(gone)
        with_client(bootstrap, partial(alter_quotas, limited=limited, changes=changes))
    _show({limited: gone}, as_json)


def _number(name: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise click.BadParameter(
            f"{name}: {text!r} is not a number", param_hint="NAME=VALUE"
        ) from None


def _show(found: Mapping[LimitedClient, Mapping[str, float]], as_json: bool) -> None:
    facts = [
        {**limited._asdict(), "quota": name, "value": int(value) if value % 1 == 0 else value}
        for limited, values in found.items()
        for name, value in values.items()
    ]
    if as_json:
        print(json.dumps(facts))
        return
    rows = [["-" if each is None else each for each in row.values()] for row in facts]
    print(shown_table(("user", "client-id", "ip", "quota", "value"), rows))
