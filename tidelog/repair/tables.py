"""Which tables have lost data, what remains of them, and how they continue.

Lost segments leave the table by a commit. A table log with a lost entry is cut there, since the
entries after it do not tell what it held. Readable segments after the cut that follow each other
come back by a commit, since their files describe them. Offsets between them count as lost: whether
they had a segment only the lost entries told.

The metadata log has the lost offsets first: a table without a segment does not tell that it had
one. Accepting a cut then, step by step, and the state if the process dies after each:

1. The hint goes back to a checkpoint below the cut. The entry is lost as before.
2. Objects at the cut and above are deleted, the highest first. While one is left, the log is as
   damaged as before. When none is left, tails begin after the table's end, which is damage too.
3. One commit brings back the remaining segments, and removes the lost ones.

In internal topics, snapshots of a coordinator's state take the place of a table.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from tidelog.bucket.fsck.context import Progress
from tidelog.bucket.fsck.segment_check import check_segment, read_whole
from tidelog.bucket.views.reading import BucketAccess, BucketView
from tidelog.bucket.views.states import GROUPS, TRANSACTIONS
from tidelog.coordinator.cluster.records.records import LossAccepted, OffsetRange
from tidelog.coordinator.cluster.records.topics import Topic
from tidelog.coordinator.cluster.state.state import ClusterState
from tidelog.coordinator.snapshots import apply_snapshot
from tidelog.errors import CorruptObject, MissingObject
from tidelog.identifiers import TopicPartition
from tidelog.repair.partitions import SoundEnd
from tidelog.storage.object_store import ObjectNotFound
from tidelog.storage.segment.segment import Segment, SegmentName, table_prefix
from tidelog.storage.segment.segment_reader import SegmentReader
from tidelog.storage.sequence import NUMBER_DIGITS
from tidelog.storage.table.table_change import PartitionChange, TableAdvance, decode_commit
from tidelog.storage.table.table_checkpoint import decode_checkpoint
from tidelog.storage.table.table_log import TableCommitted, commit_key, log_prefix
from tidelog.storage.table.table_state import NO_VERSION, PartitionTable, TableState

_COMMIT_SUFFIX = ".json"
_CHECKPOINT_SUFFIX = ".checkpoint.parquet"
_HINT = "_last_checkpoint"


@dataclass(frozen=True, slots=True)
class Cut:
    """A table log that is cut at a version."""

    fault: CorruptObject
    checkpoint: int
    """The newest readable checkpoint below the cut, or NO_VERSION."""
    deleted: tuple[str, ...]
    """The log's objects at the cut and above, the highest first; then unreadable checkpoints."""
    readopted: Mapping[int, Sequence[Segment]]
    """The segments that come back, by partition."""


@dataclass(frozen=True, slots=True)
class TableDamage:
    """The losses of one topic's table."""

    topic: Topic
    state: TableState
    """The readable state."""
    cut: Cut | None
    lost: Mapping[Segment, CorruptObject]
    """The unreadable segments and their faults."""

    @property
    def faults(self) -> dict[str, str]:
        """The faults of the objects to blame, by their keys."""
        errors = [*self.lost.values(), *([] if self.cut is None else [self.cut.fault])]
        return {error.key: error.why for error in errors}

    def lost_of(self, partition: int) -> list[Segment]:
        """The lost segments of one partition, by offset."""
        found = [each for each in self.lost if each.name.partition == partition]
        return sorted(found, key=lambda each: each.name.base_offset)

    def gaps_of(self, partition: int) -> list[OffsetRange]:
        """The offsets between segments that come back: the lost entries may have listed others."""
        found = []
        end = self.state.partition(partition).next_offset
        for segment in self.cut.readopted.get(partition, ()) if self.cut is not None else ():
            if segment.name.base_offset > end:
                found.append(OffsetRange(end, segment.name.base_offset - 1))
            end = segment.name.last_offset + 1
        return found

    def lost_offsets_of(self, partition: int) -> list[OffsetRange]:
        """The offsets that one partition gives up."""
        segments = [
            OffsetRange(each.name.base_offset, each.name.last_offset)
            for each in self.lost_of(partition)
        ]
        return [*segments, *self.gaps_of(partition)]

    @property
    def partitions(self) -> list[int]:
        """The partitions that have lost offsets."""
        back = self.cut.readopted if self.cut is not None else ()
        return sorted(
            {
                *(each.name.partition for each in self.lost),
                *(number for number in back if self.gaps_of(number)),
            }
        )

    def end(self, partition: int) -> PartitionTable:
        """The remaining part of a partition, including the segments that come back."""
        table = self.state.partition(partition)
        back = self.cut.readopted.get(partition, ()) if self.cut is not None else ()
        return PartitionTable(back[-1].name.last_offset + 1) if back else table

    def accepted(self, wanted: Collection[str]) -> TableDamage | None:
        """The named part of the damage: by topic, partition or key."""
        name = self.topic.name
        cut = self.cut if self.cut and {name, self.cut.fault.key} & set(wanted) else None
        lost = {
            segment: error
            for segment, error in self.lost.items()
            if {name, f"{name}-{segment.name.partition}", error.key} & set(wanted)
        }
        if (self.cut is not None and cut is None) or not (cut or lost):
            return None
        return TableDamage(self.topic, self.state, cut, lost)


async def damaged_tables(
    access: BucketAccess, view: BucketView, progress: Progress
) -> list[TableDamage]:
    """The tables that have lost data, by name.

    `view` is of all partitions: a tail may show that its table has lost its newest entries.
    `progress` is called with the key of each segment that was read. Raises StoreError and
    UnsupportedFormat.
    """
    found = []
    state = view.state
    ends = {
        partition.topic_id: error
        for partition, error in view.failures.items()
        # Other errors are the table's own, or tell of a log that has lost its end.
        if isinstance(error, MissingObject) and error.key.startswith(log_prefix(partition.topic_id))
    }
    for topic in sorted(state.topics.values(), key=lambda topic: topic.name):
        if not topic.internal:
            damage = await _damage_of(access, topic, ends.get(topic.topic_id), progress)
            if damage is not None:
                found.append(damage)
    return found


async def sound_ends(
    access: BucketAccess, state: ClusterState, damaged: Iterable[TableDamage]
) -> dict[TopicPartition, SoundEnd]:
    """The end of the readable part of each partition's table."""
    damages = {damage.topic.topic_id: damage for damage in damaged}
    ends = {}
    for topic in state.topics.values():
        damage = damages.get(topic.topic_id)
        table = None
        if not topic.internal and damage is None:
            table = (await access.open_table(topic)).state
        for number in range(topic.partition_count):
            place = TopicPartition(topic.topic_id, number)
            if topic.internal:
                ends[place] = await _snapshot_end(access, topic, number)
            elif damage is None:
                assert table is not None
                ends[place] = SoundEnd(table.partition(number))
            else:
                ends[place] = SoundEnd(damage.end(number))
    return ends


def losses_of(damage: TableDamage) -> list[LossAccepted]:
    """The records for the metadata log of a table's losses."""
    return [
        LossAccepted(
            damage.topic.topic_id,
            number,
            None,
            tuple(damage.lost_offsets_of(number)),
            tuple(each.key(damage.topic.topic_id) for each in damage.lost_of(number)),
        )
        for number in damage.partitions
    ]


async def accept_table(access: BucketAccess, damage: TableDamage) -> None:
    """Accept a table's losses, which the metadata log has already."""
    if damage.cut is not None:
        await _cut(access, damage.topic, damage.cut)
    log = await access.open_table(damage.topic)
    changes = _changes(log.state, damage)
    if changes:
        result = await log.commit(changes)
        if not isinstance(result, TableCommitted):
            raise CorruptObject(commit_key(log.topic_id, log.state.version), result.reason)


def _changes(state: TableState, damage: TableDamage) -> tuple[PartitionChange, ...]:
    readopted = damage.cut.readopted if damage.cut is not None else {}
    changes = []
    for number in sorted({*readopted, *damage.partitions}):
        back = tuple(readopted.get(number, ()))
        advance = None
        if back:
            base = state.partition(number).next_offset
            advance = TableAdvance(base, back[-1].name.last_offset + 1)
        removed = tuple(each.name for each in damage.lost_of(number))
        changes.append(
            PartitionChange(partition=number, advance=advance, appended=back, removed=removed)
        )
    return tuple(changes)


async def _damage_of(
    access: BucketAccess, topic: Topic, end: CorruptObject | None, progress: Progress
) -> TableDamage | None:
    cut = None
    try:
        state = (await access.open_table(topic)).state
        if end is not None:
            raise end
    except CorruptObject as error:
        state, cut = await _find_cut(access, topic, error)
        if error is end and not cut.deleted and not cut.readopted:
            # Nothing of the table is left behind its end. The tail gives up what it lacks.
            cut = None
    lost: dict[Segment, CorruptObject] = {}
    for number in state.partitions:
        partition = TopicPartition(topic.topic_id, number)
        for stored in state.partition(number).segments:
            fault = await _segment_fault(access, partition, stored.segment)
            if fault is not None:
                lost[stored.segment] = fault
            progress(stored.segment.key(topic.topic_id))
    return None if cut is None and not lost else TableDamage(topic, state, cut, lost)


async def _segment_fault(
    access: BucketAccess, partition: TopicPartition, segment: Segment
) -> CorruptObject | None:
    try:
        await check_segment(access.store, access.offload, partition, segment, deep=True)
    except ObjectNotFound:
        key = segment.key(partition.topic_id)
        return MissingObject(key, "it is missing: the table lists it")
    except CorruptObject as error:
        return error
    return None


async def _find_cut(
    access: BucketAccess, topic: Topic, error: CorruptObject
) -> tuple[TableState, Cut]:
    """The newest state that the log leads to, and the cut after it, if any."""
    prefix = log_prefix(topic.topic_id)
    listed = [meta.key async for meta in access.store.list(prefix)]
    commits = _versions(prefix, listed, _COMMIT_SUFFIX)
    checkpoints = _versions(prefix, listed, _CHECKPOINT_SUFFIX)
    state, base = TableState(topic.topic_id), NO_VERSION
    unreadable: list[str] = []
    for version in sorted(checkpoints, reverse=True):
        try:
            key = checkpoints[version]
            data = (await access.store.get(key)).data
            state = await access.offload.run(decode_checkpoint, key, data, topic.topic_id, version)
            base = version
            break
        except CorruptObject:
            unreadable.append(key)
    while state.version + 1 in commits:
        version = state.version + 1
        try:
            data = (await access.store.get(commits[version])).data
            commit = await access.offload.run(decode_commit, commits[version], data, topic.topic_id)
            state.apply(commits[version], version, commit)
        except CorruptObject:
            break
    above = {
        (version, key)
        for found in (commits, checkpoints)
        for version, key in found.items()
        if version > state.version
    }
    deleted = tuple(dict.fromkeys([*(key for _, key in sorted(above, reverse=True)), *unreadable]))
    back = await _left_behind(access, topic, state)
    return state, Cut(error, base, deleted, back)


def _versions(prefix: str, keys: Iterable[str], suffix: str) -> dict[int, str]:
    found = {}
    for key in keys:
        digits = key.removeprefix(prefix).removesuffix(suffix)
        if key.endswith(suffix) and len(digits) == NUMBER_DIGITS and digits.isdecimal():
            found[int(digits)] = key
    return found


async def _left_behind(
    access: BucketAccess, topic: Topic, state: TableState
) -> dict[int, list[Segment]]:
    """The readable segments after the ends; those of each partition follow each other.

    Of several with the same start, the longest counts.
    """
    prefix = table_prefix(topic.topic_id)
    names = []
    async for meta in access.store.list(prefix):
        name = SegmentName.parse(meta.key.removeprefix(prefix))
        if name is not None and name.partition < topic.partition_count:
            names.append(name)
    names.sort(key=lambda name: (name.partition, name.base_offset, -name.last_offset))
    found: dict[int, list[Segment]] = {}
    ends = {number: state.partition(number).next_offset for number in range(topic.partition_count)}
    for name in names:
        if name.base_offset < ends[name.partition]:
            continue
        segment = await _described(access, topic, name)
        if segment is not None:
            found.setdefault(name.partition, []).append(segment)
            ends[name.partition] = name.last_offset + 1
    return found


async def _described(access: BucketAccess, topic: Topic, name: SegmentName) -> Segment | None:
    """The table entry of a segment, made from its file; None if that cannot be read."""
    key = table_prefix(topic.topic_id) + name.path
    try:
        reader = await SegmentReader.open_key(access.store, access.offload, key)
        rows, crc = await read_whole(access.store, access.offload, reader.index)
    except (CorruptObject, ObjectNotFound):
        return None
    identity = reader.index.identity
    said = identity.topic_partition, identity.base_offset, identity.last_offset
    place = TopicPartition(topic.topic_id, name.partition)
    if said != (place, name.base_offset, name.last_offset):
        return None
    return Segment(
        name=name,
        size_bytes=reader.index.size_bytes,
        crc32c=crc,
        tail_bytes=reader.index.tail_bytes,
        **rows.facts(),  # type: ignore[arg-type]  # as `Segment` names them
    )


async def _cut(access: BucketAccess, topic: Topic, cut: Cut) -> None:
    key = log_prefix(topic.topic_id) + _HINT
    if cut.checkpoint == NO_VERSION:
        await access.store.delete(key)
    else:
        await access.store.put(key, json.dumps({"version": cut.checkpoint}).encode())
    for each in cut.deleted:
        await access.store.delete(each)


async def _snapshot_end(access: BucketAccess, topic: Topic, number: int) -> SoundEnd:
    """The newest readable state of a coordinator."""
    (kind,) = [each for each in (TRANSACTIONS, GROUPS) if each.topic == topic.name]
    origin = access.origin(topic, number)
    keys = [meta.key async for meta in access.store.list(origin.prefix)]
    faults: list[CorruptObject] = []
    for key in reversed(keys):
        offset = origin.offset_in(key)
        if offset is None:
            continue
        try:
            data = (await access.store.get(key)).data
            await apply_snapshot(access.offload, kind.table, origin, key, data, lambda _: None)
            return SoundEnd(PartitionTable(offset), tuple(faults))
        except CorruptObject as error:
            faults.append(error)
    return SoundEnd(PartitionTable(0), tuple(faults))
