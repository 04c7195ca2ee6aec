"""The types of a bucket's objects, by their keys alone. Pure."""

from __future__ import annotations

import re
from typing import Final, NamedTuple, TypeAlias
from uuid import UUID

from tidelog.coordinator.cluster.log.prefix import CLUSTER_FOLDER, PROBE_FOLDER
from tidelog.coordinator.cluster.records.credentials import CREDENTIALS_PREFIX, CREDENTIALS_SUFFIX
from tidelog.coordinator.snapshot_format import OFFSET_DIGITS, SNAPSHOT_SUFFIX, STATE_PREFIX
from tidelog.identifiers import BrokerId, Epoch, Incarnation, Slot, TopicId
from tidelog.storage.object_store import validate_key
from tidelog.storage.segment.segment import TOPICS_PREFIX, SegmentName, table_prefix
from tidelog.storage.sequence import NUMBER_DIGITS
from tidelog.wal.format.object_format import MERGED_FOLDER, MERGED_SUFFIX, WAL_SUFFIX

WAL_FOLDER: Final = "wal/"
CHECKPOINT_FOLDER: Final = "checkpoint/"
HANDOVER_FOLDER: Final = "handover/"
STAGED_FOLDER: Final = "staged/"


class WalObject(NamedTuple):
    """A slot of a WAL, or a seal in a slot."""

    incarnation: Incarnation
    slot: Slot


class CheckpointObject(NamedTuple):
    """A checkpoint of a WAL."""

    incarnation: Incarnation
    slot: Slot


class MergedObjectKey(NamedTuple):
    """An object into which an incarnation copied batches together."""

    incarnation: Incarnation
    number: int


class HandoverObject(NamedTuple):
    """The image of a partition that its owner hands over."""

    key: str


class StagedObject(NamedTuple):
    """Staged batches that await their adoption (rule H9)."""

    key: str


class StateObject(NamedTuple):
    """A snapshot of a coordinator's state."""

    topic: str
    partition: int
    next_offset: int


class SegmentObject(NamedTuple):
    """A segment, whether a table lists it or not."""

    topic_id: TopicId
    name: SegmentName


class TableObject(NamedTuple):
    """Any other object in a table's folder: its log and checkpoints."""

    topic_id: TopicId


class CredentialsObject(NamedTuple):
    """An object of all users' verifiers, whether the metadata log names it or not."""

    key: str


class ClusterObject(NamedTuple):
    """An object of the metadata log, a snapshot of it, or a lease."""

    key: str


class ProbeObject(NamedTuple):
    """The leftover of an interrupted start-up probe."""

    key: str


BucketObject: TypeAlias = (
    WalObject
    | CheckpointObject
    | MergedObjectKey
    | HandoverObject
    | StagedObject
    | StateObject
    | SegmentObject
    | TableObject
    | CredentialsObject
    | ClusterObject
    | ProbeObject
)

_NUMBER = rf"(\d{{{NUMBER_DIGITS}}})"
_OWNED = re.compile(
    rf"(?:{WAL_FOLDER}|{CHECKPOINT_FOLDER}|{MERGED_FOLDER})"
    rf"(0|[1-9]\d{{0,9}})-(0|[1-9]\d{{0,18}})/{_NUMBER}(\.[a-z]+)?",
    re.ASCII,
)
_SUFFIXES = {WAL_FOLDER: WAL_SUFFIX, CHECKPOINT_FOLDER: None, MERGED_FOLDER: MERGED_SUFFIX}
_STATE = re.compile(
    rf"{STATE_PREFIX}([^/]+)/(0|[1-9]\d{{0,9}})/(\d{{{OFFSET_DIGITS}}}){re.escape(SNAPSHOT_SUFFIX)}",
    re.ASCII,
)
_BY_ID = re.compile(
    rf"(?:{HANDOVER_FOLDER}|{STAGED_FOLDER})[0-9a-f]{{8}}(?:-[0-9a-f]{{4}}){{3}}-[0-9a-f]{{12}}"
)
_CREDENTIALS = re.compile(rf"{CREDENTIALS_PREFIX}[0-9a-f]{{32}}{re.escape(CREDENTIALS_SUFFIX)}")
_TABLE = re.compile(rf"{TOPICS_PREFIX}([0-9a-f-]{{36}})/.+")


def parse_key(key: str) -> BucketObject | None:
    """The object's type and identity; None if Tidelog never writes such a key."""
    folder = key[: key.find("/") + 1]
    match folder:
        case "wal/" | "checkpoint/" | "merged/":
            return _parse_owned(folder, key)
        case "state/":
            found = _STATE.fullmatch(key)
            if found is None or not _is_possible(key):
                return None
            return StateObject(found[1], int(found[2]), int(found[3]))
        case "topics/":
            return _parse_table(key)
        case "handover/":
            return HandoverObject(key) if _BY_ID.fullmatch(key) else None
        case "staged/":
            return StagedObject(key) if _BY_ID.fullmatch(key) else None
        case _ if not _is_possible(key):
            return None
        case _ if folder == CLUSTER_FOLDER:
            return CredentialsObject(key) if _CREDENTIALS.fullmatch(key) else ClusterObject(key)
        case _ if folder == PROBE_FOLDER:
            return ProbeObject(key)
    return None


def _parse_owned(folder: str, key: str) -> BucketObject | None:
    found = _OWNED.fullmatch(key)
    if found is None or found[4] != _SUFFIXES[folder]:
        return None
    incarnation = Incarnation(BrokerId(int(found[1])), Epoch(int(found[2])))
    number = int(found[3])
    if folder == MERGED_FOLDER:
        return MergedObjectKey(incarnation, number)
    if folder == WAL_FOLDER:
        return WalObject(incarnation, Slot(number))
    return CheckpointObject(incarnation, Slot(number))


def _parse_table(key: str) -> BucketObject | None:
    found = _TABLE.fullmatch(key)
    if found is None:
        return None
    try:
        topic_id = UUID(found[1])
    except ValueError:
        return None
    prefix = table_prefix(topic_id)
    if not key.startswith(prefix):
        return None
    name = SegmentName.parse(key.removeprefix(prefix))
    if name is not None:
        return SegmentObject(topic_id, name)
    return TableObject(topic_id) if _is_possible(key) else None


def _is_possible(key: str) -> bool:
    """Whether Tidelog's stores take the key. That of a foreign object may be any other one."""
    try:
        validate_key(key)
    except ValueError:
        return False
    return True
