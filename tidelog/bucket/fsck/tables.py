"""Checks of topics' tables: their logs, checkpoints and segments."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from tidelog.bucket.fsck.context import CheckContext
from tidelog.bucket.fsck.faults import Fault, FaultKind, Findings
from tidelog.bucket.fsck.orphans import orphan_reason, orphaned_before_ms
from tidelog.bucket.fsck.segment_check import check_segment
from tidelog.bucket.reachability import StoredSegment, loose_segments
from tidelog.coordinator.cluster.records.topics import Topic
from tidelog.errors import CorruptObject, MissingObject
from tidelog.identifiers import TopicId, TopicPartition
from tidelog.storage.object_store import ObjectMeta, ObjectNotFound
from tidelog.storage.segment.segment import Segment, SegmentName, table_prefix
from tidelog.storage.sequence import NUMBER_DIGITS
from tidelog.storage.table.table_change import decode_commit
from tidelog.storage.table.table_checkpoint import decode_checkpoint
from tidelog.storage.table.table_log import commit_key, log_prefix
from tidelog.storage.table.table_state import TableState

_COMMIT_SUFFIX = ".json"
_CHECKPOINT_SUFFIX = ".checkpoint.parquet"


@dataclass(slots=True)
class _LogVersions:
    """The present versions of a table's log."""

    commits: list[int] = field(default_factory=list)
    checkpoints: list[int] = field(default_factory=list)


async def check_table(context: CheckContext, topic: Topic) -> Findings:
    """Check the table of one topic."""
    findings = await context.settled(lambda: _check_log(context, topic.topic_id))
    table = await _table(context, topic)
    if isinstance(table, CorruptObject):
        findings.merge(await context.settled(lambda: _check_readable(context, topic)))
        return findings
    segments = [
        (TopicPartition(topic.topic_id, number), stored.segment)
        for number in table.partitions
        for stored in table.partition(number).segments
    ]

    async def check(each: tuple[TopicPartition, Segment]) -> Findings:
        return await _check_segment(context, topic, *each)

    findings.merge(await context.each(segments, check))
    findings.merge(await context.settled(lambda: _check_loose(context, topic)))
    findings.counts["tables"] += 1
    return findings


async def _check_loose(context: CheckContext, topic: Topic) -> Findings:
    """Count the segments that the table does not list and never will; report orphans."""
    findings = Findings()
    prefix = table_prefix(topic.topic_id)
    stored: dict[SegmentName, ObjectMeta] = {}
    commits_ms: list[int] = []
    async for meta in context.list(prefix):
        name = SegmentName.parse(meta.key.removeprefix(prefix))
        if name is not None:
            stored[name] = meta
        elif meta.key.endswith(_COMMIT_SUFFIX):
            commits_ms.append(meta.modified_ms)
    table = await _table(context, topic)
    state = await context.bucket.refresh()
    if isinstance(table, CorruptObject) or topic.topic_id not in state.topics:
        return findings
    grace_ms = context.grace_ms
    loose = loose_segments(
        table,
        max(commits_ms, default=0),
        [StoredSegment(name, meta.modified_ms) for name, meta in stored.items()],
        grace_ms,
    )
    before_ms = await orphaned_before_ms(context, state)
    for name in loose.gone:
        meta = stored[name]
        findings.counts["superfluous segments"] += 1
        findings.counts["superfluous bytes"] += meta.size
        too_late = (each for each in commits_ms if each - meta.modified_ms >= grace_ms)
        since_ms = table.removed.get(name, min(too_late, default=before_ms))
        if since_ms < before_ms:
            findings.add(FaultKind.ORPHAN, meta.key, orphan_reason(since_ms, before_ms))
    return findings


async def _table(context: CheckContext, topic: Topic) -> TableState | CorruptObject:
    try:
        return await context.bucket.table(topic)
    except CorruptObject as error:
        return error


async def _check_readable(context: CheckContext, topic: Topic) -> Findings:
    findings = Findings()
    table = await _table(context, topic)
    is_there = topic.topic_id in (await context.bucket.refresh()).topics
    if isinstance(table, CorruptObject) and is_there:
        findings.blame(table)
    return findings


async def _check_log(context: CheckContext, topic_id: TopicId) -> Findings:
    """Check each present commit and checkpoint.

    Commits must lead from one checkpoint to the next without a gap, and to the checkpoints'
    contents.
    """
    findings = Findings()
    listed = await _list_log(context, topic_id)
    state: TableState | None = TableState(topic_id)
    for version in sorted({*listed.commits, *listed.checkpoints}):
        if version in listed.commits:
            state = await _follow(context, topic_id, version, state, findings)
        if version in listed.checkpoints:
            found = await _read_checkpoint(context, topic_id, version, findings)
            if found is not None and state is not None and state.version == version:
                _compare(_checkpoint_key(topic_id, version), found, state, findings)
            state = found if found is not None else state
    return findings


async def _list_log(context: CheckContext, topic_id: TopicId) -> _LogVersions:
    listed = _LogVersions()
    prefix = log_prefix(topic_id)
    async for meta in context.list(prefix):
        name = meta.key.removeprefix(prefix)
        for suffix, found in (
            (_COMMIT_SUFFIX, listed.commits),
            (_CHECKPOINT_SUFFIX, listed.checkpoints),
        ):
            digits = name.removesuffix(suffix)
            if name.endswith(suffix) and len(digits) == NUMBER_DIGITS and digits.isdecimal():
                found.append(int(digits))
    return listed


async def _follow(
    context: CheckContext,
    topic_id: TopicId,
    version: int,
    state: TableState | None,
    findings: Findings,
) -> TableState | None:
    """The state after a commit; None if the state before is not available any more."""
    key = commit_key(topic_id, version)
    try:
        data = (await context.access.store.get(key)).data
        commit = await context.access.offload.run(decode_commit, key, data, topic_id)
        findings.counts["table commits"] += 1
        context.progress(key)
        if state is None or version != state.version + 1:
            # Earlier versions are replaced by a checkpoint, which follows later in the loop.
            return None
        state.apply(key, version, commit)
    except ObjectNotFound:
        return None
    except CorruptObject as error:
        findings.blame(error)
        return None
    return state


def _checkpoint_key(topic_id: TopicId, version: int) -> str:
    return f"{log_prefix(topic_id)}{version:0{NUMBER_DIGITS}d}{_CHECKPOINT_SUFFIX}"


async def _read_checkpoint(
    context: CheckContext, topic_id: TopicId, version: int, findings: Findings
) -> TableState | None:
    key = _checkpoint_key(topic_id, version)
    try:
        data = (await context.access.store.get(key)).data
        found = await context.access.offload.run(decode_checkpoint, key, data, topic_id, version)
    except ObjectNotFound:
        return None
    except CorruptObject as error:
        findings.blame(error)
        return None
    findings.counts["table checkpoints"] += 1
    context.progress(key)
    return found


def _compare(key: str, found: TableState, state: TableState, findings: Findings) -> None:
    """Compare a checkpoint with the state that the commits lead to."""
    for number in sorted({*found.partitions, *state.partitions}):
        says, leads = found.partition(number), state.partition(number)
        if says.next_offset != leads.next_offset:
            why = f"partition {number} ends at {says.next_offset} in it, at {leads.next_offset}"
            findings.add(FaultKind.CONTRADICTION, key, f"{why} by the commits")
        listed = [each.segment for each in says.segments]
        if listed != [each.segment for each in leads.segments]:
            why = f"it lists other segments of partition {number} than the commits lead to"
            findings.add(FaultKind.CONTRADICTION, key, why)


async def _check_segment(
    context: CheckContext, topic: Topic, partition: TopicPartition, segment: Segment
) -> Findings:
    findings = Findings()
    access = context.access
    key = segment.key(topic.topic_id)
    error: CorruptObject
    try:
        await check_segment(access.store, access.offload, partition, segment, deep=context.deep)
        findings.counts["segments"] += 1
        findings.counts["rows in segments"] += segment.row_count
        context.progress(key)
        return findings
    except ObjectNotFound:
        error = MissingObject(key, "it is missing: the table lists it")
    except CorruptObject as found:
        error = found
    table = await _table(context, topic)
    is_listed = isinstance(table, TableState) and table.partition(segment.name.partition).holds(
        segment.name
    )
    if is_listed and topic.topic_id in (await context.bucket.refresh()).topics:
        # A listed segment counts though its loss may be accepted: a repair may have died between.
        unread = (f"{topic.name}-{segment.name.partition}",)
        findings.faults.append(replace(Fault.of(error), affected=unread))
    return findings
