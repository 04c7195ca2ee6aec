"""Auditors: after all faults are healed, they check that all work has been done."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from tests.simulation.actors.actor import Actor, error_text
from tests.simulation.actors.log_client import NoAnswer
from tests.simulation.actors.log_client import RequestRefused as FetchRefused
from tests.simulation.rules.history import GroupOffsets, Isolation, Key, StoredTransaction
from tidelog.client.errors import RequestFailed, RequestRefused
from tidelog.client.groups.admin import committed_offsets, describe_group
from tidelog.client.operations import EARLIEST, fetch, list_offsets
from tidelog.client.pool import Client
from tidelog.coordinator.transaction.log_records import (
    TransactionRecord,
    TransactionRemoved,
    TransactionStored,
    decode_record,
)
from tidelog.records.records import decode_records

_AUDIT_SECONDS_MAX = 90.0
_POLL_SECONDS = 0.5
_STATE_TOPIC = "__transaction_state"
_UNDECIDED = {"Ongoing", "PrepareCommit", "PrepareAbort"}


async def audit_group(actor: Actor, group: str, members: int, keys: Iterable[Key]) -> None:
    """Wait until a group is Stable with all its members and has consumed everything."""
    give_up_at = actor.clock.monotonic() + _AUDIT_SECONDS_MAX
    async with actor.kafka() as client:
        while True:
            why = await _unrest(actor, client, group, members, keys)
            if not why:
                return
            if actor.clock.monotonic() > give_up_at:
                actor.history.violate(f"after healing, group {group}: {why}")
                return
            await actor.clock.sleep(_POLL_SECONDS)


async def _unrest(
    actor: Actor, client: Client, group: str, members: int, keys: Iterable[Key]
) -> str:
    """The pending work. Empty if there is none."""
    operation = actor.history.invoke(actor.name, "offsets", final=True)
    try:
        described = await describe_group(client, group)
        committed = await committed_offsets(client, group)
    except (RequestFailed, RequestRefused) as error:
        actor.history.fail(operation, error_text(error))
        return error_text(error)
    offsets = {Key(*place): offset for place, offset in committed.items()}
    operation.offsets = GroupOffsets(group, -1, offsets)
    actor.history.ok(operation)
    if described.group_state != "Stable" or len(described.members) != members:
        return f"{described.group_state} with {len(described.members)} members of {members}"
    for key in keys:
        end = await actor.persist(lambda key=key: actor.client.end_offset(key))  # type: ignore[misc]
        if offsets.get(key, 0) < end:
            return f"{key} is consumed up to {offsets.get(key, 0)} of {end}"
    return ""


async def audit_stability(actor: Actor) -> None:
    """Wait until the last stable offset has reached the high watermark everywhere."""
    give_up_at = actor.clock.monotonic() + _AUDIT_SECONDS_MAX
    for key in actor.settings.all_keys:
        while True:
            stable, end = [
                await actor.persist(lambda level=level: _end(actor, key, level))  # type: ignore[misc] # noqa: B023
                for level in ("read_committed", "read_uncommitted")
            ]
            if stable == end:
                break
            if actor.clock.monotonic() > give_up_at:
                text = f"after healing, {key} is stable up to {stable} of {end} only"
                actor.history.violate(text)
                break
            await actor.clock.sleep(_POLL_SECONDS)


async def audit_retention(actor: Actor) -> None:
    """Wait until every record that has been too old for long is gone. Offsets without a record may
    be left: aborted records may be rolled when the log is empty already."""
    for key in actor.settings.all_keys:
        policy = actor.settings.policies.get(key.topic)
        if policy is None or policy.retention_ms is None:
            continue
        start = await actor.persist(lambda key=key: actor.client.log_start(key))  # type: ignore[misc]
        end = await actor.persist(lambda key=key: actor.client.end_offset(key))  # type: ignore[misc]
        if not await _is_empty(actor, key, start, end):
            text = f"{key} begins at {start} of {end} still, long after {policy.retention_ms} ms"
            actor.history.violate(text)


async def _is_empty(actor: Actor, key: Key, start: int, end: int) -> bool:
    """Whether no reader finds a record there."""
    while start < end:
        (fetched,) = await actor.persist(
            partial(actor.client.fetch, {key: start}, "read_uncommitted", 0.0)
        )
        if fetched.records or fetched.next_offset <= start:
            return False
        start = fetched.next_offset
    return True


async def audit_states(actor: Actor) -> None:
    """Read the log of the transaction coordinators, once everything in it is decided."""
    give_up_at = actor.clock.monotonic() + _AUDIT_SECONDS_MAX
    async with actor.kafka() as client:
        while True:
            try:
                stored = await _stored_transactions(client)
            except (RequestFailed, RequestRefused):
                await actor.backoff(2)
                continue
            newest = {one.transactional_id: one.state for one in stored}
            if actor.clock.monotonic() > give_up_at or not _UNDECIDED & set(newest.values()):
                actor.history.transactions = stored
                return
            await actor.clock.sleep(_POLL_SECONDS)


async def _stored_transactions(client: Client) -> list[StoredTransaction]:
    """The stored records, except those that a snapshot has replaced."""
    found = []
    for partition in (await client.topic(_STATE_TOPIC)).partitions:
        start = await list_offsets(client, _STATE_TOPIC, partition, EARLIEST)
        position = start.offset
        while True:
            fetched = await fetch(client, _STATE_TOPIC, partition, position, max_wait_ms=0)
            if not fetched.records:
                break
            for record in decode_records(fetched.records[0]):
                if record.offset >= position:
                    position = record.offset + 1
                    found.append(_stored(decode_record(record.key, record.value)))
    return found


def _stored(record: TransactionRecord) -> StoredTransaction:
    match record:
        case TransactionStored(transactional_id, transaction):
            return StoredTransaction(
                transactional_id,
                transaction.state.label,
                transaction.producer_id,
                transaction.producer_epoch,
            )
        case TransactionRemoved(transactional_id):
            return StoredTransaction(transactional_id, "Dead", -1, -1)


async def _end(actor: Actor, key: Key, level: Isolation) -> int:
    try:
        return await actor.client.end_offset(key, level)
    except (FetchRefused, NoAnswer):
        actor.client.forget()
        raise
