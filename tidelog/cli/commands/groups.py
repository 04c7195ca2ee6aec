"""`tidelog groups`: lists, describes, moves and deletes consumer groups."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import partial
from typing import Any

import click

from tidelog.cli.address import Bootstrap
from tidelog.cli.broker_client import (
    bootstrap_option,
    json_option,
    offset_at,
    with_client,
    with_retries,
)
from tidelog.cli.commands.consume import Start, StartType
from tidelog.cli.table import show_deleted, shown_table
from tidelog.client.errors import RequestRefused, raise_together
from tidelog.client.groups.admin import (
    Place,
    commit_offsets,
    committed_offsets,
    delete_group,
    describe_group,
    list_groups,
)
from tidelog.client.operations import EARLIEST, LATEST
from tidelog.client.pool import Client
from tidelog.client.transactions.sink import PROGRESS
from tidelog.errors import Refused
from tidelog.protocol.error_codes import ErrorCode
from tidelog.protocol.schemas.groups import DescribedGroup

WITHOUT_MEMBERS = ("Empty", "Dead")


class GroupInUse(Refused):
    """The group has members, and only they may commit offsets; nothing was changed."""


@click.group()
def groups() -> None:
    """List, describe, move and delete consumer groups."""


@groups.command("list")
@bootstrap_option
@json_option
def list_(bootstrap: Bootstrap, as_json: bool) -> None:
    """List the groups and their states."""
    found = with_client(bootstrap, lambda client: with_retries(lambda: list_groups(client)))
    if as_json:
        facts = [
            {"group": g.group_id, "state": g.group_state, "protocol_type": g.protocol_type}
            for g in found
        ]
        print(json.dumps(facts))
        return
    print(shown_table(["group", "state"], [(each.group_id, each.group_state) for each in found]))


@dataclass(frozen=True, slots=True)
class GroupProgress:
    """A group's progress in one partition.

    The end is None if the partition is gone, and for the number of a sink's last batch.
    """

    committed: int
    end: int | None

    @property
    def lag(self) -> int | None:
        """The offsets left to consume."""
        return None if self.end is None else max(0, self.end - self.committed)


@groups.command()
@click.argument("group_id", metavar="GROUP")
@bootstrap_option
@json_option
def describe(group_id: str, bootstrap: Bootstrap, as_json: bool) -> None:
    """Show members, committed offsets and lag of GROUP."""

    async def run(client: Client) -> tuple[DescribedGroup, dict[Place, GroupProgress]]:
        group = await with_retries(lambda: describe_group(client, group_id))
        return group, await _progress(client, group_id)

    group, progress = with_client(bootstrap, run)
    if as_json:
        print(json.dumps(_facts(group, progress)))
        return
    protocol = f"  protocol {group.protocol_data}" if group.protocol_data else ""
    print(f"group {group_id}  state {group.group_state}{protocol}  members {len(group.members)}")
    for member in group.members:
        instance = f"  instance {member.group_instance_id}" if member.group_instance_id else ""
        print(f"  member {member.member_id}  host {member.client_host}{instance}")
    for place, each in progress.items():
        end, lag = ("-", "-") if each.end is None else (str(each.end), str(each.lag))
        print(
            f"  {place.topic} partition {place.partition}  committed {each.committed}"
            f"  end {end}  lag {lag}"
        )


async def _progress(client: Client, group_id: str) -> dict[Place, GroupProgress]:
    committed = await with_retries(lambda: committed_offsets(client, group_id))
    progress = {}
    for place, offset in committed.items():
        end: int | None = None
        if place.topic == PROGRESS.topic:
            # The number of a sink's last batch, not of a record.
            progress[place] = GroupProgress(offset, end)
            continue
        try:
            end = await offset_at(client, place.topic, place.partition, LATEST)
        except RequestRefused as error:
            if error.code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                raise
        progress[place] = GroupProgress(offset, end)
    return progress


def _facts(group: DescribedGroup, progress: dict[Place, GroupProgress]) -> dict[str, Any]:
    return {
        "group": group.group_id,
        "state": group.group_state,
        "protocol_type": group.protocol_type,
        "protocol": group.protocol_data,
        "members": [
            {
                "member": member.member_id,
                "instance": member.group_instance_id,
                "client": member.client_id,
                "host": member.client_host,
            }
            for member in group.members
        ],
        "offsets": [
            {
                "topic": place.topic,
                "partition": place.partition,
                "committed": each.committed,
                "end": each.end,
                "lag": each.lag,
            }
            for place, each in progress.items()
        ],
    }


@groups.command("reset-offsets")
@click.argument("group_id", metavar="GROUP")
@click.option("--topic", required=True, help="The topic whose offsets are set.")
@click.option(
    "--partition", "partitions", type=click.IntRange(0), multiple=True, help="Default: all."
)
@click.option(
    "--to",
    "start",
    type=StartType(),
    required=True,
    metavar="beginning|end|OFFSET|@MS",
    help="An end, an offset, or the first record at a time in ms since 1970.",
)
@click.option("--dry-run", is_flag=True, help="Only show the new offsets.")
@bootstrap_option
@json_option
def reset_offsets(
    group_id: str,
    topic: str,
    partitions: tuple[int, ...],
    start: Start,
    dry_run: bool,
    bootstrap: Bootstrap,
    as_json: bool,
) -> None:
    """Set the committed offsets of GROUP, which must have no members, in one topic."""

    async def run(client: Client) -> dict[Place, int]:
        known = sorted((await client.topic(topic)).partitions)
        wanted = {
            Place(topic, number): await _offset_of(client, topic, number, start)
            for number in partitions or known
        }
        if not dry_run:
            await with_retries(lambda: _refuse_members(client, group_id))
            await with_retries(lambda: commit_offsets(client, group_id, wanted))
        return wanted

    offsets = with_client(bootstrap, run)
    if as_json:
        facts = [
            {"topic": place.topic, "partition": place.partition, "offset": offset}
            for place, offset in offsets.items()
        ]
        print(json.dumps({"group": group_id, "applied": not dry_run, "offsets": facts}))
        return
    done = "would set" if dry_run else "set"
    for place, offset in offsets.items():
        print(f"{done} {place.topic} partition {place.partition} of group {group_id} to {offset}")


async def _offset_of(client: Client, topic: str, partition: int, start: Start) -> int:
    if start.offset is not None:
        first, end = [
            await offset_at(client, topic, partition, which) for which in (EARLIEST, LATEST)
        ]
        if not first <= start.offset <= end:
            raise Refused(
                f"{topic}-{partition} has the offsets {first} to {end}, not {start.offset}: a"
                " consumer there would start at its auto.offset.reset. Name one of these with --to."
                " Nothing was changed"
            )
        return start.offset
    found = await offset_at(client, topic, partition, start.timestamp_ms)
    # No record is that recent: take the end.
    return found if found >= 0 else await offset_at(client, topic, partition, LATEST)


async def _refuse_members(client: Client, group_id: str) -> None:
    try:
        group = await describe_group(client, group_id)
    except RequestRefused as error:
        if error.code != ErrorCode.GROUP_ID_NOT_FOUND:
            raise
        return
    if group.group_state not in WITHOUT_MEMBERS:
        raise GroupInUse(
            f"group {group_id} has {len(group.members)} members (state {group.group_state});"
            " stop them first. Nothing was changed"
        )


@groups.command()
@click.argument("group_ids", metavar="GROUPS...", nargs=-1, required=True)
@bootstrap_option
@json_option
def delete(group_ids: tuple[str, ...], bootstrap: Bootstrap, as_json: bool) -> None:
    """Delete GROUPS, which must have no members, and their committed offsets."""

    deleted: list[str] = []
    refusals: list[RequestRefused] = []

    async def run(client: Client) -> None:
        for group_id in dict.fromkeys(group_ids):
            try:
                await with_retries(partial(delete_group, client, group_id))
            except RequestRefused as refusal:
                refusals.append(refusal)
            else:
                deleted.append(group_id)

    try:
        with_client(bootstrap, run)
    finally:
        # The user reads what the broker deleted, also if none answers for the next group.
        show_deleted("group", deleted, as_json)
    raise_together(refusals)
