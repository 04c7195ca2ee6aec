"""The metadata log's records and entries, and their JSON form (docs/formats/metadata.md)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TypeAlias

from tidelog.coordinator.cluster.records.acl_rules import AclRule
from tidelog.coordinator.cluster.records.client_quotas import QuotaEntity
from tidelog.coordinator.cluster.records.codec import Json, Mismatch, from_json, to_json
from tidelog.coordinator.cluster.records.documents import decode_document, encode_document
from tidelog.coordinator.cluster.records.process_identity import ProcessIdentity
from tidelog.errors import CorruptObject, UnsupportedFormat
from tidelog.identifiers import FIRST_SLOT, BrokerId, Epoch, LeaderEpoch, ProducerId, Slot, TopicId
from tidelog.storage.object_store import Buffer
from tidelog.wal.log.tenure import TenureEnd

ENTRY_MAGIC = "tidelog.metadata.entry"
ENTRY_FORMAT = 4
"""The newest format: registrations have `rack` and `version`, moves have `leader_epoch` and `end`.

Entry 0 is of format 1, so that any release can read which version the bucket demands.
"""
FIRST_ENTRY_FORMAT = 1
ENTRY_BYTES_MAX = 8 * 1024 * 1024
ALONE_VERSION = 1
"""Brokers of this version serve a bucket alone."""
SHARING_VERSION = 2
"""Brokers from this version on share a bucket."""
DRAIN_VERSION = 3
"""Brokers from this version on know `DrainChanged`, and give a draining broker no partitions."""
ACL_VERSION = 4
"""Brokers from this version on know `AclsChanged`, and its rules if they have an authorizer."""
LISTENERS_VERSION = 5
"""Brokers from this version on know `ListenersRegistered`."""
CREDENTIALS_VERSION = LISTENERS_VERSION
"""Brokers from this version on know `CredentialsChanged`."""
LEVEL_VERSION = 6
"""Brokers from this version on know `LevelRaised`."""
QUOTAS_VERSION = 7
"""Brokers from this version on know `QuotasChanged`, and enforce quotas of clients."""
FIRST_LEVEL = QUOTAS_VERSION
"""The level of a cluster that never raised it. Records up to this version need no level."""
BROKER_VERSION = QUOTAS_VERSION
"""The version of this Tidelog's brokers."""
SESSION_TIMEOUT_MS = 9000
"""Kafka's default of broker.session.timeout.ms."""

_WRITER_ID = re.compile(r"[0-9a-f]{32}")


class ConfigScope(StrEnum):
    """The owner of a set of configuration overrides."""

    TOPIC = "topic"
    """Named by the topic's id, as UUID text."""
    BROKER = "broker"
    """Named by the broker's id in decimal."""
    CLUSTER = "cluster"
    """The default of all brokers; its name is empty."""
    GROUP = "group"
    """Named by the group's id. The group need not exist."""


@dataclass(frozen=True, slots=True)
class ClusterCreated:
    """Entry 0. `cluster_id` is a UUID in Kafka's form: base64 for URLs, without padding."""

    cluster_id: str
    format_version: int
    minimum_reader_version: int
    minimum_writer_version: int


@dataclass(frozen=True, slots=True)
class BrokerRegistered:
    """A process becomes an incarnation; its epoch is the sequence number of the entry.

    Observers judge its lease by `session_timeout_ms`, so brokers may be configured differently.
    `rack`: the broker's zone. `version`: its release's (`BROKER_VERSION`).
    """

    broker_id: BrokerId
    host: str
    port: int
    process: ProcessIdentity
    session_timeout_ms: int = SESSION_TIMEOUT_MS
    rack: str | None = None
    version: int = ALONE_VERSION


@dataclass(frozen=True, slots=True)
class Endpoint:
    """The address of one of a broker's listeners, for clients."""

    listener: str
    protocol: str
    host: str
    port: int


@dataclass(frozen=True, slots=True)
class ListenersRegistered:
    """All listeners of the broker that the entry registers.

    The registration's own address is that of the listener between brokers. A broker without this
    record has one listener, PLAINTEXT, at that address.
    """

    endpoints: tuple[Endpoint, ...]


@dataclass(frozen=True, slots=True)
class LeaseResumed:
    """The author lives, although its lease was not renewed in time (rule B3)."""

    epoch: Epoch


@dataclass(frozen=True, slots=True)
class BrokerFenced:
    """The incarnation may append nothing more. It keeps its partitions until it is retired.

    `durable_end`: how many slots of its WAL were durable by its lease (rule C10).
    """

    epoch: Epoch
    durable_end: Slot = FIRST_SLOT


@dataclass(frozen=True, slots=True)
class DrainChanged:
    """The incarnation gives all of its partitions away and gets no new ones, or does so no more.

    The drain ends with the incarnation. Written only while all live brokers know the record.
    """

    epoch: Epoch
    draining: bool


@dataclass(frozen=True, slots=True)
class LevelRaised:
    """The cluster may write the records of releases up to this version.

    Written only while all live brokers have it. A broker of a lower version cannot register any
    more.
    """

    level: int


@dataclass(frozen=True, slots=True)
class Succession:
    """Partitions of one topic that go to one incarnation."""

    topic_id: TopicId
    owner: Epoch
    partitions: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class SlotRange:
    """The slots from `first` to `last`."""

    first: Slot
    last: Slot


@dataclass(frozen=True, slots=True)
class IncarnationRetired:
    """A fenced incarnation's WAL ends at the seal in `end_slot`; successors get all of its
    partitions.

    `damaged`: slots below the end that were durable and are lost (rule C10).
    """

    epoch: Epoch
    end_slot: Slot
    successors: tuple[Succession, ...]
    damaged: tuple[SlotRange, ...] = ()


@dataclass(frozen=True, slots=True)
class TopicCreated:
    """A topic with one partition for each of `owners`, each at leader epoch 0 and empty."""

    topic_id: TopicId
    name: str
    owners: tuple[Epoch, ...]
    configs: Mapping[str, str] = field(default_factory=dict)
    internal: bool = False


@dataclass(frozen=True, slots=True)
class PartitionsCreated:
    """The topic's next partitions, one for each of `owners`."""

    topic_id: TopicId
    owners: tuple[Epoch, ...]


@dataclass(frozen=True, slots=True)
class TopicDeleted:
    """The topic, its partitions, tenures and configuration are gone; its id is never reused."""

    topic_id: TopicId


@dataclass(frozen=True, slots=True)
class TopicsForgotten:
    """The bucket holds nothing of these deleted topics any more."""

    topic_ids: tuple[TopicId, ...]


@dataclass(frozen=True, slots=True)
class IncarnationsForgotten:
    """The bucket holds only the seal of these retired incarnations, which no tenure names."""

    epochs: tuple[Epoch, ...]


@dataclass(frozen=True, slots=True)
class ConfigsChanged:
    """All overrides of one resource, replacing the previous ones; an empty map removes them."""

    scope: ConfigScope
    name: str
    overrides: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class AclsChanged:
    """Access control rules that hold from now on, and rules that hold no more.

    Written only while all live brokers know the record.
    """

    created: tuple[AclRule, ...] = ()
    deleted: tuple[AclRule, ...] = ()


@dataclass(frozen=True, slots=True)
class QuotasChanged:
    """All quotas of one entity, replacing the previous ones; an empty map removes them."""

    entity: QuotaEntity
    quotas: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class CredentialsChanged:
    """The object at `key` holds the verifiers of all users. It takes the place of `previous`."""

    key: str
    previous: str | None = None


@dataclass(frozen=True, slots=True)
class OpenedTenures:
    """Partitions of one topic whose opening image at `leader_epoch` is durable."""

    topic_id: TopicId
    leader_epoch: LeaderEpoch
    partitions: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class TenuresOpened:
    """The earlier tenures of these partitions are no longer needed (rule C2)."""

    opened: tuple[OpenedTenures, ...]


@dataclass(frozen=True, slots=True)
class PartitionMoved:
    """The author gives a partition away, with its log up to `end` (rule C3).

    `leader_epoch`: of the author's tenure. Format 3 had `handover` instead of both, the key of an
    image.
    """

    topic_id: TopicId
    partition: int
    owner: Epoch
    handover: str | None = None
    leader_epoch: LeaderEpoch | None = None
    end: TenureEnd | None = None


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """The offsets from `first` to `last`."""

    first: int
    last: int


@dataclass(frozen=True, slots=True)
class LossAccepted:
    """An operator has accepted the loss of records of one of the author's partitions.

    `handover`: the key of the image of the remaining records. The partition's next tenure, also the
    author's, begins with it. None: the log itself is whole, and its table has lost segments.
    `lost`: the offsets of the lost records. `keys`: the objects that held them or caused the loss.
    """

    topic_id: TopicId
    partition: int
    handover: str | None
    lost: tuple[OffsetRange, ...]
    keys: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class EntryRange:
    """The entries of the metadata log from `first` to `last`."""

    first: int
    last: int


@dataclass(frozen=True, slots=True)
class LogEndAccepted:
    """An operator has accepted the loss of these entries of the metadata log.

    Such a record takes the place of each of them, so that no number is used twice: numbers are the
    epochs of incarnations.
    """

    entries: EntryRange


@dataclass(frozen=True, slots=True)
class ProducerIdsAllocated:
    """The author may allocate the producer ids [first, first + count)."""

    first: ProducerId
    count: int


Record: TypeAlias = (
    ClusterCreated
    | BrokerRegistered
    | ListenersRegistered
    | LeaseResumed
    | BrokerFenced
    | DrainChanged
    | LevelRaised
    | IncarnationRetired
    | TopicCreated
    | PartitionsCreated
    | TopicDeleted
    | TopicsForgotten
    | IncarnationsForgotten
    | ConfigsChanged
    | AclsChanged
    | QuotasChanged
    | CredentialsChanged
    | TenuresOpened
    | PartitionMoved
    | LossAccepted
    | LogEndAccepted
    | ProducerIdsAllocated
)

RECORD_TYPES: Mapping[str, type[Record]] = {
    kind.__name__: kind
    for kind in (
        ClusterCreated,
        BrokerRegistered,
        ListenersRegistered,
        LeaseResumed,
        BrokerFenced,
        DrainChanged,
        LevelRaised,
        IncarnationRetired,
        TopicCreated,
        PartitionsCreated,
        TopicDeleted,
        TopicsForgotten,
        IncarnationsForgotten,
        ConfigsChanged,
        AclsChanged,
        QuotasChanged,
        CredentialsChanged,
        TenuresOpened,
        PartitionMoved,
        LossAccepted,
        LogEndAccepted,
        ProducerIdsAllocated,
    )
}


@dataclass(frozen=True, slots=True)
class MetadataEntry:
    """One object of the metadata log. `author` is None before the writer has registered.

    `previous`: the checksum of the entry before (rule C11). None in entry 0, and in entries that
    the first release wrote.
    """

    sequence: int
    writer_id: bytes
    time_ms: int
    author: Epoch | None
    records: tuple[Record, ...]
    previous: int | None = None


def encode_entry(entry: MetadataEntry) -> bytes:
    """The entry's object. The caller keeps it within ENTRY_BYTES_MAX."""
    body = {
        "sequence": entry.sequence,
        "writer": entry.writer_id.hex(),
        "time_ms": entry.time_ms,
        "author": entry.author,
    }
    version = FIRST_ENTRY_FORMAT
    if entry.sequence > 0:
        version = ENTRY_FORMAT
        body["previous"] = entry.previous
    records = [encode_record(record) for record in entry.records]
    return encode_document(ENTRY_MAGIC, version, {**body, "records": records})


def encode_record(record: Record) -> Json:
    """The record's JSON object: `type`, then its fields."""
    return {"type": type(record).__name__, **to_json(record)}


def decode_entry(key: str, data: Buffer) -> MetadataEntry:
    """The entry stored at `key`.

    Raises UnsupportedFormat for a newer format or an unknown record type, CorruptObject for
    anything that cannot be an entry.
    """
    members = decode_document(key, data, ENTRY_MAGIC, ENTRY_FORMAT)
    records = members.pop("records", None)
    try:
        if type(records) is not list:
            raise Mismatch("its records are not an array")
        head = from_json(_EntryHead, members)
        return MetadataEntry(
            sequence=head.sequence,
            writer_id=decode_writer_id(head.writer),
            time_ms=head.time_ms,
            author=head.author,
            records=tuple([_decode_record(key, each) for each in records]),
            previous=head.previous,
        )
    except Mismatch as error:
        raise CorruptObject(key, str(error)) from error


@dataclass(frozen=True, slots=True)
class _EntryHead:
    sequence: int
    writer: str
    time_ms: int
    author: Epoch | None
    previous: int | None = None


def _decode_record(key: str, value: Json) -> Record:
    if type(value) is not dict or type(value.get("type")) is not str:
        raise Mismatch("a record has no type")
    name = value["type"]
    if name not in RECORD_TYPES:
        raise UnsupportedFormat(
            f"object {key} holds a record of type {name}, which this Tidelog does not know."
            " Nothing was changed: use a newer Tidelog"
        )
    return from_json(RECORD_TYPES[name], {k: v for k, v in value.items() if k != "type"})


def identify_entry(data: Buffer) -> bytes:
    """The writer id in an entry's object. Raises CorruptObject, UnsupportedFormat."""
    members = decode_document("metadata entry", data, ENTRY_MAGIC, ENTRY_FORMAT)
    try:
        return decode_writer_id(from_json(str, members.get("writer")))
    except Mismatch as error:
        raise CorruptObject("metadata entry", str(error)) from error


def decode_writer_id(text: str) -> bytes:
    """The 16 bytes of a writer id in hexadecimal. Raises Mismatch."""
    if _WRITER_ID.fullmatch(text) is None:
        raise Mismatch(f"{text!r} is not a writer id")
    return bytes.fromhex(text)
