"""`tidelog topics`: create, list, describe, alter, flush and delete topics."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import click

from tidelog.cli.address import Bootstrap
from tidelog.cli.assignments import assignments_of
from tidelog.cli.broker_client import bootstrap_option, json_option, offset_at, with_client
from tidelog.cli.commands.configs import change
from tidelog.cli.table import show_deleted, shown_table
from tidelog.client.admin.administration import (
    NewTopic,
    add_partitions,
    create_topics,
    delete_topics,
    describe_topics,
    list_topics,
    topic_configs,
    topic_holder,
)
from tidelog.client.admin.flush import FlushedPartition, flush_topic
from tidelog.client.errors import RequestRefused, raise_together
from tidelog.client.metadata import TopicMetadata
from tidelog.client.operations import EARLIEST, LATEST
from tidelog.client.pool import Client


@click.group()
def topics() -> None:
    """Create, list, describe, alter, flush and delete topics."""


@topics.command()
@click.argument("name")
@click.option("--partitions", type=click.IntRange(1), default=None, help="Default: the broker's.")
@click.option("--replication-factor", type=int, default=-1, help="Accepted; the store replicates.")
@click.option("--config", "configs", multiple=True, metavar="NAME=VALUE", help="A topic setting.")
@bootstrap_option
@json_option
def create(
    name: str,
    partitions: int | None,
    replication_factor: int,
    configs: tuple[str, ...],
    bootstrap: Bootstrap,
    as_json: bool,
) -> None:
    """Create the topic NAME."""
    topic = NewTopic(
        name, partitions or -1, replication_factor, assignments_of(configs, "--config")
    )

    async def run(client: Client) -> TopicMetadata:
        _raise_refusals(await create_topics(client, [topic]))
        return await client.topic(name)

    made = with_client(bootstrap, run)
    if as_json:
        print(json.dumps(_facts(made)))
    else:
        print(f"created topic {name} with {len(made.partitions)} partitions")


@topics.command("list")
@bootstrap_option
@json_option
def list_(bootstrap: Bootstrap, as_json: bool) -> None:
    """List the topics and their numbers of partitions."""
    found = with_client(bootstrap, list_topics)
    if as_json:
        print(json.dumps([_facts(topic) for topic in found]))
        return
    print(
        shown_table(["topic", "partitions"], [(each.name, len(each.partitions)) for each in found])
    )


@dataclass(frozen=True, slots=True)
class Description:
    """All that `describe` shows."""

    topic: TopicMetadata
    configs: dict[str, str | None]
    offsets: dict[int, tuple[int, int]]


@topics.command()
@click.argument("name")
@bootstrap_option
@json_option
def describe(name: str, bootstrap: Bootstrap, as_json: bool) -> None:
    """Show partitions, offsets and altered settings of the topic NAME."""
    found = with_client(bootstrap, lambda client: _describe(client, name))
    if as_json:
        facts = _facts(found.topic) | {"configs": found.configs}
        for partition in facts["partitions"]:
            start, end = found.offsets[partition["partition"]]
            partition |= {"log_start": start, "high_watermark": end}
        print(json.dumps(facts))
        return
    print(f"topic {name}  id {found.topic.topic_id}  partitions {len(found.topic.partitions)}")
    for setting, value in sorted(found.configs.items()):
        print(f"  {setting}={value}")
    for number, partition_ in sorted(found.topic.partitions.items()):
        start, end = found.offsets[number]
        print(f"  partition {number}  leader {partition_.leader_id}  offsets {start} to {end}")


async def _describe(client: Client, name: str) -> Description:
    topic = (await describe_topics(client, [name]))[name]
    if isinstance(topic, RequestRefused):
        raise topic
    configs = {
        config.name: config.value
        for config in await topic_configs(client, name)
        if config.config_source == TOPIC_SOURCE
    }
    offsets = {}
    for number in topic.partitions:
        start = await offset_at(client, name, number, EARLIEST)
        offsets[number] = (start, await offset_at(client, name, number, LATEST))
    return Description(topic, configs, offsets)


@topics.command()
@click.argument("name")
@click.argument("assignments", nargs=-1, metavar="[SETTING=VALUE]...")
@click.option("--unset", multiple=True, metavar="SETTING", help="Back to the default.")
@bootstrap_option
@json_option
def alter(
    name: str,
    assignments: tuple[str, ...],
    unset: tuple[str, ...],
    bootstrap: Bootstrap,
    as_json: bool,
) -> None:
    """Change settings of the topic NAME; the others stay."""
    change(topic_holder(name), assignments, unset, bootstrap, as_json)


@topics.command("add-partitions")
@click.argument("name")
@click.argument("count", type=click.IntRange(1))
@bootstrap_option
@json_option
def add_partitions_(name: str, count: int, bootstrap: Bootstrap, as_json: bool) -> None:
    """Raise the number of partitions of the topic NAME to COUNT.

    New records of a key may go to another partition than its older ones.
    """
    with_client(bootstrap, lambda client: add_partitions(client, name, count))
    if as_json:
        print(json.dumps({"topic": name, "partitions": count}))
    else:
        print(f"topic {name} has {count} partitions")


@topics.command()
@click.argument("names", nargs=-1, required=True)
@bootstrap_option
@json_option
def delete(names: tuple[str, ...], bootstrap: Bootstrap, as_json: bool) -> None:
    """Delete the topics NAMES and all of their records."""
    # A second deletion of a name would be refused, and hide that the first one was done.
    wanted = list(dict.fromkeys(names))
    refusals = with_client(bootstrap, lambda client: delete_topics(client, wanted))
    show_deleted("topic", [name for name in wanted if refusals.get(name) is None], as_json)
    raise_together([each for each in refusals.values() if each is not None])


@topics.command()
@click.argument("name")
@click.option(
    "--timeout",
    "timeout_seconds",
    type=click.IntRange(1, 86_400),
    default=300,
    show_default=True,
    help="The limit in seconds.",
)
@bootstrap_option
@json_option
def flush(name: str, timeout_seconds: int, bootstrap: Bootstrap, as_json: bool) -> None:
    """Bring the records of the topic NAME into its table.

    Returns when the table has all committed records, and all written outside of transactions. Names
    the offset at which an open transaction holds back the rest.
    """
    found = with_client(bootstrap, lambda client: flush_topic(client, name, timeout_seconds * 1000))
    if as_json:
        print(json.dumps({"topic": name, "partitions": [_flush_facts(each) for each in found]}))
    else:
        print("\n".join(map(_flush_text, found)))
    _raise_refusals({str(each.partition): each.refusal for each in found})


def _flush_facts(flushed: FlushedPartition) -> dict[str, Any]:
    return {
        "partition": flushed.partition,
        "table_next": flushed.table_next,
        "high_watermark": flushed.high_watermark,
        "held_at": flushed.held_at,
        "held_by": flushed.held_by,
        "error": None if flushed.refusal is None else str(flushed.refusal),
    }


def _flush_text(flushed: FlushedPartition) -> str:
    text = f"partition {flushed.partition}  in the table up to offset {flushed.table_next}"
    if flushed.refusal is not None:
        text += "  incomplete"
    if flushed.held_at is not None:
        text += f"  held back at offset {flushed.held_at} by an open transaction"
        text += "" if flushed.held_by is None else f" of producer {flushed.held_by}"
    return text


TOPIC_SOURCE = 1
"""DescribeConfigs' source of a setting of the topic itself."""


def _raise_refusals(refusals: Mapping[str, RequestRefused | None]) -> None:
    for refusal in refusals.values():
        if refusal is not None:
            raise refusal


def _facts(topic: TopicMetadata) -> dict[str, Any]:
    return {
        "name": topic.name,
        "id": str(topic.topic_id),
        "internal": topic.internal,
        "partitions": [
            {"partition": number, "leader": each.leader_id, "leader_epoch": each.leader_epoch}
            for number, each in sorted(topic.partitions.items())
        ],
    }
