"""Proves a bucket consistent, also while brokers run. Nothing is ever written.

The checks cover:

- the metadata log and its snapshots;
- each WAL from its newest checkpoint to its end: no hole, a seal if it has ended, every object;
- checkpoints and hand-over images;
- every partition, rebuilt as a broker rebuilds it: offsets continue, and images are whole;
- the objects to which the tails refer;
- each table's commits, checkpoints and segments;
- the coordinators' states and the logs behind them.

By default fsck reads every byte, computes all checksums and counts rows. `deep=False` reads only
the ends of objects.

`context` describes the repetition of checks.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from tidelog.bucket.fsck.context import CheckContext, Progress
from tidelog.bucket.fsck.faults import Fault, Findings
from tidelog.bucket.fsck.leftovers import check_leftovers
from tidelog.bucket.fsck.metadata import check_leases, check_metadata, check_stamps
from tidelog.bucket.fsck.states import check_states
from tidelog.bucket.fsck.tables import check_table
from tidelog.bucket.fsck.wals import (
    check_checkpoints,
    check_handovers,
    check_merged,
    check_tails,
    check_wal,
    incarnations_of,
)
from tidelog.bucket.views.bucket import Bucket
from tidelog.coordinator.cluster.state.state import ClusterState
from tidelog.errors import CorruptObject
from tidelog.identifiers import TopicPartition

PARTITIONS_AT_ONCE = 10_000
"""Partitions whose images are in memory at a time."""


async def check_bucket(bucket: Bucket, progress: Progress, *, deep: bool) -> Findings:
    """The counts and the faults. `progress` is called with the key of each checked object.

    Raises StoreError, and UnsupportedFormat for an object of a newer Tidelog.
    """
    context = CheckContext(bucket, deep, progress)
    findings = await context.settled(lambda: check_metadata(context))
    findings.merge(await context.settled(lambda: check_leases(context)))
    try:
        state = await bucket.refresh()
    except CorruptObject as error:
        # All other checks depend on the metadata log.
        if all(fault.key != error.key for fault in findings.faults):
            findings.blame(error)
        return findings
    stamps = await context.settled(lambda: check_stamps(context))
    findings.merge(stamps)
    if stamps.faults:
        # Objects of owners that the log does not know would count as foreign.
        return findings
    for incarnation in incarnations_of(state):
        findings.merge(await check_checkpoints(context, incarnation))
        findings.merge(await check_wal(context, incarnation))
    findings.merge(await check_merged(context))
    findings.merge(await check_handovers(context))
    for topic in state.topics.values():
        if not topic.internal:
            findings.merge(await check_table(context, topic))
    for partitions in _chunks(
        TopicPartition(topic.topic_id, number)
        for topic in state.topics.values()
        for number in range(topic.partition_count)
    ):
        findings.merge(await _check_partitions(context, partitions))
    findings.merge(await check_states(context))
    findings.merge(await context.settled(lambda: check_leftovers(context)))
    _leave_out_given_up(findings, state)
    return findings


def _leave_out_given_up(findings: Findings, state: ClusterState) -> None:
    """Remove the faults of losses that operators have accepted, unless more depends on them."""
    given_up = state.given_up
    faults = findings.faults
    findings.faults = [each for each in faults if each.affected or each.key not in given_up]
    if state.losses:
        findings.counts["losses that were accepted"] = len(state.losses)
        findings.counts["damaged objects that were given up"] = len(faults) - len(findings.faults)
    for entries in state.lost_entries:
        findings.counts["metadata entries that were given up"] += entries.last - entries.first + 1


async def _check_partitions(context: CheckContext, partitions: list[TopicPartition]) -> Findings:
    async def check() -> Findings:
        findings = Findings()
        view = await context.bucket.view_partitions(partitions)
        affected: dict[Fault, list[str]] = {}
        for partition, error in view.failures.items():
            affected.setdefault(Fault.of(error), []).append(view.name_of(partition))
        findings.faults += [replace(f, affected=tuple(names)) for f, names in affected.items()]
        findings.merge(await check_tails(context, list(view.partitions.values())))
        findings.counts["partitions"] += len(view.partitions)
        return findings

    return await context.settled(check)


def _chunks(partitions: Iterable[TopicPartition]) -> Iterable[list[TopicPartition]]:
    chunk: list[TopicPartition] = []
    for partition in partitions:
        chunk.append(partition)
        if len(chunk) == PARTITIONS_AT_ONCE:
            yield chunk
            chunk = []
    if chunk:
        yield chunk
