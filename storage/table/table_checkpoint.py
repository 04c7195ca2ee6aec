"""Checkpoints of a table: its state at one version, as Delta Lake's Parquet (version 1 form)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from tidelog.errors import CorruptObject
from tidelog.identifiers import TopicId
from tidelog.storage.object_store import Buffer
from tidelog.storage.segment.parquet_seal import (
    SealedFile,
    check_chunks,
    is_sealed,
    open_footer,
    seal,
)
from tidelog.storage.segment.segment import SegmentName
from tidelog.storage.table.table_change import (
    APPLICATION_PREFIX,
    add_action,
    read_add,
    remove_action,
    txn_action,
)
from tidelog.storage.table.table_schema import check_metadata, check_protocol, protocol
from tidelog.storage.table.table_state import TableSegment, TableState

METADATA_KEY: Final = b"tidelog.checkpoint"

_TEXTS = pa.map_(pa.string(), pa.string())
_SCHEMA = pa.schema(
    {
        "txn": pa.struct({"appId": pa.string(), "version": pa.int64()}),
        "add": pa.struct(
            {
                "path": pa.string(),
                "partitionValues": _TEXTS,
                "size": pa.int64(),
                "modificationTime": pa.int64(),
                "dataChange": pa.bool_(),
                "stats": pa.string(),
                "tags": _TEXTS,
            }
        ),
        "remove": pa.struct(
            {
                "path": pa.string(),
                "deletionTimestamp": pa.int64(),
                "dataChange": pa.bool_(),
                "extendedFileMetadata": pa.bool_(),
            }
        ),
        "metaData": pa.struct(
            {
                "id": pa.string(),
                "name": pa.string(),
                "format": pa.struct({"provider": pa.string(), "options": _TEXTS}),
                "schemaString": pa.string(),
                "partitionColumns": pa.list_(pa.string()),
                "configuration": _TEXTS,
                "createdTime": pa.int64(),
            }
        ),
        "protocol": pa.struct(
            {
                "minReaderVersion": pa.int32(),
                "minWriterVersion": pa.int32(),
                "writerFeatures": pa.list_(pa.string()),
            }
        ),
    }
)
_METADATA_FIELDS = [field.name for field in _SCHEMA.field("metaData").type]


@dataclass(frozen=True, slots=True, kw_only=True)
class TableCheckpoint:
    """The contents of a checkpoint: a copy, so that the table's state may change meanwhile."""

    topic_id: TopicId
    version: int
    metadata: dict[str, Any]
    next_offsets: dict[int, int]
    segments: list[TableSegment]
    removed: dict[SegmentName, int]

    @property
    def actions(self) -> int:
        """The number of rows in the file."""
        return 2 + len(self.next_offsets) + len(self.segments) + len(self.removed)


def capture(state: TableState) -> TableCheckpoint:
    """A copy of the current state."""
    tables = {partition: state.partition(partition) for partition in state.partitions}
    return TableCheckpoint(
        topic_id=state.topic_id,
        version=state.version,
        metadata=state.metadata,
        next_offsets={partition: table.next_offset for partition, table in tables.items()},
        segments=[stored for table in tables.values() for stored in table.segments],
        removed=dict(state.removed),
    )


def encode_checkpoint(checkpoint: TableCheckpoint) -> SealedFile:
    description = {"topicId": str(checkpoint.topic_id), "version": checkpoint.version}
    sink = pa.BufferOutputStream()
    with pq.ParquetWriter(
        sink, _SCHEMA, compression="zstd", compression_level=1, store_schema=False
    ) as writer:
        writer.write_table(pa.Table.from_pylist(list(_rows(checkpoint)), _SCHEMA))
        writer.add_key_value_metadata({METADATA_KEY: json.dumps(description)})
    return seal(memoryview(sink.getvalue()))


def decode_checkpoint(key: str, data: Buffer, topic_id: TopicId, version: int) -> TableState:
    """The state in a checkpoint of this version. CorruptObject, UnsupportedFormat.

    Other engines may write checkpoints into any table and point readers to them. Theirs have the
    same content without a seal.
    """
    try:
        if is_sealed(data):
            _check(key, data, topic_id, version)
        rows = pq.read_table(pa.BufferReader(data), columns=_SCHEMA.names, use_threads=False)
        return _restore(key, rows, topic_id, version)
    except (pa.ArrowException, OSError, ValueError, KeyError, TypeError) as error:
        raise CorruptObject(key, f"it does not decode: {error!r}") from None


def _check(key: str, data: Buffer, topic_id: TopicId, version: int) -> None:
    """Raise CorruptObject unless the file is intact and of this table and version."""
    footer = open_footer(key, data)
    columns = range(footer.metadata.num_columns)
    for group in range(footer.metadata.num_row_groups):
        check_chunks(key, footer, group, columns, 0, data)
    described = (footer.metadata.metadata or {}).get(METADATA_KEY)
    if json.loads(described or b"{}") != {"topicId": str(topic_id), "version": version}:
        raise CorruptObject(key, f"it is not version {version} of the table of {topic_id}")


def _rows(checkpoint: TableCheckpoint) -> Iterator[dict[str, Any]]:
    yield {"protocol": protocol()}
    yield {"metaData": _with_pairs(checkpoint.metadata)}
    for partition, next_offset in checkpoint.next_offsets.items():
        yield {"txn": txn_action(partition, next_offset)}
    for name, removed_ms in checkpoint.removed.items():
        yield {"remove": remove_action(name, removed_ms, False)}
    for stored in checkpoint.segments:
        action = add_action(stored.segment, stored.added_ms, False)
        action["partitionValues"] = list(action["partitionValues"].items())
        action["tags"] = list(action["tags"].items())
        yield {"add": action}


def _with_pairs(metadata: dict[str, Any]) -> dict[str, Any]:
    """The metadata with its maps as lists of pairs, as Arrow takes them."""
    described = dict(metadata)
    kind = metadata["format"]
    described["format"] = {"provider": kind["provider"], "options": list(kind["options"].items())}
    described["configuration"] = list(metadata["configuration"].items())
    return described


def _restore(key: str, rows: pa.Table, topic_id: TopicId, version: int) -> TableState:
    state = TableState(topic_id)
    state.version = version
    (found_protocol,) = _actions(rows, "protocol")
    check_protocol(key, found_protocol)
    (metadata,) = _actions(rows, "metaData")
    kind = metadata["format"]
    metadata["configuration"] = dict(metadata["configuration"])
    metadata["format"] = {"provider": kind["provider"], "options": dict(kind["options"] or ())}
    metadata = {name: metadata[name] for name in _METADATA_FIELDS}
    check_metadata(key, metadata, topic_id)
    state.metadata = metadata
    for action in _actions(rows, "remove"):
        name = SegmentName.parse(action["path"])
        if name is None:
            raise CorruptObject(key, f"it names {action['path']!r}, which is no segment")
        state.removed[name] = action["deletionTimestamp"]
    segments: dict[int, list[TableSegment]] = {}
    for action in _actions(rows, "add"):
        action["tags"] = dict(action["tags"])
        segment = read_add(key, action)
        stored = TableSegment(segment, action["modificationTime"])
        segments.setdefault(segment.name.partition, []).append(stored)
    for action in _actions(rows, "txn"):
        partition = int(action["appId"].removeprefix(APPLICATION_PREFIX))
        state.restore(partition, action["version"], segments.pop(partition, []))
    if segments:
        raise CorruptObject(key, f"it does not say where partition {min(segments)} ends")
    return state


def _actions(rows: pa.Table, kind: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = rows.column(kind).drop_null().to_pylist()
    return found
