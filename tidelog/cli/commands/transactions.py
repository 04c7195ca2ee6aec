"""`tidelog transactions`: lists and describes transactions, finds and ends hanging ones
(KIP-664)."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import click

from tidelog.cli.address import Bootstrap
from tidelog.cli.broker_client import bootstrap_option, json_option, with_client, with_retries
from tidelog.cli.table import shown_table
from tidelog.client.admin.administration import list_topics
from tidelog.client.errors import ReadRefused
from tidelog.client.groups.admin import Place
from tidelog.client.pool import Client, CoordinatorKind
from tidelog.client.transactions.admin import (
    STATES,
    OpenTransaction,
    TransactionFilter,
    TransactionOwner,
    abort_in_partition,
    describe_transaction,
    enlisted_partitions,
    hanging_transactions,
    list_transactions,
    open_transactions,
)
from tidelog.clock import SystemClock
from tidelog.errors import Refused
from tidelog.protocol.error_codes import ErrorCode
from tidelog.protocol.schemas.transaction_listing import DescribedTransaction, ListedTransaction

MINUTE_MS = 60_000
NOT_BEGUN = -1


class NoSuchTransaction(Refused):
    """There is no such open transaction; nothing was changed."""


class TransactionCoordinated(Refused):
    """A coordinator will end the transaction, perhaps by a commit; nothing was changed."""


@click.group()
def transactions() -> None:
    """List and describe transactions, find hanging ones, and end them."""


@transactions.command("list")
@click.option("--state", "states", type=click.Choice(STATES), multiple=True, help="Default: all.")
@click.option("--producer-id", "producer_ids", type=click.IntRange(0), multiple=True)
@click.option(
    "--longer-than-ms", type=click.IntRange(0), default=None, help="The least age in milliseconds."
)
@click.option("--pattern", default="", help="A regular expression of the whole transactional id.")
@bootstrap_option
@json_option
def list_(
    states: tuple[str, ...],
    producer_ids: tuple[int, ...],
    longer_than_ms: int | None,
    pattern: str,
    bootstrap: Bootstrap,
    as_json: bool,
) -> None:
    """List the transactional ids and the states of their transactions."""
    wanted = TransactionFilter(
        states=states,
        producer_ids=producer_ids,
        duration_ms=-1 if longer_than_ms is None else longer_than_ms,
        pattern=pattern,
    )

    async def run(client: Client) -> list[ListedTransaction]:
        return await with_retries(lambda: list_transactions(client, wanted))

    found = with_client(bootstrap, run)
    if as_json:
        facts = [
            {
                "transactional_id": each.transactional_id,
                "state": each.transaction_state,
                "producer_id": each.producer_id,
            }
            for each in found
        ]
        print(json.dumps(facts))
        return
    rows = [(each.transactional_id, each.transaction_state, each.producer_id) for each in found]
    print(shown_table(["transactional id", "state", "producer"], rows))


@transactions.command()
@click.argument("transactional_id", metavar="TRANSACTIONAL_ID")
@bootstrap_option
@json_option
def describe(transactional_id: str, bootstrap: Bootstrap, as_json: bool) -> None:
    """Show the newest transaction of TRANSACTIONAL_ID, its producer and its partitions."""

    async def run(client: Client) -> tuple[DescribedTransaction, str]:
        found = await with_retries(lambda: describe_transaction(client, transactional_id))
        host, port = await client.find_coordinator(CoordinatorKind.TRANSACTION, transactional_id)
        return found, f"{host}:{port}"

    found, coordinator = with_client(bootstrap, run)
    places = [Place(topic.topic, number) for topic in found.topics for number in topic.partitions]
    if as_json:
        begun_ms = found.transaction_start_time_ms
        facts = {
            "transactional_id": transactional_id,
            "state": found.transaction_state,
            "producer_id": found.producer_id,
            "producer_epoch": found.producer_epoch,
            "timeout_ms": found.transaction_timeout_ms,
            "begun_ms": None if begun_ms == NOT_BEGUN else begun_ms,
            "coordinator": coordinator,
            "partitions": [each._asdict() for each in places],
        }
        print(json.dumps(facts))
        return
    print(
        f"transactional id {transactional_id}  state {found.transaction_state}"
        f"  producer {found.producer_id} epoch {found.producer_epoch}"
        f"  timeout {found.transaction_timeout_ms} ms"
        f"  begun {_time_text(found.transaction_start_time_ms)}  coordinator {coordinator}"
    )
    for place in places:
        print(f"  {place.topic} partition {place.partition}")


@transactions.command("find-hanging")
@click.option("--topic", "topics", multiple=True, help="Default: all.")
@click.option(
    "--partition", "partitions", type=click.IntRange(0), multiple=True, help="Default: all."
)
@click.option(
    "--max-transaction-timeout",
    "timeout_minutes",
    type=click.IntRange(0),
    default=15,
    show_default=True,
    metavar="MINUTES",
    help="The longest duration of a transaction: the brokers' transaction.max.timeout.ms.",
)
@bootstrap_option
@json_option
def find_hanging(
    topics: tuple[str, ...],
    partitions: tuple[int, ...],
    timeout_minutes: int,
    bootstrap: Bootstrap,
    as_json: bool,
) -> None:
    """Find open transactions that no coordinator will end.

    They block read_committed consumers for ever.
    """
    if partitions and not topics:
        raise click.UsageError("--partition needs --topic")

    async def run(client: Client) -> list[OpenTransaction]:
        places = await _places(client, topics, partitions)
        age_ms, now_ms = timeout_minutes * MINUTE_MS, SystemClock().time_ms()
        return await with_retries(
            lambda: hanging_transactions(client, places, age_ms=age_ms, now_ms=now_ms)
        )

    found = with_client(bootstrap, run)
    if as_json:
        print(json.dumps([_facts(each) for each in found]))
        return
    for each in found:
        place, producer = each.place, each.producer
        print(
            f"{place.topic} partition {place.partition}  start offset {each.start_offset}"
            f"  producer {producer.producer_id} epoch {producer.producer_epoch}"
            f"  coordinator epoch {producer.coordinator_epoch}"
            f"  last appended {_time_text(producer.last_timestamp)}"
        )


async def _places(
    client: Client, topics: tuple[str, ...], partitions: tuple[int, ...]
) -> list[Place]:
    if topics:
        known = [await client.topic(name) for name in topics]
    else:
        known = await list_topics(client)
    places = []
    for topic in known:
        for number in partitions or sorted(topic.partitions):
            if number not in topic.partitions:
                subject = f"partition {topic.name}-{number}"
                why = f"the topic has {len(topic.partitions)} partitions, from 0 on"
                raise ReadRefused(subject, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, why)
            places.append(Place(topic.name, number))
    return places


def _facts(found: OpenTransaction) -> dict[str, Any]:
    return {
        "topic": found.place.topic,
        "partition": found.place.partition,
        "start_offset": found.start_offset,
        "producer_id": found.producer.producer_id,
        "producer_epoch": found.producer.producer_epoch,
        "coordinator_epoch": found.producer.coordinator_epoch,
        "last_timestamp_ms": found.producer.last_timestamp,
    }


@transactions.command()
@click.option("--topic", required=True)
@click.option("--partition", type=click.IntRange(0), required=True)
@click.option("--start-offset", type=click.IntRange(0), help="The transaction's first offset; or:")
@click.option("--producer-id", type=click.IntRange(0))
@click.option("--producer-epoch", type=click.IntRange(0, 2**15 - 1))
@click.option("--coordinator-epoch", type=click.IntRange(-1, 2**31 - 1))
@click.option("--force", is_flag=True, help="Even if it is ongoing for a coordinator.")
@bootstrap_option
@json_option
def abort(
    topic: str,
    partition: int,
    start_offset: int | None,
    producer_id: int | None,
    producer_epoch: int | None,
    coordinator_epoch: int | None,
    force: bool,
    bootstrap: Bootstrap,
    as_json: bool,
) -> None:
    """End a hanging transaction in one partition: write an ABORT marker there.

    Identify it by its start offset, or by its producer's id and epoch and the coordinator's epoch.
    """
    place = Place(topic, partition)
    given = [each for each in (producer_id, producer_epoch, coordinator_epoch) if each is not None]
    if len(given) != (3 if start_offset is None else 0):
        raise click.UsageError(
            "give --start-offset, or all of --producer-id, --producer-epoch and --coordinator-epoch"
        )

    async def run(client: Client) -> TransactionOwner:
        # A missing partition fails here at once.
        await client.leader(*place)
        owner = (
            TransactionOwner(*given)
            if start_offset is None
            else await with_retries(lambda: _owner_at(client, place, start_offset))
        )
        if not force:
            await with_retries(lambda: _refuse_coordinated(client, place, owner))
        await with_retries(lambda: abort_in_partition(client, place, owner))
        return owner

    owner = with_client(bootstrap, run)
    if as_json:
        print(json.dumps(place._asdict() | owner._asdict()))
        return
    print(
        f"aborted the transaction of producer {owner.producer_id} in {topic} partition {partition}"
    )


async def _owner_at(client: Client, place: Place, start_offset: int) -> TransactionOwner:
    found = await open_transactions(client, [place])
    for each in found:
        if each.start_offset == start_offset:
            return each.owner
    begin = ", ".join(str(each.start_offset) for each in found) or "none is open"
    raise NoSuchTransaction(
        f"no open transaction begins at offset {start_offset} of {place.topic} partition"
        f" {place.partition} (those that are open: {begin}). Nothing was changed"
    )


async def _refuse_coordinated(client: Client, place: Place, owner: TransactionOwner) -> None:
    enlisted = await enlisted_partitions(client, [owner.producer_id])
    transactional_id = enlisted.get((owner.producer_id, place))
    if transactional_id is not None:
        raise TransactionCoordinated(
            f"the coordinator of {transactional_id} has {place.topic} partition {place.partition}"
            f" in a transaction of producer {owner.producer_id}, and will end it. Nothing was"
            " changed. --force aborts it in this partition regardless of the others"
        )


def _time_text(time_ms: int) -> str:
    if time_ms == NOT_BEGUN:
        return "-"
    return datetime.fromtimestamp(time_ms / 1000, UTC).isoformat(timespec="milliseconds")
