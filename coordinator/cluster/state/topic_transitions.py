"""Applies the metadata records about topics, their partitions and tenures (rules C1 to C4)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from tidelog.coordinator.cluster.records.records import (
    IncarnationRetired,
    LossAccepted,
    PartitionMoved,
    PartitionsCreated,
    Record,
    TenuresOpened,
    TopicCreated,
    TopicDeleted,
    TopicsForgotten,
)
from tidelog.coordinator.cluster.records.topics import (
    Tenures,
    Topic,
    collision_key,
    topic_name_fault,
)
from tidelog.coordinator.cluster.state.draft import Draft, InvalidRecord
from tidelog.coordinator.cluster.state.incarnations import RetiredWal
from tidelog.identifiers import Incarnation, LeaderEpoch, TopicId, TopicPartition
from tidelog.wal.log.tenure import Tenure

PARTITIONS_PER_TOPIC_MAX = 100_000
LOSSES_MAX = 10_000
"""Accepted losses that the state keeps."""


def _topic_created(draft: Draft, record: TopicCreated) -> None:
    if fault := topic_name_fault(record.name):
        raise InvalidRecord(record, fault)
    key = collision_key(record.name)
    if key in draft.topic_ids.view:
        other = draft.topics.view[draft.topic_ids.view[key]].name
        raise InvalidRecord(record, f"topic {record.name} is or collides with topic {other}")
    if record.topic_id in draft.topics.view:
        raise InvalidRecord(record, f"topic id {record.topic_id} is in use")
    if not 1 <= len(record.owners) <= PARTITIONS_PER_TOPIC_MAX:
        raise InvalidRecord(
            record, f"{len(record.owners)} partitions are not in [1, {PARTITIONS_PER_TOPIC_MAX}]"
        )
    topic = Topic(
        topic_id=record.topic_id,
        name=record.name,
        internal=record.internal,
        configs=dict(record.configs),
        partitions=tuple(draft.first_tenures(record.owners, record)),
    )
    draft.topics.put(record.topic_id, topic)
    draft.topic_ids.put(key, record.topic_id)


def _partitions_created(draft: Draft, record: PartitionsCreated) -> None:
    topic = draft.topic(record.topic_id, record)
    count = topic.partition_count + len(record.owners)
    if not topic.partition_count < count <= PARTITIONS_PER_TOPIC_MAX:
        raise InvalidRecord(
            record,
            f"topic {topic.name} would grow from {topic.partition_count} to {count} partitions;"
            f" it must grow, to at most {PARTITIONS_PER_TOPIC_MAX}",
        )
    added = draft.first_tenures(record.owners, record)
    draft.topics.put(record.topic_id, replace(topic, partitions=(*topic.partitions, *added)))


def _topic_deleted(draft: Draft, record: TopicDeleted) -> None:
    topic = draft.topic(record.topic_id, record)
    draft.topics.drop(record.topic_id)
    draft.topic_ids.drop(collision_key(topic.name))
    draft.deleted.put(record.topic_id, draft.sequence)


def _topics_forgotten(draft: Draft, record: TopicsForgotten) -> None:
    for topic_id in record.topic_ids:
        if topic_id not in draft.deleted.view:
            raise InvalidRecord(record, f"topic {topic_id} is not known as deleted")
        draft.deleted.drop(topic_id)


def _incarnation_retired(draft: Draft, record: IncarnationRetired) -> None:
    info = draft.brokers.view.get(record.epoch)
    if info is None or not info.fenced:
        raise InvalidRecord(record, f"epoch {record.epoch} is not that of a fenced incarnation")
    if record.end_slot < 0:
        raise InvalidRecord(record, f"a WAL cannot end at slot {record.end_slot}")
    following = 0
    for damaged in record.damaged:
        if not following <= damaged.first <= damaged.last < record.end_slot:
            raise InvalidRecord(
                record,
                f"slots {damaged.first} to {damaged.last} are not below its end at"
                f" {record.end_slot} and behind those before",
            )
        following = damaged.last + 1
    successors: dict[TopicPartition, Incarnation] = {}
    given = 0
    for succession in record.successors:
        owner = draft.live(succession.owner, record)
        given += len(succession.partitions)
        for number in succession.partitions:
            successors[TopicPartition(succession.topic_id, number)] = owner
    owned = draft.finish().owned_by(record.epoch)
    if given != len(owned) or successors.keys() != set(owned):
        raise InvalidRecord(
            record,
            f"it gives {given} partitions ({len(successors)} different) to successors and"
            f" incarnation {info.incarnation} owned {len(owned)}, which must be the same",
        )
    changes: dict[TopicId, dict[int, Tenure]] = {}
    for partition, owner in successors.items():
        leader = draft.topics.view[partition.topic_id].partitions[partition.partition][-1]
        tenure = Tenure(LeaderEpoch(leader.leader_epoch + 1), owner, None)
        changes.setdefault(partition.topic_id, {})[partition.partition] = tenure
    for topic_id, tenures in changes.items():
        topic = draft.topics.view[topic_id]
        added = {number: (*topic.partitions[number], new) for number, new in tenures.items()}
        _put_tenures(draft, topic, added)
    draft.brokers.drop(record.epoch)
    retired = RetiredWal(info.incarnation, record.end_slot, record.damaged)
    draft.retired.put(record.epoch, retired)


def _tenures_opened(draft: Draft, record: TenuresOpened) -> None:
    for group in record.opened:
        topic = draft.topic(group.topic_id, record)
        changed: dict[int, Tenures] = {}
        for number in group.partitions:
            leader = _current(topic, number, record)
            if (leader.leader_epoch, leader.incarnation.epoch) != (
                group.leader_epoch,
                draft.author,
            ):
                raise InvalidRecord(
                    record,
                    f"partition {number} of topic {topic.name} is at leader epoch"
                    f" {leader.leader_epoch} of incarnation {leader.incarnation}, not at"
                    f" {group.leader_epoch} of epoch {draft.author}",
                )
            # The opening image is durable: neither an earlier tenure nor a hand-over image can be
            # this partition's base any more (rules C5, F3).
            opened = Tenure(leader.leader_epoch, leader.incarnation, None)
            changed[number] = (opened,)
        _put_tenures(draft, topic, changed)


def _partition_moved(draft: Draft, record: PartitionMoved) -> None:
    topic, leader = _led_by_author(draft, record, "give it away")
    owner = draft.live(record.owner, record)
    if owner == leader.incarnation:
        raise InvalidRecord(record, f"incarnation {owner} has partition {record.partition} already")
    if (record.end is None) == (not record.handover):
        raise InvalidRecord(record, "it must name either the log's end or a hand-over image")
    if record.end is not None and (
        record.leader_epoch != leader.leader_epoch
        or min(record.end.slot, record.end.next_offset) < 0
    ):
        raise InvalidRecord(
            record,
            f"partition {record.partition} is at leader epoch {leader.leader_epoch}, and cannot end"
            f" at leader epoch {record.leader_epoch}, {record.end}",
        )
    epoch = LeaderEpoch(leader.leader_epoch + 1)
    tenure = Tenure(epoch, owner, record.handover, record.end)
    _put_tenures(draft, topic, {record.partition: (*topic.partitions[record.partition], tenure)})


def _loss_accepted(draft: Draft, record: LossAccepted) -> None:
    topic, leader = _led_by_author(draft, record, "accept its loss")
    if record.handover == "":
        raise InvalidRecord(record, "it names no image")
    following = 0
    for lost in record.lost:
        if not following <= lost.first <= lost.last:
            raise InvalidRecord(record, f"offsets {lost.first} to {lost.last} do not ascend")
        following = lost.last + 1
    if len(draft.losses) >= LOSSES_MAX:
        raise InvalidRecord(record, f"{LOSSES_MAX} losses were accepted already")
    if record.handover is not None:
        # The image replaces all of the earlier tenures, which have lost records.
        epoch = LeaderEpoch(leader.leader_epoch + 1)
        tenure = Tenure(epoch, leader.incarnation, record.handover)
        _put_tenures(draft, topic, {record.partition: (tenure,)})
    draft.losses = (*draft.losses, record)


def _led_by_author(
    draft: Draft, record: PartitionMoved | LossAccepted, act: str
) -> tuple[Topic, Tenure]:
    """The record's topic, and the partition's newest tenure; only its owner may do this `act`."""
    topic = draft.topic(record.topic_id, record)
    leader = _current(topic, record.partition, record)
    if leader.incarnation.epoch != draft.author:
        raise InvalidRecord(
            record,
            f"partition {record.partition} of topic {topic.name} belongs to incarnation"
            f" {leader.incarnation}, so epoch {draft.author} cannot {act}",
        )
    return topic, leader


def _put_tenures(draft: Draft, topic: Topic, changed: Mapping[int, Tenures]) -> None:
    """Replace the tenures of some of a topic's partitions."""
    partitions = tuple(
        changed.get(number, tenures) for number, tenures in enumerate(topic.partitions)
    )
    draft.topics.put(topic.topic_id, replace(topic, partitions=partitions))


def _current(topic: Topic, number: int, record: Record) -> Tenure:
    if not 0 <= number < topic.partition_count:
        raise InvalidRecord(record, f"topic {topic.name} has no partition {number}")
    return topic.partitions[number][-1]


TOPIC_TRANSITIONS: Mapping[type[Record], Callable[[Draft, Any], None]] = {
    TopicCreated: _topic_created,
    PartitionsCreated: _partitions_created,
    TopicDeleted: _topic_deleted,
    TopicsForgotten: _topics_forgotten,
    IncarnationRetired: _incarnation_retired,
    TenuresOpened: _tenures_opened,
    PartitionMoved: _partition_moved,
    LossAccepted: _loss_accepted,
}
