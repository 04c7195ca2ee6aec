"""The contents of a bucket's objects in words and numbers, for people.

Each function decodes a whole object, including all checksums, and returns its contents as a
mapping that JSON can hold: names to values, to mappings, or to lists of rows. Names of times in
milliseconds end in `_ms`. The functions are pure. They raise CorruptObject and UnsupportedFormat.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Any, Final, TypeAlias

import pyarrow as pa
import pyarrow.parquet as pq

from tidelog.bucket.fsck.wal_checks import check_place, check_slot
from tidelog.bucket.object_keys import (
    HANDOVER_FOLDER,
    BucketObject,
    CheckpointObject,
    ClusterObject,
    CredentialsObject,
    HandoverObject,
    MergedObjectKey,
    SegmentObject,
    StagedObject,
    StateObject,
    TableObject,
    WalObject,
    parse_key,
)
from tidelog.coordinator.cluster.log.leases import decode_lease
from tidelog.coordinator.cluster.log.prefix import LEASE_PREFIX, LOG_PREFIX, SNAPSHOT_PREFIX
from tidelog.coordinator.cluster.records.records import decode_entry
from tidelog.coordinator.cluster.state.state_snapshot import decode_snapshot
from tidelog.errors import CorruptObject, InvalidConfiguration
from tidelog.identifiers import TopicId
from tidelog.records.batch import CONTROL_FLAG, LOG_APPEND_TIME_FLAG, TRANSACTIONAL_FLAG
from tidelog.records.compression import Compression
from tidelog.storage.object_store import Buffer, validate_key
from tidelog.storage.segment.parquet_seal import check_chunks, open_footer
from tidelog.storage.segment.segment import TOPICS_PREFIX, Segment
from tidelog.storage.table.table_change import PartitionChange, decode_commit
from tidelog.storage.table.table_checkpoint import decode_checkpoint as decode_table_checkpoint
from tidelog.wal.format.image_codec import Images
from tidelog.wal.format.object_format import ObjectHeader, ObjectKind
from tidelog.wal.format.staged_format import check_bodies
from tidelog.wal.log.entries import COMMIT_FLAG, EntryKind, IndexEntry
from tidelog.wal.log.image import PartitionImage
from tidelog.wal.write.checkpoint import decode_checkpoint

Facts: TypeAlias = dict[str, Any]

_CODEC_MASK = 0x07
_COMMIT_SUFFIX = ".json"
_CHECKPOINT_SUFFIX = ".checkpoint.parquet"
_HINT = "_last_checkpoint"
_KINDS: Final[Mapping[type[BucketObject], str]] = {
    WalObject: "wal",
    MergedObjectKey: "wal",
    CheckpointObject: "checkpoint",
    HandoverObject: "checkpoint",
    SegmentObject: "segment",
    TableObject: "table",
    StateObject: "state",
    ClusterObject: "metadata",
    CredentialsObject: "metadata",
    StagedObject: "staged",
}
"""The kind of inspection for each type of object."""


def check_kind(kind: str, key: str) -> None:
    """Check that a key may belong to an object of this kind.

    InvalidConfiguration names the right kind. A key that Tidelog never writes passes as any kind.
    """
    try:
        validate_key(key)
    except ValueError as error:
        raise InvalidConfiguration(
            f"{error}. Keys are relative to the store's address and begin with no slash, like"
            " wal/0-1/00000000000000000000.wal"
        ) from None
    found = parse_key(key)
    right = kind if found is None else _KINDS.get(type(found), kind)
    if right != kind:
        raise InvalidConfiguration(f"{key} is inspected as {right}, not as {kind}")


def wal_facts(key: str, data: Buffer) -> Facts:
    """The header, index and opening images of a WAL object, a merged object or a seal."""
    found, place = check_slot(key, data), parse_key(key)
    if isinstance(place, WalObject):
        kinds = (ObjectKind.DATA, ObjectKind.SEAL)
        check_place(key, place.incarnation, place.slot, found, kinds)
    if isinstance(place, MergedObjectKey):
        check_place(key, place.incarnation, place.number, found, (ObjectKind.MERGED,))
    if isinstance(found, ObjectHeader):
        return _header_facts(found) | {"size_bytes": len(data)}
    facts = _header_facts(found.header)
    facts |= {
        "size_bytes": found.layout.size,
        "crc32c": f"{found.crc:08x}",
        "index_position": found.layout.index_position,
        "images_position": found.layout.images_position,
        "entries": [_entry_facts(entry, key) for entry in found.entries()],
    }
    if found.images is not None:
        facts["opening_images"] = [_image_facts(image) for image in found.images]
    return facts


def checkpoint_facts(key: str, data: Buffer) -> Facts:
    """The images of a checkpoint, or the image of a hand-over object."""
    if key.startswith(HANDOVER_FOLDER):
        return {"images": [_image_facts(image) for image in Images(key, data)]}
    found = decode_checkpoint(key, data)
    return {
        "incarnation": str(found.incarnation),
        "slot": found.slot,
        "size_bytes": len(data),
        "images": [_image_facts(image) for image in found.images],
    }


def table_facts(key: str, data: Buffer) -> Facts:
    """The contents of a table's commit, checkpoint, or hint that names the newest checkpoint.

    Raises InvalidConfiguration for any other key.
    """
    topic_id, name = _table_key(key)
    if name == _HINT:
        try:
            hint: Facts = dict(json.loads(bytes(data)))
        except (ValueError, TypeError) as error:
            raise CorruptObject(key, f"it does not decode: {error}") from None
        return hint
    version = int(name.partition(".")[0])
    if name.endswith(_CHECKPOINT_SUFFIX):
        state = decode_table_checkpoint(key, data, topic_id, version)
        parts = [(number, state.partition(number)) for number in state.partitions]
        return {
            "topic_id": str(topic_id),
            "version": state.version,
            "topic": state.metadata.get("name"),
            "configuration": state.metadata.get("configuration"),
            "partitions": [
                {"partition": number, "next_offset": part.next_offset} for number, part in parts
            ],
            "segments": [
                _segment_facts(stored.segment) | {"added_ms": stored.added_ms}
                for _, part in parts
                for stored in part.segments
            ],
            "removed": [
                {"path": removed.path, "removed_ms": time_ms}
                for removed, time_ms in state.removed.items()
            ],
        }
    commit = decode_commit(key, data, topic_id)
    return {
        "topic_id": str(topic_id),
        "version": version,
        "time_ms": commit.timestamp_ms,
        "writer_id": commit.writer_id.hex(),
        "metadata": commit.metadata,
        "changes": [row for change in commit.changes for row in _change_facts(change)],
    }


def state_facts(key: str, data: Buffer) -> Facts:
    """The header and the rows of a snapshot of a coordinator's state."""
    footer = open_footer(key, data)
    columns = range(footer.metadata.num_columns)
    for group in range(footer.metadata.num_row_groups):
        check_chunks(key, footer, group, columns, 0, data)
    described = footer.metadata.metadata or {}
    try:
        rows = pq.read_table(pa.BufferReader(data), use_threads=False).to_pylist()
    except (pa.ArrowException, OSError, ValueError) as error:
        raise CorruptObject(key, f"it does not decode: {error}") from error
    facts: Facts = {
        name.decode(): value.decode(errors="replace") for name, value in sorted(described.items())
    }
    return facts | {"rows": [_plain(row) for row in rows]}


def metadata_facts(key: str, data: Buffer) -> Facts:
    """The contents of an entry of the metadata log, a snapshot of it or a lease.

    Raises InvalidConfiguration for any other key.
    """
    if key.startswith(LOG_PREFIX):
        decode_entry(key, data)
    elif key.startswith(SNAPSHOT_PREFIX):
        decode_snapshot(key, data)
    elif key.startswith(LEASE_PREFIX):
        decode_lease(key, data)
    else:
        raise InvalidConfiguration(
            f"{key} is not a key of the metadata: those begin with {LOG_PREFIX},"
            f" {SNAPSHOT_PREFIX} or {LEASE_PREFIX}"
        )
    facts: Facts = json.loads(bytes(data))
    return facts


def staged_facts(key: str, data: Buffer) -> Facts:
    """The target and the batches of a staged object."""
    found = check_bodies(key, data)
    return {
        "staged_id": str(found.staged_id),
        "staged_ms": found.staged_ms,
        **found.purpose._asdict(),
        "size_bytes": found.size_bytes,
        "batches": [
            {"topic_id": str(place.topic_id), "partition": place.partition} | batch._asdict()
            for place, batches in found.partitions.items()
            for batch in batches
        ],
    }


def _header_facts(header: ObjectHeader) -> Facts:
    return {
        "kind": header.kind.name.lower(),
        "incarnation": str(header.incarnation),
        "slot": header.slot,
        "created_ms": header.created_ms,
        "writer_id": header.writer_id.hex(),
        "previous_crc32c": f"{header.previous_crc:08x}",
    }


def _entry_facts(entry: IndexEntry, key: str) -> Facts:
    facts: Facts = {
        "kind": entry.kind.name.lower(),
        "topic_id": str(entry.topic_id),
        "partition": entry.partition,
        "leader_epoch": entry.leader_epoch,
        "base_offset": entry.base_offset,
        "last_offset": entry.last_offset,
        "record_count": entry.record_count,
        "producer_id": entry.producer_id,
        "producer_epoch": entry.producer_epoch,
        "ordinal": entry.ordinal,
        "first_sequence": entry.first_sequence,
        "last_sequence": entry.last_sequence,
        "attributes": _attributes(entry),
        "first_timestamp_ms": entry.first_timestamp,
        "max_timestamp_ms": entry.max_timestamp,
        "position": entry.position,
        "length": entry.length,
    }
    return facts if entry.key == key else facts | {"object": entry.key}


def _attributes(entry: IndexEntry) -> str:
    if entry.kind not in (EntryKind.BATCH, EntryKind.ADOPTED):
        return ""
    flags = entry.flags
    names = [Compression(flags & _CODEC_MASK).name.lower()]
    if flags & LOG_APPEND_TIME_FLAG:
        names.append("log append time")
    if flags & CONTROL_FLAG:
        names.append("COMMIT" if flags & COMMIT_FLAG else "ABORT")
    elif flags & TRANSACTIONAL_FLAG:
        names.append("transactional")
    return ", ".join(names)


def _image_facts(image: PartitionImage) -> Facts:
    return {
        "topic_id": str(image.partition.topic_id),
        "partition": image.partition.partition,
        "leader_epoch": image.leader_epoch,
        "log_start": image.log_start,
        "table_next": image.table_next,
        "next_offset": image.next_offset,
        "has_forgotten_producers": image.has_forgotten_producers,
        "leader_epochs": [each._asdict() for each in image.leader_epochs],
        "producers": [
            each._asdict() | {"batches": [batch._asdict() for batch in each.batches]}
            for each in image.producers
        ],
        "aborted": [each._asdict() for each in image.aborted],
        "extents": [each._asdict() for each in image.extents],
    }


def _change_facts(change: PartitionChange) -> Iterable[Facts]:
    """One row for the new end of the partition, and one for each segment."""
    number = change.partition
    if change.advance is not None:
        yield {"partition": number, "change": "advance"} | change.advance._asdict()
    for what, segments in (("append", change.appended), ("rewrite", change.rewritten)):
        for segment in segments:
            yield {"partition": number, "change": what} | _segment_facts(segment)
    for name in change.removed:
        yield {"partition": number, "change": "remove", "path": name.path}


def _segment_facts(segment: Segment) -> Facts:
    facts = asdict(segment)
    del facts["name"]
    for name in ("timestamp_min", "timestamp_max"):
        facts[f"{name}_ms"] = facts.pop(name)
    facts["crc32c"] = f"{segment.crc32c:08x}"
    return {"path": segment.path} | facts


def _table_key(key: str) -> tuple[TopicId, str]:
    """The topic, and the object's name within its table's log."""
    folder, _, name = key.rpartition("/_delta_log/")
    digits = name.removesuffix(_CHECKPOINT_SUFFIX).removesuffix(_COMMIT_SUFFIX)
    try:
        topic_id = TopicId(folder.removeprefix(TOPICS_PREFIX))
    except ValueError:
        topic_id = None
    if topic_id is None or not (name == _HINT or (digits != name and digits.isdecimal())):
        raise InvalidConfiguration(
            f"{key} is not a key of a table's log: those are {TOPICS_PREFIX}<topic id>/_delta_log/"
            f"<version>{_COMMIT_SUFFIX}, <version>{_CHECKPOINT_SUFFIX} and {_HINT}"
        )
    return topic_id, name


def _plain(value: Any) -> Any:
    """The value in a form that JSON can hold: bytes in hexadecimal, times as texts."""
    match value:
        case Mapping():
            return {name: _plain(each) for name, each in value.items()}
        case list():
            return [_plain(each) for each in value]
        case bytes():
            return value.hex()
        case None | str() | int() | float():
            return value
        case _:
            return str(value)
