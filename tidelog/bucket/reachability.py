"""Finds unreachable objects of a bucket, which no process can need any more (rules F1 to F3).

Pure. Its inputs were read in this order: the listings of the objects, the metadata log, the newest
checkpoints and the hand-over images, then the metadata log again, with the same tenures. So each
listed object is older than the state that judges it.

The conditions are a little stricter than F1, so that no WAL need be read:

- A partition's base (C5) is an image in a checkpoint, a hand-over image, or an opening image that
  is not in a checkpoint yet.
- The metadata log learns of an opening only when a checkpoint has it. Until then, it names the
  previous tenure. So the objects of the opening image are kept: the base of that tenure refers to
  them too, or they lie in its WAL at or above the floor, where nothing is deleted.
- All objects that needed checkpoints and hand-over images refer to are kept, for all partitions.

Each condition, once true, stays true (F2):

- A checkpoint of an incarnation refers only to objects of the previous checkpoint, and to newer
  ones.
- The WAL tells where batches lie. So a start from an older checkpoint that replays the WAL refers
  to the same objects.
- An image that refers to further objects refers to offsets that are in the table (E4).
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from tidelog.bucket.object_keys import (
    BucketObject,
    CheckpointObject,
    CredentialsObject,
    HandoverObject,
    MergedObjectKey,
    ProbeObject,
    StagedObject,
    StateObject,
    WalObject,
)
from tidelog.bucket.survey import Survey, WalReachability
from tidelog.coordinator.cluster.records.topics import Tenures
from tidelog.coordinator.cluster.state.state import ClusterState
from tidelog.identifiers import (
    FIRST_LEADER_EPOCH,
    Incarnation,
    Slot,
    TenureKey,
    TopicPartition,
)
from tidelog.storage.segment.segment import SegmentName
from tidelog.storage.table.table_state import TableState
from tidelog.wal.format.image_codec import Images
from tidelog.wal.log.adoption import object_key


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
    """See `WalReachability`."""
    metadata_aged: Callable[[str], bool]
    """Whether the metadata log has an entry younger than this object by more than the grace.

    Then no process may name the object there any more unless it already has.
    """
    staged_over: Callable[[str], bool]
    """Whether no broker may adopt this staged object, and each adoption is in a checkpoint.

    A checkpoint shows that by its batch; or the object is older than all WAL objects from which an
    adoption may be replayed (H9).
    """
    _handovers: frozenset[str] = field(init=False)
    _referenced: frozenset[str] = field(init=False)
    wals: WalReachability = field(init=False)
    """The judge of the WALs' own objects."""

    def __post_init__(self) -> None:
        objects = (anchor.objects for anchor in self.anchors.values())
        referenced = frozenset(map(object_key, self.handover_objects.union(*objects)))
        floors = {owner: anchor.slot for owner, anchor in self.anchors.items()}
        needed = needed_incarnations(self.state)
        survey = Survey.of(self.state.stamp, needed, floors, referenced)
        object.__setattr__(self, "_handovers", named_handovers(self.state))
        object.__setattr__(self, "_referenced", referenced)
        object.__setattr__(self, "wals", WalReachability(survey, self.state, self.is_settled))

    def may_go(self, key: str, found: BucketObject) -> bool:
        """Whether no process can need this object any more.

        False for objects of tables, leases and the metadata log, which are not judged here.
        """
        match found:
            case WalObject() | MergedObjectKey() | CheckpointObject():
                return self.wals.may_go(key, found)
            case StateObject(topic, partition, next_offset):
                return next_offset < self.snapshots.get((topic, partition), 0)
            case HandoverObject():
                return key not in self._handovers and self.metadata_aged(key)
            case CredentialsObject():
                return key != self.state.credentials and self.metadata_aged(key)
            case StagedObject():
                return key not in self._referenced and self.staged_over(key)
            case ProbeObject():
                return True
        return False


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
