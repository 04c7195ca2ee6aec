"""Which objects of a bucket are unreachable, so that no process can need them (rules F1 to F3).

Pure. Its inputs were read in this order: the listings of the objects, the metadata log, the newest
checkpoints and the hand-over images, then the metadata log again, with the same tenures. So each
listed object is older than the state that judges it.

The conditions are a little stricter than F1, so that no WAL need be read:

- A partition's base (C5) is an image in a checkpoint, a hand-over image, or an opening image that
  is not in a checkpoint yet.
- The metadata log learns of an opening only when a checkpoint has it. Until then, it names the
  previous tenure. An object that the opening image refers to is also referred to by the base of
  that tenure, or lies in that tenure's WAL at or above its floor, where nothing is deleted.
- All objects that needed checkpoints and hand-over images refer to are kept, for all partitions.

Each condition, once true, stays true (F2):

- A checkpoint of an incarnation refers only to objects of the previous checkpoint, and to newer
  ones.
- The WAL tells where batches lie. So a start from an older checkpoint that replays the WAL refers
  to the same objects.
- An image that refers to further objects refers to offsets that are in the table (E4).
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from tidelog.bucket.object_keys import (
    WAL_FOLDER,
    BucketObject,
    CheckpointObject,
    HandoverObject,
    MergedObjectKey,
    ProbeObject,
    StagedObject,
    StateObject,
    WalObject,
)
from tidelog.coordinator.cluster.records.topics import Tenures
from tidelog.coordinator.cluster.state.state import ClusterState
from tidelog.identifiers import (
    FIRST_LEADER_EPOCH,
    Epoch,
    Incarnation,
    Slot,
    TenureKey,
    TopicPartition,
)
from tidelog.storage.segment.segment import SegmentName
from tidelog.storage.sequence import NUMBER_DIGITS
from tidelog.storage.table.table_state import TableState
from tidelog.wal.format.image_codec import Images
from tidelog.wal.format.object_format import WAL_SUFFIX, wal_position
from tidelog.wal.log.adoption import object_key
from tidelog.wal.recover.slot_runs import SlotRun, below, runs_of, without


@dataclass(frozen=True, slots=True)
class Anchor:
    """The contents of an incarnation's newest checkpoint."""

    slot: Slot
    """The incarnation's floor."""
    tenures: frozenset[TenureKey]
    objects: frozenset[str]
    """The objects that its images refer to."""

    @classmethod
    def of(cls, slot: Slot, images: Images) -> Anchor:
        """The anchor of a checkpoint that was read."""
        return cls(slot, frozenset(images.tenures), frozenset(images.objects))


def replayed_since_ms(
    slots: Iterable[tuple[WalObject, int]],
    needed: Container[Incarnation],
    anchors: Mapping[Incarnation, Anchor],
) -> int | None:
    """The time of the put of the oldest slot that may be replayed; None if there is none.

    `slots`: all present slots, with the times of their puts by the store's clock.

    An adoption is in a checkpoint or in one of these slots. A slot is put within moments of its
    adoptions, or meets a seal. So take a staged object that was too old for adoption when the
    oldest of these slots was put: it is in none of them, and in no later slot.
    """
    return min(
        (
            put_ms
            for (owner, slot), put_ms in slots
            if owner in needed and (owner not in anchors or slot >= anchors[owner].slot)
        ),
        default=None,
    )


def all_tenures(state: ClusterState) -> Iterator[tuple[TopicPartition, Tenures]]:
    """The tenures of all partitions."""
    for topic in state.topics.values():
        for number, tenures in enumerate(topic.partitions):
            yield TopicPartition(topic.topic_id, number), tenures


def needed_incarnations(state: ClusterState) -> frozenset[Incarnation]:
    """The incarnations whose WAL may be replayed: unretired ones, and those that tenures name."""
    found = {info.incarnation for info in state.brokers.values()}
    for _, tenures in all_tenures(state):
        found.update([tenure.incarnation for tenure in tenures])
    return frozenset(found)


def named_handovers(state: ClusterState) -> frozenset[str]:
    """The hand-over objects that may be the base of a partition."""
    return frozenset(
        tenure.handover
        for _, tenures in all_tenures(state)
        for tenure in tenures
        if tenure.handover is not None
    )


def same_tenures(before: ClusterState, after: ClusterState) -> bool:
    """Whether all partitions that still exist have the same tenures."""
    if before.topics is after.topics:
        return True
    return all(after.tenures(partition) in ((), had) for partition, had in all_tenures(before))


def unanchored(
    state: ClusterState, anchors: Mapping[Incarnation, Anchor]
) -> Iterator[TopicPartition]:
    """Partitions whose references cannot be told without reading a WAL.

    There are none, unless a checkpoint was lost or a foreign program changed the bucket.
    """
    for partition, tenures in all_tenures(state):
        oldest = tenures[0]
        anchor = anchors.get(oldest.incarnation)
        key = (partition, oldest.leader_epoch)
        if (
            oldest.handover is None
            and oldest.leader_epoch != FIRST_LEADER_EPOCH
            and (anchor is None or key not in anchor.tenures)
        ):
            yield partition


def _slots_by_wal(keys: Iterable[str]) -> dict[Incarnation, list[SlotRun]]:
    """The slots among these keys. There may be tens of thousands."""
    slots: dict[str, list[int]] = {}
    for key in keys:
        if key.startswith(WAL_FOLDER):
            folder, _, name = key.rpartition("/")
            digits = name.removesuffix(WAL_SUFFIX)
            if digits.isdecimal():
                slots.setdefault(folder, []).append(int(digits))
    found = {}
    for folder, numbers in slots.items():
        position = wal_position(f"{folder}/{numbers[0]:0{NUMBER_DIGITS}d}{WAL_SUFFIX}")
        if position is not None:
            found[position.incarnation] = runs_of(sorted(numbers))
    return found


@dataclass(frozen=True)
class Reachability:
    """Judges the objects that can be judged without reading a table."""

    state: ClusterState
    anchors: Mapping[Incarnation, Anchor]
    """The anchors of all needed incarnations that have a checkpoint."""
    handover_objects: frozenset[str]
    """The objects that the named hand-over images refer to."""
    snapshots: Mapping[tuple[str, int], int]
    """The newest state snapshot of each internal partition, by name and number."""
    is_settled: Callable[[MergedObjectKey, Slot], bool]
    """Whether no entry of a WAL at or above its floor names this merged object, or ever will.

    Only the process that writes the WAL knows that.
    """
    metadata_aged: Callable[[str], bool]
    """Whether the metadata log has an entry younger than this object by more than the grace.

    Then no process may name the object there any more unless it already has.
    """
    staged_over: Callable[[str], bool]
    """Whether no broker may adopt this staged object, and each adoption is in a checkpoint.

    A checkpoint shows that by its batch; or the object is older than all WAL objects from which an
    adoption may be replayed (H9).
    """
    _needed: frozenset[Incarnation] = field(init=False)
    _handovers: frozenset[str] = field(init=False)
    _referenced: frozenset[str] = field(init=False)
    _referenced_slots: Mapping[Incarnation, Sequence[SlotRun]] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_needed", needed_incarnations(self.state))
        object.__setattr__(self, "_handovers", named_handovers(self.state))
        objects = (anchor.objects for anchor in self.anchors.values())
        referenced = frozenset(map(object_key, self.handover_objects.union(*objects)))
        object.__setattr__(self, "_referenced", referenced)
        object.__setattr__(self, "_referenced_slots", _slots_by_wal(referenced))

    def may_go(self, key: str, found: BucketObject) -> bool:
        """Whether no process can need this object any more.

        False for objects of tables, leases and the metadata log, which are not judged here.
        """
        match found:
            case WalObject(incarnation, slot):
                return bool(self.slots_may_go(incarnation, [SlotRun(slot, slot + 1)]))
            case MergedObjectKey(incarnation):
                return key not in self._referenced and self._merged_may_go(incarnation, found)
            case CheckpointObject(incarnation, slot):
                return self._is_passed(incarnation) or slot < self.floor(incarnation)
            case StateObject(topic, partition, next_offset):
                return next_offset < self.snapshots.get((topic, partition), 0)
            case HandoverObject():
                return key not in self._handovers and self.metadata_aged(key)
            case StagedObject():
                return key not in self._referenced and self.staged_over(key)
            case ProbeObject():
                return True
        return False

    def slots_may_go(self, incarnation: Incarnation, runs: Sequence[SlotRun]) -> list[SlotRun]:
        """The unreachable ones of these slots of a WAL, including seals."""
        if self._is_passed(incarnation):
            # The lowest seal stays for ever: a late put must meet it.
            end = self.state.retired[incarnation.epoch].end_slot
            free = without(runs, [SlotRun(end, end + 1)])
        else:
            free = below(runs, self.floor(incarnation))
        return without(free, self._referenced_slots.get(incarnation, ()))

    def _merged_may_go(self, incarnation: Incarnation, found: MergedObjectKey) -> bool:
        if self._is_passed(incarnation):
            return True
        return self.is_settled(found, self.floor(incarnation))

    def _is_passed(self, incarnation: Incarnation) -> bool:
        """Whether it is retired and no tenure names it: its WAL is not replayed again."""
        return self._is_retired(incarnation.epoch) and incarnation not in self._needed

    def _is_retired(self, epoch: Epoch) -> bool:
        return epoch in self.state.retired

    def floor(self, incarnation: Incarnation) -> Slot:
        """The newest checkpoint's slot, below which no slot is replayed; 0 without a checkpoint."""
        anchor = self.anchors.get(incarnation)
        return Slot(0) if anchor is None else anchor.slot


@dataclass(frozen=True, slots=True)
class StoredSegment:
    """A segment in the bucket, with the time of its put by the store's clock."""

    name: SegmentName
    modified_ms: int


@dataclass(frozen=True, slots=True)
class LooseSegments:
    """Segments that are not in the table's newest version."""

    gone: tuple[SegmentName, ...]
    """They can never enter the table again."""
    may_come: tuple[SegmentName, ...]
    """Their commit may still arrive: the table has no commit since they became too old."""


def loose_segments(
    table: TableState,
    newest_commit_ms: int,
    stored: Iterable[StoredSegment],
    grace_ms: int,
) -> LooseSegments:
    """The stored segments that a table does not list.

    A committer of a segment first reads the table, and then checks that it began to write the
    segment less than half the grace ago (`TableLog.commit`). So a commit that is made more than the
    grace after the put of a segment keeps late committers from adding it: their version number is
    taken. `newest_commit_ms`: the time of the put of the table's newest commit, by the store's
    clock.
    """
    gone, may_come = [], []
    for each in stored:
        name = each.name
        if table.partition(name.partition).holds(name):
            continue
        if name in table.removed or newest_commit_ms - each.modified_ms >= grace_ms:
            gone.append(name)
        else:
            may_come.append(name)
    return LooseSegments(tuple(gone), tuple(may_come))
