"""`tidelog configs`: the settings of topics and brokers."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, Final

import click

from tidelog.cli.address import Bootstrap
from tidelog.cli.assignments import assignments_of
from tidelog.cli.broker_client import bootstrap_option, json_option, with_client
from tidelog.cli.table import shown_table
from tidelog.client.admin.administration import (
    ConfigHolder,
    alter_configs,
    broker_holder,
    holder_configs,
    topic_holder,
)
from tidelog.protocol.schemas.cluster.configs import DescribeConfigsResourceResult

SOURCES: Final = {
    1: "topic",
    2: "broker",
    3: "all brokers",
    4: "start",
    5: "default",
}
"""DescribeConfigs' sources of a value."""
DEFAULT_SOURCE: Final = 5

F = Callable[..., None]


def _holder_options(command: F) -> F:
    for option in (
        click.option("--brokers", is_flag=True, help="Settings of all brokers."),
        click.option("--broker", type=click.IntRange(0), default=None, metavar="ID"),
        click.option("--topic", default=None, metavar="NAME"),
    ):
        command = option(command)
    return command


def _holder(topic: str | None, broker: int | None, brokers: bool) -> ConfigHolder:
    if (topic is not None) + (broker is not None) + brokers != 1:
        raise click.UsageError("give one of --topic NAME, --broker ID, --brokers")
    return topic_holder(topic) if topic is not None else broker_holder(broker)


@click.group()
def configs() -> None:
    """Show and change the settings of topics and brokers."""


@configs.command("list")
@_holder_options
@click.option("--all", "with_defaults", is_flag=True, help="Also those at their defaults.")
@bootstrap_option
@json_option
def list_(
    topic: str | None,
    broker: int | None,
    brokers: bool,
    with_defaults: bool,
    bootstrap: Bootstrap,
    as_json: bool,
) -> None:
    """List settings, their values and where these come from."""
    holder = _holder(topic, broker, brokers)
    found = with_client(bootstrap, lambda client: holder_configs(client, holder))
    rows = [each for each in found if with_defaults or each.config_source != DEFAULT_SOURCE]
    facts = [_facts(each) for each in sorted(rows, key=lambda each: each.name)]
    if as_json:
        print(json.dumps(facts))
        return
    print(shown_table(["name", "value", "source"], [list(each.values()) for each in facts]))


@configs.command()
@click.argument("assignments", nargs=-1, metavar="[NAME=VALUE]...")
@click.option("--unset", multiple=True, metavar="NAME", help="Back to the default.")
@_holder_options
@bootstrap_option
@json_option
def alter(
    assignments: tuple[str, ...],
    unset: tuple[str, ...],
    topic: str | None,
    broker: int | None,
    brokers: bool,
    bootstrap: Bootstrap,
    as_json: bool,
) -> None:
    """Change settings; the others stay. All of the changes are made, or none."""
    change(_holder(topic, broker, brokers), assignments, unset, bootstrap, as_json)


def change(
    holder: ConfigHolder,
    assignments: tuple[str, ...],
    unset: tuple[str, ...],
    bootstrap: Bootstrap,
    as_json: bool,
) -> None:
    """Change a holder's settings, and say so."""
    changes: Mapping[str, str | None] = {
        **assignments_of(assignments, "NAME=VALUE"),
        **dict.fromkeys(unset),
    }
    if not changes:
        raise click.UsageError("nothing to change: give NAME=VALUE or --unset NAME")
    with_client(bootstrap, lambda client: alter_configs(client, holder, changes))
    if as_json:
        print(json.dumps({"changed": changes}))
        return
    for name, value in changes.items():
        print(f"{holder.subject}: {name} {'unset' if value is None else f'is {value}'}")


def _facts(config: DescribeConfigsResourceResult) -> dict[str, Any]:
    value = "(hidden)" if config.is_sensitive else config.value
    return {
        "name": config.name,
        "value": "" if value is None else value,
        "source": SOURCES.get(config.config_source, str(config.config_source)),
    }
