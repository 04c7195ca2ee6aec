"""Checks for objects of a bucket that are foreign, and for those that are superfluous.

Superfluous objects are no fault: they wait for the grace, or for a broker that deletes them. They
are counted. A superfluous object is an orphan only with proof that a broker had the time to delete
it. Nothing records when it became superfluous. But the objects that prove it superfluous have
times: it was superfluous at the latest when the youngest of them was written (`orphans`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tidelog.bucket.fsck.context import CheckContext
from tidelog.bucket.fsck.faults import FaultKind, Findings
from tidelog.bucket.fsck.metadata import entry_key, read_entry
from tidelog.bucket.fsck.orphans import entry_put_ms, orphan_reason, orphaned_before_ms
from tidelog.bucket.merged_names import read_merged_names
from tidelog.bucket.object_keys import (
    CHECKPOINT_FOLDER,
    BucketObject,
    CheckpointObject,
    MergedObjectKey,
    SegmentObject,
    StateObject,
    TableObject,
    WalObject,
    parse_key,
)
from tidelog.bucket.reachability import (
    Anchor,
    Reachability,
    named_handovers,
    needed_incarnations,
    same_tenures,
    unanchored,
)
from tidelog.coordinator.cluster.records.records import TopicCreated
from tidelog.coordinator.cluster.records.topics import TopicFate, created_at
from tidelog.coordinator.cluster.state.state import ClusterState
from tidelog.coordinator.internal_topics import GROUP_TOPIC, TRANSACTION_TOPIC
from tidelog.errors import CorruptObject
from tidelog.identifiers import Incarnation, TopicId
from tidelog.storage.object_store import ObjectMeta, ObjectNotFound
from tidelog.wal.format.image_codec import Images
from tidelog.wal.format.object_format import HEADER_BYTES
from tidelog.wal.write.checkpoint import decode_checkpoint

_Listed = Mapping[str, tuple[BucketObject, ObjectMeta]]


async def check_leftovers(context: CheckContext) -> Findings:
    """Check the key of each object in the bucket."""
    findings = Findings()
    listed: dict[str, tuple[BucketObject, ObjectMeta]] = {}
    tables: dict[str, tuple[BucketObject, ObjectMeta]] = {}
    async for meta in context.list(""):
        findings.counts["objects"] += 1
        findings.counts["bytes"] += meta.size
        found = parse_key(meta.key)
        if found is None:
            why = "no object of Tidelog's has such a key"
            findings.add(FaultKind.FOREIGN, meta.key, why)
        elif isinstance(found, TableObject | SegmentObject):
            tables[meta.key] = found, meta
        else:
            listed[meta.key] = found, meta
    state = await context.bucket.refresh()
    for key, (found, meta) in listed.items():
        _judge_owner(state, key, found, meta, findings)
    judge = await _judge(context, state, listed)
    if judge is not None:
        _judge_objects(judge, listed, findings)
    await _check_credentials(context, state, findings)
    await _judge_topics(context, state, tables, findings)
    return findings


def _judge_owner(
    state: ClusterState, key: str, found: BucketObject, meta: ObjectMeta, findings: Findings
) -> None:
    """Check that the owner named by an object's key is registered, or was."""
    match found:
        case WalObject(owner) | MergedObjectKey(owner) | CheckpointObject(owner):
            known = state.incarnation(owner.epoch)
            if known is None and state.is_retired(owner):
                is_seal = isinstance(found, WalObject) and meta.size == HEADER_BYTES
                what = "seals" if is_seal else "objects"
                findings.counts[f"{what} of forgotten incarnations"] += 1
            elif known is None:
                why = f"{owner} was registered after entry {state.sequence}, the log's last"
                findings.add(FaultKind.CONTRADICTION, key, why)
            elif known != owner:
                findings.add(FaultKind.FOREIGN, key, f"no broker was ever registered as {owner}")
        case StateObject(name, partition):
            topic = state.topic_named(name)
            is_internal = name in (GROUP_TOPIC, TRANSACTION_TOPIC)
            if not is_internal or topic is None or partition >= topic.partition_count:
                why = "there is no coordinator whose state it could be"
                findings.add(FaultKind.FOREIGN, key, why)
        case _:
            pass


@dataclass(frozen=True, slots=True)
class _Judge:
    """The facts by which superfluous objects are judged."""

    reachability: Reachability
    newest_ms: Mapping[Incarnation, int]
    """The times of the puts of the incarnations' newest checkpoints."""
    metadata_ms: int
    """The time of the put of the metadata log's newest entry."""
    snapshots_ms: Mapping[tuple[str, int], int]
    """The times of the puts of the newest snapshots of the coordinators' states."""
    merged_ms: Mapping[Incarnation, int]
    """The times of the puts of the incarnations' youngest merged objects."""
    orphaned_before_ms: int
    """An object superfluous since before is an orphan; 0 if no broker has lived long enough."""

    def superfluous_since_ms(self, found: BucketObject, meta: ObjectMeta) -> int:
        """The latest possible time at which it became superfluous."""
        match found:
            case CheckpointObject(owner) if owner in self.newest_ms:
                return max(meta.modified_ms, self.newest_ms[owner])
            case StateObject(topic, partition):
                return max(meta.modified_ms, self.snapshots_ms.get((topic, partition), 0))
        youngest = (*self.newest_ms.values(), *self.merged_ms.values())
        return max(meta.modified_ms, self.metadata_ms, *youngest)


def _judge_objects(judge: _Judge, listed: _Listed, findings: Findings) -> None:
    for key, (found, meta) in listed.items():
        if not judge.reachability.may_go(key, found):
            continue
        findings.counts["superfluous objects"] += 1
        findings.counts["superfluous bytes"] += meta.size
        since_ms = judge.superfluous_since_ms(found, meta)
        if since_ms < judge.orphaned_before_ms:
            why = orphan_reason(since_ms, judge.orphaned_before_ms)
            findings.add(FaultKind.ORPHAN, key, why)


async def _check_credentials(
    context: CheckContext, state: ClusterState, findings: Findings
) -> None:
    """Check that the object of all verifiers exists. It is not read: only a broker may do that."""
    key = state.credentials
    if key is None or [meta async for meta in context.list(key)]:
        return
    if (await context.bucket.refresh()).credentials == key:
        why = "the metadata log names it as the object of all verifiers: no user can log in"
        findings.add(FaultKind.MISSING, key, why)


async def _judge_topics(
    context: CheckContext, state: ClusterState, tables: _Listed, findings: Findings
) -> None:
    """Check the topics that segments and table logs belong to."""
    faults: dict[TopicId, str | None] = {}
    for key, (found, meta) in tables.items():
        assert isinstance(found, TableObject | SegmentObject)
        topic_id = found.topic_id
        fate = state.fate_of(topic_id)
        if fate is TopicFate.ALIVE:
            continue
        if topic_id not in faults:
            faults[topic_id] = why = await _unknown(context, state, topic_id)
            if why is not None:
                findings.add(FaultKind.CONTRADICTION, key, why)
        label = (TopicFate.UNKNOWN if faults[topic_id] is not None else fate).value
        findings.counts[f"objects of {label} topics"] += 1
        findings.counts[f"bytes of {label} topics"] += meta.size


async def _unknown(context: CheckContext, state: ClusterState, topic_id: TopicId) -> str | None:
    """Why the metadata log has never known a topic; None if it has, or may have.

    If the log has lost its end without notice, it continues with other entries in place of the lost
    ones. So the entry that an id names is checked, as long as it exists.
    """
    fate, created = state.fate_of(topic_id), created_at(topic_id)
    if fate is TopicFate.UNKNOWN:
        return f"the metadata log has topic {topic_id} neither as alive nor as deleted"
    if fate is not TopicFate.FORGOTTEN or created is None or state.is_lost_entry(created):
        return None
    entry = await read_entry(context, created)
    if entry is None or any(
        isinstance(record, TopicCreated) and record.topic_id == topic_id for record in entry.records
    ):
        return None
    return f"{entry_key(created)} creates no topic {topic_id}: the log has another entry there"


async def _judge(context: CheckContext, state: ClusterState, listed: _Listed) -> _Judge | None:
    """The facts to judge by; None if they are not available.

    That is so while ownership changes, or if a needed object is damaged, which other checks report.
    """
    newest: dict[Incarnation, ObjectMeta] = {}
    async for meta in context.list(CHECKPOINT_FOLDER):
        found = parse_key(meta.key)
        if isinstance(found, CheckpointObject):
            newest[found.incarnation] = meta
    needed = needed_incarnations(state)
    try:
        anchors = {
            owner: await _anchor(context, meta.key)
            for owner, meta in newest.items()
            if owner in needed
        }
        handovers = [await _handover(context, key) for key in named_handovers(state)]
    except (ObjectNotFound, CorruptObject):
        return None
    if not same_tenures(state, await context.bucket.refresh()):
        return None
    if next(unanchored(state, anchors), None) is not None:
        return None
    snapshots: dict[tuple[str, int], tuple[int, int]] = {}
    for found, meta in listed.values():
        if isinstance(found, StateObject):
            place = found.topic, found.partition
            put = found.next_offset, meta.modified_ms
            snapshots[place] = max(snapshots.get(place, put), put)
    metadata_ms = await entry_put_ms(context, state.sequence)
    merged = {found: meta for found, meta in listed.values() if isinstance(found, MergedObjectKey)}
    names = await read_merged_names(context.access.store, context.access.offload, state, merged)
    reachability = Reachability(
        state=state,
        anchors=anchors,
        handover_objects=frozenset[str]().union(*handovers),
        snapshots={place: offset for place, (offset, _) in snapshots.items()},
        is_settled=lambda found, _: names.is_settled(found),
        # Brokers judge these by the groups' offsets since then and by a configured age; one
        # that stays longer is no fault.
        staged_over=lambda _: False,
        metadata_aged=lambda key: metadata_ms - listed[key][1].modified_ms > context.grace_ms,
    )
    return _Judge(
        reachability,
        {owner: meta.modified_ms for owner, meta in newest.items()},
        metadata_ms,
        {place: put_ms for place, (_, put_ms) in snapshots.items()},
        {
            owner: merged[MergedObjectKey(owner, number)].modified_ms
            for owner, number in names.newest.items()
        },
        await orphaned_before_ms(context, state),
    )


async def _anchor(context: CheckContext, key: str) -> Anchor:
    data = (await context.access.store.get(key)).data
    checkpoint = await context.access.offload.run(decode_checkpoint, key, data)
    return Anchor.of(checkpoint.slot, checkpoint.images)


async def _handover(context: CheckContext, key: str) -> frozenset[str]:
    data = (await context.access.store.get(key)).data
    return frozenset(Images(key, data).objects)
