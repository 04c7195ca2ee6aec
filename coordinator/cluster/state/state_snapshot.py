"""The cluster's state as one object, so that a broker need not read the log from its beginning."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from tidelog.coordinator.cluster.records.acl_rules import AclRule
from tidelog.coordinator.cluster.records.codec import Json, Mismatch, from_json, to_json
from tidelog.coordinator.cluster.records.documents import decode_document, encode_document
from tidelog.coordinator.cluster.records.process_identity import ProcessIdentity
from tidelog.coordinator.cluster.records.records import (
    ALONE_VERSION,
    ClusterCreated,
    ConfigsChanged,
    Endpoint,
    EntryRange,
    LossAccepted,
    QuotasChanged,
    SlotRange,
)
from tidelog.coordinator.cluster.records.topics import Tenures, Topic, collision_key
from tidelog.coordinator.cluster.state.acl_table import NO_RULES
from tidelog.coordinator.cluster.state.incarnations import BrokerInfo, RetiredWal
from tidelog.coordinator.cluster.state.state import ClusterState
from tidelog.errors import CorruptObject
from tidelog.identifiers import (
    FIRST_SLOT,
    BrokerId,
    Epoch,
    Incarnation,
    LeaderEpoch,
    ProducerId,
    Slot,
    TopicId,
)
from tidelog.storage.object_store import Buffer
from tidelog.wal.log.tenure import Tenure, TenureEnd

SNAPSHOT_MAGIC = "tidelog.metadata.snapshot"
SNAPSHOT_FORMAT = 9
"""The newest format that this Tidelog reads."""
BASE_FORMAT = 4
"""Brokers have `rack` and `version`; tenures say where the one before ended."""
FORMAT_OF_MEMBER: Mapping[str, int] = MappingProxyType(
    {
        "draining": 5,
        "acls": 6,
        "listeners": 7,
        "credentials": 7,
        "level": 8,
        "quotas": 9,
    }
)
"""The members that a snapshot has only while they are not empty, and the formats that have them.

So releases without such a member read the snapshots of clusters that do not use it.
"""


@dataclass(frozen=True, slots=True)
class _Broker:
    broker_id: BrokerId
    epoch: Epoch
    host: str
    port: int
    process: ProcessIdentity
    session_timeout_ms: int
    last_entry: int
    fenced: bool
    durable_end: Slot = FIRST_SLOT
    rack: str | None = None
    version: int = ALONE_VERSION


@dataclass(frozen=True, slots=True)
class _Retired:
    broker_id: BrokerId
    epoch: Epoch
    end_slot: Slot
    damaged: tuple[SlotRange, ...] = ()


@dataclass(frozen=True, slots=True)
class _Deleted:
    topic_id: TopicId
    sequence: int


@dataclass(frozen=True, slots=True)
class _Listeners:
    epoch: Epoch
    endpoints: tuple[Endpoint, ...]


@dataclass(frozen=True, slots=True)
class _Snapshot:
    """All fields except the topics, whose tenures have a compact form."""

    sequence: int
    time_ms: int
    cluster: ClusterCreated
    next_producer_id: ProducerId
    brokers: tuple[_Broker, ...]
    retired: tuple[_Retired, ...]
    overrides: tuple[ConfigsChanged, ...]
    deleted: tuple[_Deleted, ...] = ()
    checksum: int | None = None
    losses: tuple[LossAccepted, ...] = ()
    lost_entries: tuple[EntryRange, ...] = ()
    draining: tuple[Epoch, ...] = ()
    acls: tuple[AclRule, ...] = ()
    listeners: tuple[_Listeners, ...] = ()
    credentials: str | None = None
    level: int = 0
    quotas: tuple[QuotasChanged, ...] = ()


@dataclass(frozen=True, slots=True)
class _Topic:
    topic_id: TopicId
    name: str
    internal: bool
    configs: Mapping[str, str]


def encode_snapshot(state: ClusterState, time_ms: int) -> bytes:
    """The object that holds `state`. Raises ValueError before entry 0."""
    if state.cluster is None:
        raise ValueError("there is nothing to snapshot before entry 0")
    snapshot = _Snapshot(
        sequence=state.sequence,
        time_ms=time_ms,
        cluster=state.cluster,
        next_producer_id=state.next_producer_id,
        brokers=tuple([_broker_of(info) for info in state.brokers.values()]),
        retired=tuple(
            [
                _Retired(wal.incarnation.broker_id, epoch, wal.end_slot, wal.damaged)
                for epoch, wal in state.retired.items()
            ]
        ),
        overrides=tuple(
            [
                ConfigsChanged(scope, name, overrides)
                for (scope, name), overrides in state.overrides.items()
            ]
        ),
        deleted=tuple([_Deleted(*each) for each in state.deleted.items()]),
        checksum=state.checksum,
        losses=state.losses,
        lost_entries=state.lost_entries,
        level=state.level,
        quotas=tuple([QuotasChanged(*each) for each in state.quotas.items()]),
        draining=tuple([info.epoch for info in state.brokers.values() if info.draining]),
        acls=tuple(state.acls),
        listeners=tuple(
            [
                _Listeners(info.epoch, info.endpoints)
                for info in state.brokers.values()
                if info.endpoints
            ]
        ),
        credentials=state.credentials,
    )
    topics = [_encode_topic(topic) for topic in state.topics.values()]
    body = {**to_json(snapshot), "topics": topics}
    version = BASE_FORMAT
    for member, since in FORMAT_OF_MEMBER.items():
        if body[member]:
            version = max(version, since)
        else:
            del body[member]
    return encode_document(SNAPSHOT_MAGIC, version, body)


def decode_snapshot(key: str, data: Buffer) -> ClusterState:
    """The state in the snapshot at `key`. Raises CorruptObject, UnsupportedFormat."""
    members = decode_document(key, data, SNAPSHOT_MAGIC, SNAPSHOT_FORMAT)
    encoded_topics = members.pop("topics", None)
    try:
        snapshot = from_json(_Snapshot, members)
        draining = frozenset(snapshot.draining)
        listeners = {each.epoch: each.endpoints for each in snapshot.listeners}
        brokers = {
            each.epoch: replace(_info_of(each, draining), endpoints=listeners.get(each.epoch, ()))
            for each in snapshot.brokers
        }
        if not draining <= {epoch for epoch, info in brokers.items() if not info.fenced}:
            raise Mismatch("it drains brokers that are not live")
        if len(set(snapshot.acls)) != len(snapshot.acls):
            raise Mismatch("it has a rule twice")
        quotas = {each.entity: each.quotas for each in snapshot.quotas}
        if len(quotas) != len(snapshot.quotas):
            raise Mismatch("it has the quotas of one entity twice")
        if not listeners.keys() <= brokers.keys():
            raise Mismatch("it has listeners of brokers that are not registered")
        retired = {
            each.epoch: RetiredWal(
                Incarnation(each.broker_id, each.epoch), each.end_slot, each.damaged
            )
            for each in snapshot.retired
        }
        known = {epoch: info.incarnation for epoch, info in brokers.items()}
        known |= {epoch: wal.incarnation for epoch, wal in retired.items()}
        if type(encoded_topics) is not list:
            raise Mismatch("its topics are not an array")
        topics = {each.topic_id: each for each in _decode_topics(encoded_topics, known)}
    except Mismatch as error:
        raise CorruptObject(key, str(error)) from error
    return ClusterState(
        sequence=snapshot.sequence,
        cluster=snapshot.cluster,
        topics=topics,
        topic_ids={collision_key(topic.name): topic.topic_id for topic in topics.values()},
        brokers=brokers,
        live_epochs={info.broker_id: info.epoch for info in brokers.values() if not info.fenced},
        retired=retired,
        overrides={(each.scope, each.name): each.overrides for each in snapshot.overrides},
        acls=NO_RULES.changed(snapshot.acls, ()),
        quotas=quotas,
        credentials=snapshot.credentials,
        next_producer_id=snapshot.next_producer_id,
        deleted={each.topic_id: each.sequence for each in snapshot.deleted},
        checksum=snapshot.checksum,
        losses=snapshot.losses,
        lost_entries=snapshot.lost_entries,
        level=snapshot.level,
    )


def _broker_of(info: BrokerInfo) -> _Broker:
    return _Broker(
        broker_id=info.broker_id,
        epoch=info.epoch,
        host=info.host,
        port=info.port,
        process=info.process,
        session_timeout_ms=info.session_timeout_ms,
        last_entry=info.last_entry,
        fenced=info.fenced,
        durable_end=info.durable_end,
        rack=info.rack,
        version=info.version,
    )


def _info_of(broker: _Broker, draining: frozenset[Epoch]) -> BrokerInfo:
    return BrokerInfo(
        incarnation=Incarnation(broker.broker_id, broker.epoch),
        host=broker.host,
        port=broker.port,
        process=broker.process,
        session_timeout_ms=broker.session_timeout_ms,
        last_entry=broker.last_entry,
        fenced=broker.fenced,
        durable_end=broker.durable_end,
        rack=broker.rack,
        version=broker.version,
        draining=broker.epoch in draining,
    )


def _encode_topic(topic: Topic) -> Json:
    head = _Topic(topic.topic_id, topic.name, topic.internal, topic.configs)
    # Most partitions have one tenure and share it with others: its form is made once.
    forms: dict[int, Json] = {}
    for tenures in topic.partitions:
        if id(tenures) not in forms:
            forms[id(tenures)] = [_encode_tenure(tenure) for tenure in tenures]
    return {**to_json(head), "partitions": [forms[id(tenures)] for tenures in topic.partitions]}


def _encode_tenure(tenure: Tenure) -> Json:
    form: list[Json] = [tenure.leader_epoch, tenure.incarnation.epoch]
    if tenure.previous_end is not None:
        return [*form, tenure.previous_end.slot, tenure.previous_end.next_offset]
    return form if tenure.handover is None else [*form, tenure.handover]


def _decode_topics(values: list[Json], known: Mapping[Epoch, Incarnation]) -> list[Topic]:
    topics = []
    for value in values:
        partitions = value.pop("partitions", None) if type(value) is dict else None
        if type(partitions) is not list:
            raise Mismatch("a topic has no partitions")
        head = from_json(_Topic, value)
        tenures = tuple([_decode_tenures(each, known) for each in partitions])
        topics.append(Topic(head.topic_id, head.name, head.internal, head.configs, tenures))
    return topics


def _decode_tenures(value: Json, known: Mapping[Epoch, Incarnation]) -> Tenures:
    if type(value) is not list or not value:
        raise Mismatch(f"{value!r} are not tenures")
    tenures = []
    for each in value:
        handover: str | None = None
        previous_end: TenureEnd | None = None
        match each:
            case [int(leader_epoch), int(epoch)]:
                pass
            case [int(leader_epoch), int(epoch), str(key)]:
                handover = key
            case [int(leader_epoch), int(epoch), int(slot), int(next_offset)]:
                previous_end = TenureEnd(Slot(slot), next_offset)
            case _:
                raise Mismatch(f"{each!r} is not a tenure")
        if Epoch(epoch) not in known:
            raise Mismatch(f"a tenure names epoch {epoch}, which was never registered")
        incarnation = known[Epoch(epoch)]
        tenures.append(Tenure(LeaderEpoch(leader_epoch), incarnation, handover, previous_end))
    return tuple(tenures)
