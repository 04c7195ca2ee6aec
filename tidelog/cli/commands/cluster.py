"""`tidelog cluster`: the brokers of a cluster, and the partitions that each one leads."""

from __future__ import annotations

import json
from dataclasses import dataclass

import click

from tidelog.cli.address import Bootstrap
from tidelog.cli.broker_client import bootstrap_option, json_option, with_client
from tidelog.client.admin.administration import (
    cluster_features,
    describe_cluster,
    drain_broker,
    draining_brokers,
    list_topics,
    move_partition,
    rebalance_brokers,
)
from tidelog.client.errors import RequestRefused
from tidelog.client.pool import Client
from tidelog.clock import SystemClock
from tidelog.errors import Refused
from tidelog.protocol.error_codes import ErrorCode
from tidelog.protocol.schemas.cluster.metadata import DescribeClusterBroker

ATTEMPTS_MAX = 20
RETRY_SECONDS = 0.5
NAMED_MAX = 10
"""Partitions that a message names."""
ROUNDS_MAX = 100
"""Rounds of a rebalance; each moves hundreds of partitions of each broker."""


class NotDrained(Refused):
    """The broker still leads partitions. It goes on giving them away unless it has ended."""


class NotBalanced(Refused):
    """A broker did not give its surplus away."""


@click.group()
def cluster() -> None:
    """Show the brokers of a cluster, drain them, and move partitions between them."""


@dataclass(frozen=True, slots=True)
class BrokerShare:
    """A broker with the number of partitions that it leads."""

    broker: DescribeClusterBroker
    partitions: int
    draining: bool

    @property
    def address(self) -> str:
        """The address for clients."""
        return f"{self.broker.host}:{self.broker.port}"


@cluster.command()
@bootstrap_option
@json_option
def describe(bootstrap: Bootstrap, as_json: bool) -> None:
    """Show the live brokers and how many partitions each one leads."""
    cluster_id, shares = with_client(bootstrap, _describe)
    if as_json:
        brokers = [
            {
                "broker": each.broker.broker_id,
                "address": each.address,
                "rack": each.broker.rack,
                "partitions": each.partitions,
                "draining": each.draining,
            }
            for each in shares
        ]
        print(json.dumps({"cluster": cluster_id, "brokers": brokers}))
        return
    print(f"cluster {cluster_id}  brokers {len(shares)}")
    for each in shares:
        rack = "" if each.broker.rack is None else f"  rack {each.broker.rack}"
        drain = "  draining" if each.draining else ""
        print(
            f"  broker {each.broker.broker_id}  {each.address}{rack}"
            f"  partitions {each.partitions}{drain}"
        )


async def _describe(client: Client) -> tuple[str, list[BrokerShare]]:
    found = await describe_cluster(client)
    leaders = [
        partition.leader_id
        for topic in await list_topics(client)
        for partition in topic.partitions.values()
    ]
    brokers = sorted(found.brokers, key=lambda broker: broker.broker_id)
    draining = await draining_brokers(client)
    return found.cluster_id, [
        BrokerShare(each, leaders.count(each.broker_id), each.broker_id in draining)
        for each in brokers
    ]


async def _move(client: Client, topic: str, partition: int, broker: int) -> None:
    """Move, again for a while if the partition's owner has just changed."""
    for _ in range(ATTEMPTS_MAX - 1):
        try:
            return await move_partition(client, topic, partition, broker)
        except RequestRefused as refused:
            if refused.code != ErrorCode.NOT_LEADER_OR_FOLLOWER:
                raise
        await SystemClock().sleep(RETRY_SECONDS)
    return await move_partition(client, topic, partition, broker)


@cluster.command()
@click.argument("topic")
@click.argument("partition", type=click.IntRange(0))
@click.argument("broker", type=click.IntRange(0))
@bootstrap_option
@json_option
def move(topic: str, partition: int, broker: int, bootstrap: Bootstrap, as_json: bool) -> None:
    """Move PARTITION of TOPIC to BROKER. No data moves, only who serves it.

    The cluster may move it again when it balances its brokers.
    """
    with_client(bootstrap, lambda client: _move(client, topic, partition, broker))
    if as_json:
        print(json.dumps({"topic": topic, "partition": partition, "broker": broker}))
    else:
        print(f"partition {topic}-{partition} is with broker {broker}")


@cluster.command()
@click.argument("broker", type=click.IntRange(0))
@click.option("--undo", is_flag=True, help="End the drain: the broker takes partitions again.")
@click.option(
    "--timeout",
    "timeout_seconds",
    type=click.FloatRange(0),
    default=300.0,
    show_default=True,
    help="Seconds to wait until the broker leads nothing.",
)
@bootstrap_option
@json_option
def drain(
    broker: int,
    undo: bool,
    timeout_seconds: float,
    bootstrap: Bootstrap,
    as_json: bool,
) -> None:
    """Let BROKER give all of its partitions away. It runs on and gets no new ones.

    That holds until the broker ends, or until --undo. The command waits until the broker leads
    nothing.
    """

    async def change(client: Client) -> None:
        await drain_broker(client, broker, draining=not undo)
        if not undo:
            await _until_drained(client, broker, timeout_seconds)

    with_client(bootstrap, change)
    if as_json:
        print(json.dumps({"broker": broker, "draining": not undo}))
    elif undo:
        print(f"broker {broker} takes partitions again")
    else:
        print(f"broker {broker} leads no partitions and gets no new ones")


async def _until_drained(client: Client, broker: int, timeout_seconds: float) -> None:
    clock = SystemClock()
    deadline = clock.monotonic() + timeout_seconds
    shown = -1
    while left := await _led_by(client, broker):
        alive = {each.broker_id for each in (await describe_cluster(client)).brokers}
        if broker not in alive:
            raise NotDrained(
                f"broker {broker} has ended while it led {_named(left)};"
                " the other brokers take them over"
            )
        if clock.monotonic() >= deadline:
            raise NotDrained(
                f"after {timeout_seconds:g} s broker {broker} still leads {_named(left)}; it goes"
                f" on giving them away. Repeat the command to wait longer. `tidelog topics"
                " describe` and the broker's log name partitions that cannot be served"
            )
        if len(left) != shown:
            shown = len(left)
            click.echo(f"broker {broker} leads {shown} partitions", err=True)
        await clock.sleep(RETRY_SECONDS)


async def _led_by(client: Client, broker: int) -> list[str]:
    return [
        f"{topic.name}-{number}"
        for topic in await list_topics(client)
        for number, partition in topic.partitions.items()
        if partition.leader_id == broker
    ]


def _named(partitions: list[str]) -> str:
    more = len(partitions) - NAMED_MAX
    names = ", ".join(partitions[:NAMED_MAX]) + (f" and {more} more" if more > 0 else "")
    return f"{len(partitions)} partitions: {names}"


@cluster.command()
@bootstrap_option
@json_option
def rebalance(bootstrap: Bootstrap, as_json: bool) -> None:
    """Give every broker its fair share of the partitions now. No data moves.

    Brokers do that by themselves at intervals, for differences above a tolerance.
    """
    given = with_client(bootstrap, _rebalance)
    if as_json:
        print(json.dumps({"moved": given}))
    else:
        print(f"{given} partitions moved")


async def _rebalance(client: Client) -> int:
    """Ask all brokers until none has more than its share; returns the number of moves."""
    total = 0
    for _ in range(ROUNDS_MAX):
        results = await rebalance_brokers(client)
        total += (given := sum(each.given for each in results))
        for each in results:
            if each.error_code:
                why = RequestRefused(
                    f"broker {each.broker_id}", each.error_code, each.error_message
                )
                raise NotBalanced(
                    f"{why}; {total} partitions moved. Repeat the command when all brokers answer"
                )
        if given == 0:
            break
        click.echo(f"{total} partitions moved", err=True)
    return total


@cluster.group()
def features() -> None:
    """Show what the brokers' releases can do, and let the cluster use it."""


@features.command(name="describe")
@bootstrap_option
@json_option
def describe_features(bootstrap: Bootstrap, as_json: bool) -> None:
    """Show the cluster's level, and the version of each live broker.

    The cluster writes nothing that a broker of its level cannot read.
    """
    found = with_client(bootstrap, cluster_features)
    if as_json:
        print(
            json.dumps(
                {
                    "level": found.level,
                    "highest": found.highest,
                    "brokers": {str(each.broker_id): each.version for each in found.brokers},
                }
            )
        )
        return
    print(f"level {found.level}  highest {found.highest}")
    for each in sorted(found.brokers, key=lambda broker: broker.broker_id):
        print(f"  broker {each.broker_id}  version {each.version}")


@features.command()
@click.option("--level", type=click.IntRange(1), help="Default: the highest that all brokers have.")
@bootstrap_option
@json_option
def upgrade(level: int | None, bootstrap: Bootstrap, as_json: bool) -> None:
    """Raise the cluster's level. After that no broker of a lower version can join.

    There is no way back. All live brokers must have the level's version.
    """

    async def raise_level(client: Client) -> int:
        wanted = level if level is not None else (await cluster_features(client)).highest
        return (await cluster_features(client, raise_to=wanted)).level

    reached = with_client(bootstrap, raise_level)
    if as_json:
        print(json.dumps({"level": reached}))
    else:
        print(f"the cluster has level {reached}")
