"""Checks of the coordinators' states: their snapshots, and the logs behind them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tidelog.bucket.fsck.context import Check, CheckContext
from tidelog.bucket.fsck.faults import Fault, Findings
from tidelog.bucket.views.reading import BucketView
from tidelog.bucket.views.states import GROUPS, TRANSACTIONS, StateKind, restore
from tidelog.coordinator.snapshot_format import SnapshotOrigin
from tidelog.coordinator.snapshots import apply_snapshot
from tidelog.errors import CorruptObject
from tidelog.identifiers import TopicPartition
from tidelog.storage.object_store import ObjectNotFound


async def check_states(context: CheckContext) -> Findings:
    """Check each snapshot, and load each coordinator's state as its successor would."""
    findings = Findings()
    for kind in (TRANSACTIONS, GROUPS):
        topic = context.bucket.state.topic_named(kind.topic)
        if topic is None:
            continue
        partitions = [
            TopicPartition(topic.topic_id, number) for number in range(topic.partition_count)
        ]
        # All views at once, since each refresh reads the WALs.
        view = await context.bucket.view_partitions(partitions)
        for partition in partitions:
            origin = context.access.origin(topic, partition.partition)
            findings.merge(await _check_snapshots(context, origin, kind))
            findings.merge(await context.settled(_loading(context, partition, kind, view)))
    return findings


def _ignore(_: Any) -> None:
    """Accept a record that only has to decode."""


async def _check_snapshots(
    context: CheckContext, origin: SnapshotOrigin, kind: StateKind
) -> Findings:
    async def check(key: str) -> Findings:
        findings = Findings()
        access = context.access
        try:
            data = (await access.store.get(key)).data
            restored = await apply_snapshot(access.offload, kind.table, origin, key, data, _ignore)
        except ObjectNotFound:
            return findings
        except CorruptObject as error:
            findings.blame(error)
            return findings
        findings.counts["state snapshots"] += 1
        findings.counts["rows in state snapshots"] += restored.rows
        context.progress(key)
        return findings

    keys = [meta.key async for meta in context.list(origin.prefix)]
    known = [key for key in keys if origin.offset_in(key) is not None]
    return await context.each(known, check)


def _loading(
    context: CheckContext, partition: TopicPartition, kind: StateKind, seen: BucketView
) -> Check:
    """Check the partition's view as `seen` first, and refreshed in later runs."""
    views = iter([seen])

    async def check() -> Findings:
        findings = Findings()
        found = next(views, None) or await context.bucket.view_partitions([partition])
        view = found.partitions.get(partition)
        if view is None:
            # The check of partitions reports faults of the partition itself.
            return findings
        machine = kind.machine()
        try:
            await restore(context.access, context.bucket.tails, view, kind, machine.apply)
        except CorruptObject as error:
            # It counts though its loss may be accepted: a repair may have died before it deleted
            # the snapshot.
            unread = (found.name_of(partition),)
            findings.faults.append(replace(Fault.of(error), affected=unread))
            return findings
        findings.counts["coordinators' states"] += 1
        return findings

    return check
