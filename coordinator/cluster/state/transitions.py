"""Applies each metadata record to the cluster's state, if it is valid (rules A1, A4, C)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from uuid import UUID

from tidelog.coordinator.cluster.records.bucket_format import is_cluster_id
from tidelog.coordinator.cluster.records.codec import INTEGER_MAX
from tidelog.coordinator.cluster.records.credentials import CREDENTIALS_PREFIX
from tidelog.coordinator.cluster.records.records import (
    ALONE_VERSION,
    FIRST_LEVEL,
    AclsChanged,
    BrokerFenced,
    BrokerRegistered,
    ClusterCreated,
    ConfigsChanged,
    ConfigScope,
    CredentialsChanged,
    DrainChanged,
    IncarnationRetired,
    IncarnationsForgotten,
    LeaseResumed,
    LevelRaised,
    ListenersRegistered,
    LogEndAccepted,
    LossAccepted,
    PartitionMoved,
    PartitionsCreated,
    ProducerIdsAllocated,
    QuotasChanged,
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
from tidelog.coordinator.cluster.state.acl_table import ACL_RULES_MAX
from tidelog.coordinator.cluster.state.draft import Draft, InvalidRecord
from tidelog.coordinator.cluster.state.incarnations import BrokerInfo, RetiredWal
from tidelog.identifiers import (
    Epoch,
    Incarnation,
    LeaderEpoch,
    ProducerId,
    TopicId,
    TopicPartition,
)
from tidelog.wal.log.tenure import Tenure

if TYPE_CHECKING:
    from tidelog.coordinator.cluster.state.state import ClusterState

PARTITIONS_PER_TOPIC_MAX = 100_000
BROKER_ID_MAX = 2**31 - 1
PORT_MAX = 2**16 - 1
LISTENERS_MAX = 64
OVERRIDES_MAX = 100_000
"""Brokers and groups with overrides."""
QUOTA_ENTITIES_MAX = 100_000
"""Users, client ids and addresses with quotas."""
LOSSES_MAX = 10_000
"""Accepted losses that the state keeps."""
GROUP_NAME_BYTES_MAX = 1024
"""The name of a group with overrides, in UTF-8: it bounds state and snapshots."""


def extend(state: ClusterState, author: Epoch | None, records: Sequence[Record]) -> ClusterState:
    """The state after `records` as a part of the entry that follows `state.sequence`."""
    if not records:
        return state
    draft = Draft(state, author)
    if author is None:
        _check_without_author(state, records)
    for record in records:
        if author is not None:
            _check_author(draft, author, record)
        TRANSITIONS[type(record)](draft, record)
    return draft.finish()


def _check_author(draft: Draft, author: Epoch, record: Record) -> None:
    """Rule A4; within an entry too, so that an incarnation may fence itself in its last record."""
    info = draft.brokers.view.get(author)
    if info is None:
        raise InvalidRecord(record, f"its author, epoch {author}, is not registered")
    if info.fenced:
        raise InvalidRecord(record, f"its author, incarnation {info.incarnation}, is fenced")


def _check_without_author(state: ClusterState, records: Sequence[Record]) -> None:
    """Check the records of a process without an epoch.

    It may create the cluster, accept the loss of the log's end, or register itself and fence its
    own predecessor (rule B1).
    """
    if state.sequence < 0:
        if len(records) != 1 or not isinstance(records[0], ClusterCreated):
            raise InvalidRecord(records[0], "entry 0 creates the cluster and does nothing else")
        return
    *others, last = records
    if isinstance(last, ListenersRegistered) and others:
        *others, last = others
    if isinstance(last, LogEndAccepted) and not others:
        return
    if isinstance(last, CredentialsChanged) and not others and state.sequence == 0:
        return
    if not isinstance(last, BrokerRegistered):
        raise InvalidRecord(last, "its author is not registered")
    for record in others:
        predecessor = state.brokers.get(record.epoch) if isinstance(record, BrokerFenced) else None
        if predecessor is None or predecessor.broker_id != last.broker_id:
            raise InvalidRecord(record, "a registering broker may only fence its own predecessor")


def _cluster_created(draft: Draft, record: ClusterCreated) -> None:
    if draft.sequence != 0 or draft.cluster is not None:
        raise InvalidRecord(record, "only entry 0 creates a cluster")
    if not is_cluster_id(record.cluster_id):
        raise InvalidRecord(record, f"{record.cluster_id!r} is not a UUID in base64")
    versions = (record.format_version, record.minimum_reader_version, record.minimum_writer_version)
    if min(versions) < 1:
        raise InvalidRecord(record, f"versions {versions} begin below 1")
    draft.cluster = record


def _broker_registered(draft: Draft, record: BrokerRegistered) -> None:
    if not 0 <= record.broker_id <= BROKER_ID_MAX:
        raise InvalidRecord(record, f"broker id {record.broker_id} is not in [0, {BROKER_ID_MAX}]")
    if not 1 <= record.port <= PORT_MAX or record.host == "":
        raise InvalidRecord(record, f"{record.host!r}:{record.port} is not an address")
    if record.session_timeout_ms <= 0:
        raise InvalidRecord(
            record, f"session timeout {record.session_timeout_ms} ms is not above 0"
        )
    if record.version < ALONE_VERSION or record.rack == "":
        raise InvalidRecord(record, f"version {record.version} in rack {record.rack!r}")
    if record.version < draft.level:
        raise InvalidRecord(
            record, f"version {record.version} is below the cluster's level {draft.level}"
        )
    if record.broker_id in draft.live_epochs.view:
        other = draft.live_epochs.view[record.broker_id]
        raise InvalidRecord(record, f"incarnation {record.broker_id}-{other} is not fenced")
    epoch = Epoch(draft.sequence)
    if epoch in draft.brokers.view:
        raise InvalidRecord(record, "its entry already registers a broker")
    info = BrokerInfo(
        incarnation=Incarnation(record.broker_id, epoch),
        host=record.host,
        port=record.port,
        process=record.process,
        session_timeout_ms=record.session_timeout_ms,
        last_entry=draft.sequence,
        rack=record.rack,
        version=record.version,
    )
    draft.brokers.put(epoch, info)
    draft.live_epochs.put(record.broker_id, epoch)


def _listeners_registered(draft: Draft, record: ListenersRegistered) -> None:
    info = draft.brokers.view.get(Epoch(draft.sequence))
    if info is None or info.endpoints:
        raise InvalidRecord(record, "its entry registers no broker before it")
    names = [each.listener for each in record.endpoints]
    if not 1 <= len(set(names)) == len(names) <= LISTENERS_MAX:
        raise InvalidRecord(record, f"{names} are not 1 to {LISTENERS_MAX} different listeners")
    for each in record.endpoints:
        if not each.listener or not 1 <= each.port <= PORT_MAX or each.host == "":
            raise InvalidRecord(record, f"{each} is not an address")
    if (info.host, info.port) not in [(each.host, each.port) for each in record.endpoints]:
        raise InvalidRecord(record, f"no listener has the address {info.host}:{info.port}")
    draft.brokers.put(info.epoch, replace(info, endpoints=record.endpoints))


def _lease_resumed(draft: Draft, record: LeaseResumed) -> None:
    if record.epoch != draft.author:
        raise InvalidRecord(record, f"{draft.author} cannot speak for epoch {record.epoch}")


def _broker_fenced(draft: Draft, record: BrokerFenced) -> None:
    incarnation = draft.live(record.epoch, record)
    if record.durable_end < 0:
        raise InvalidRecord(record, f"{record.durable_end} slots cannot be durable")
    info = draft.brokers.view[record.epoch]
    fenced = replace(info, fenced=True, durable_end=record.durable_end, draining=False)
    draft.brokers.put(record.epoch, fenced)
    draft.live_epochs.drop(incarnation.broker_id)


def _drain_changed(draft: Draft, record: DrainChanged) -> None:
    incarnation = draft.live(record.epoch, record)
    info = draft.brokers.view[record.epoch]
    if info.draining == record.draining:
        state = "drained already" if info.draining else "not being drained"
        raise InvalidRecord(record, f"incarnation {incarnation} is {state}")
    if record.draining and not any(
        epoch != record.epoch and not draft.brokers.view[epoch].draining
        for epoch in draft.live_epochs.view.values()
    ):
        raise InvalidRecord(record, f"only incarnation {incarnation} can take partitions")
    draft.brokers.put(record.epoch, replace(info, draining=record.draining))


def _level_raised(draft: Draft, record: LevelRaised) -> None:
    if record.level <= max(draft.level, FIRST_LEVEL):
        raise InvalidRecord(
            record, f"level {record.level} is not above {max(draft.level, FIRST_LEVEL)}"
        )
    for epoch in draft.live_epochs.view.values():
        info = draft.brokers.view[epoch]
        if info.version < record.level:
            raise InvalidRecord(
                record, f"incarnation {info.incarnation} has version {info.version}"
            )
    draft.level = record.level


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


def _incarnations_forgotten(draft: Draft, record: IncarnationsForgotten) -> None:
    named = {
        tenure.incarnation.epoch
        for topic in draft.topics.view.values()
        for tenures in set(topic.partitions)
        for tenure in tenures
    }
    for epoch in record.epochs:
        if epoch not in draft.retired.view:
            raise InvalidRecord(record, f"epoch {epoch} is not that of a retired incarnation")
        if epoch in named:
            raise InvalidRecord(record, f"a partition's tenures name epoch {epoch}")
        draft.retired.drop(epoch)


def _configs_changed(draft: Draft, record: ConfigsChanged) -> None:
    if record.scope is ConfigScope.TOPIC:
        try:
            topic_id = UUID(record.name)
        except ValueError as error:
            raise InvalidRecord(record, f"{record.name!r} is not a topic id") from error
        topic = draft.topic(topic_id, record)
        draft.topics.put(topic.topic_id, replace(topic, configs=dict(record.overrides)))
        return
    if record.scope is ConfigScope.CLUSTER and record.name != "":
        raise InvalidRecord(record, f"the cluster's default has no name, not {record.name!r}")
    if record.scope is ConfigScope.BROKER and not (
        record.name.isascii()
        and record.name.isdigit()
        and record.name == str(int(record.name))
        and int(record.name) <= BROKER_ID_MAX
    ):
        raise InvalidRecord(record, f"{record.name!r} is not a broker id")
    if record.scope is ConfigScope.GROUP:
        size = len(record.name.encode())
        if not 0 < size <= GROUP_NAME_BYTES_MAX:
            raise InvalidRecord(
                record, f"a group's name has 1 to {GROUP_NAME_BYTES_MAX} bytes, not {size}"
            )
    place = (record.scope, record.name)
    known = draft.overrides.view
    if record.overrides and place not in known and len(known) >= OVERRIDES_MAX:
        raise InvalidRecord(
            record, f"{OVERRIDES_MAX} brokers and groups have settings of their own already"
        )
    if record.overrides:
        draft.overrides.put(place, dict(record.overrides))
    elif place in known:
        draft.overrides.drop(place)


def _acls_changed(draft: Draft, record: AclsChanged) -> None:
    known = draft.acls
    for rule in record.deleted:
        if rule not in known:
            raise InvalidRecord(record, f"there is no rule {rule}")
    for rule in record.created:
        if fault := rule.fault():
            raise InvalidRecord(record, fault)
        if rule in known:
            raise InvalidRecord(record, f"there is a rule {rule} already")
    for rules in (record.created, record.deleted):
        if len(set(rules)) != len(rules):
            raise InvalidRecord(record, "it names a rule twice")
    if known.count + len(record.created) > ACL_RULES_MAX:
        raise InvalidRecord(
            record,
            f"the cluster has {known.count} rules and takes at most {ACL_RULES_MAX}; delete some,"
            " or use prefixes and groups",
        )
    draft.acls = known.changed(record.created, record.deleted)


def _quotas_changed(draft: Draft, record: QuotasChanged) -> None:
    fault = record.entity.fault()
    for key, value in record.quotas.items():
        fault = fault or record.entity.value_fault(key, value)
    if fault is not None:
        raise InvalidRecord(record, fault)
    known = draft.quotas.view
    if record.quotas:
        if record.entity not in known and len(known) >= QUOTA_ENTITIES_MAX:
            raise InvalidRecord(
                record, f"{QUOTA_ENTITIES_MAX} users, client ids and addresses have quotas already"
            )
        draft.quotas.put(record.entity, dict(record.quotas))
    elif record.entity in known:
        draft.quotas.drop(record.entity)
    else:
        raise InvalidRecord(record, f"there are no quotas of {record.entity}")


def _credentials_changed(draft: Draft, record: CredentialsChanged) -> None:
    if not record.key.startswith(CREDENTIALS_PREFIX):
        raise InvalidRecord(record, f"{record.key!r} is not below {CREDENTIALS_PREFIX}")
    if record.previous != draft.credentials:
        raise InvalidRecord(
            record, f"the credentials are {draft.credentials}, and it replaces {record.previous}"
        )
    draft.credentials = record.key


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
    topic, leader = _led_by_author(draft, record, "give up what is lost of it")
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


def _log_end_accepted(draft: Draft, record: LogEndAccepted) -> None:
    entries = record.entries
    if not 0 < entries.first <= draft.sequence <= entries.last:
        raise InvalidRecord(
            record,
            f"it is entry {draft.sequence}, which is not among entries {entries.first} to"
            f" {entries.last}",
        )
    if entries not in draft.lost_entries:
        draft.lost_entries = (*draft.lost_entries, entries)


def _current(topic: Topic, number: int, record: Record) -> Tenure:
    if not 0 <= number < topic.partition_count:
        raise InvalidRecord(record, f"topic {topic.name} has no partition {number}")
    return topic.partitions[number][-1]


def _producer_ids_allocated(draft: Draft, record: ProducerIdsAllocated) -> None:
    if record.first != draft.next_producer_id:
        raise InvalidRecord(
            record, f"the next free producer id is {draft.next_producer_id}, not {record.first}"
        )
    if not 1 <= record.count <= INTEGER_MAX - record.first:
        raise InvalidRecord(record, f"{record.count} ids cannot be given out from {record.first}")
    draft.next_producer_id = ProducerId(record.first + record.count)


TRANSITIONS: Mapping[type[Record], Callable[[Draft, Any], None]] = {
    ClusterCreated: _cluster_created,
    BrokerRegistered: _broker_registered,
    ListenersRegistered: _listeners_registered,
    LeaseResumed: _lease_resumed,
    BrokerFenced: _broker_fenced,
    DrainChanged: _drain_changed,
    LevelRaised: _level_raised,
    IncarnationRetired: _incarnation_retired,
    TopicCreated: _topic_created,
    PartitionsCreated: _partitions_created,
    TopicDeleted: _topic_deleted,
    TopicsForgotten: _topics_forgotten,
    IncarnationsForgotten: _incarnations_forgotten,
    ConfigsChanged: _configs_changed,
    AclsChanged: _acls_changed,
    QuotasChanged: _quotas_changed,
    CredentialsChanged: _credentials_changed,
    TenuresOpened: _tenures_opened,
    PartitionMoved: _partition_moved,
    LossAccepted: _loss_accepted,
    LogEndAccepted: _log_end_accepted,
    ProducerIdsAllocated: _producer_ids_allocated,
}
