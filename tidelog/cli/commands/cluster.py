"""`tidelog cluster`: the brokers of a cluster, and the partitions that each one leads."""

from __future__ import annotations

import json
from dataclasses import dataclass

import click

from tidelog.cli.broker_client import bootstrap_option, json_option, with_client
from tidelog.client.administration import describe_cluster, list_topics, move_partition
from tidelog.client.errors import RequestRefused
from tidelog.client.pool import Client
from tidelog.clock import SystemClock
from tidelog.protocol.error_codes import ErrorCode
from tidelog.protocol.schemas.cluster.metadata import DescribeClusterBroker

ATTEMPTS_MAX = 20
RETRY_SECONDS = 0.5


@click.group()
def cluster() -> None:
    """Show the brokers of a cluster, and move partitions between them."""


@dataclass(frozen=True, slots=True)
class BrokerShare:
    """A broker with the number of partitions that it leads."""

    broker: DescribeClusterBroker
    partitions: int

    @property
    def address(self) -> str:
        """The address for clients."""
        return f"{self.broker.host}:{self.broker.port}"


@cluster.command()
@bootstrap_option
@json_option
def describe(bootstrap: tuple[str, int], as_json: bool) -> None:
    """Show the live brokers and how many partitions each one leads."""
    cluster_id, shares = with_client(bootstrap, _describe)
    if as_json:
        brokers = [
            {
                "broker": each.broker.broker_id,
                "address": each.address,
                "rack": each.broker.rack,
                "partitions": each.partitions,
            }
            for each in shares
        ]
        print(json.dumps({"cluster": cluster_id, "brokers": brokers}))
        return
    print(f"cluster {cluster_id}  brokers {len(shares)}")
    for each in shares:
        rack = "" if each.broker.rack is None else f"  rack {each.broker.rack}"
        print(
            f"  broker {each.broker.broker_id}  {each.address}{rack}  partitions {each.partitions}"
        )


async def _describe(client: Client) -> tuple[str, list[BrokerShare]]:
    found = await describe_cluster(client)
    leaders = [
        partition.leader_id
        for topic in await list_topics(client)
        for partition in topic.partitions.values()
    ]
    brokers = sorted(found.brokers, key=lambda broker: broker.broker_id)
    return found.cluster_id, [BrokerShare(each, leaders.count(each.broker_id)) for each in brokers]


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
def move(
    topic: str, partition: int, broker: int, bootstrap: tuple[str, int], as_json: bool
) -> None:
    """Move PARTITION of TOPIC to BROKER. No data moves, only who serves it.

    The cluster may move it again when it balances its brokers.
    """
    with_client(bootstrap, lambda client: _move(client, topic, partition, broker))
    if as_json:
        print(json.dumps({"topic": topic, "partition": partition, "broker": broker}))
    else:
        print(f"partition {topic}-{partition} is with broker {broker}")
