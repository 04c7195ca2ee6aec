"""The protocol, schema and properties that a topic's table declares (Delta Lake)."""

from __future__ import annotations

import json
from typing import Any, Final

import pyarrow as pa

from tidelog.errors import CorruptObject, UnsupportedFormat
from tidelog.identifiers import TopicId
from tidelog.records.row_columns import ROW_SCHEMA

FORMAT_VERSION: Final = 1
FORMAT_PROPERTY: Final = "tidelog.format"
PARTITION_COLUMN: Final = "partition"
READER_VERSION: Final = 1
WRITER_VERSION: Final = 7
WRITER_FEATURES: Final = ("invariants", "tidelog")
"""`invariants`: some columns are never null. Only Tidelog knows `tidelog`, so the protocol makes
all other engines refuse to write (append, delete, compact, vacuum).
"""

_DELTA_TYPES = {
    pa.int64(): "long",
    pa.int32(): "integer",
    pa.binary(): "binary",
    pa.string(): "string",
    pa.timestamp("us", tz="UTC"): "timestamp",
}


def protocol() -> dict[str, Any]:
    """The content of the `protocol` action."""
    return {
        "minReaderVersion": READER_VERSION,
        "minWriterVersion": WRITER_VERSION,
        "writerFeatures": list(WRITER_FEATURES),
    }


def metadata(topic_id: TopicId, topic: str, created_ms: int) -> dict[str, Any]:
    """The content of the `metaData` action of a topic's table."""
    return {
        "id": str(topic_id),
        "name": topic,
        "format": {"provider": "parquet", "options": {}},
        "schemaString": json.dumps(_schema(), separators=(",", ":")),
        "partitionColumns": [PARTITION_COLUMN],
        "configuration": {FORMAT_PROPERTY: str(FORMAT_VERSION)},
        "createdTime": created_ms,
    }


def check_protocol(key: str, found: dict[str, Any]) -> None:
    """Raise UnsupportedFormat unless this version may read and write the table."""
    features = tuple(found.get("writerFeatures") or ())
    if (found.get("minReaderVersion"), found.get("minWriterVersion"), features) != (
        READER_VERSION,
        WRITER_VERSION,
        WRITER_FEATURES,
    ):
        raise UnsupportedFormat(
            f"{key}: the table has the protocol {json.dumps(found)}, this version reads and writes"
            f" {json.dumps(protocol())}: use a newer Tidelog"
        )


def check_metadata(key: str, found: dict[str, Any], topic_id: TopicId) -> None:
    """Raise unless the table is the topic's and its format is known.

    CorruptObject, UnsupportedFormat.
    """
    if found.get("id") != str(topic_id):
        raise CorruptObject(key, f"it is the table of {found.get('id')}, not of {topic_id}")
    version = str((found.get("configuration") or {}).get(FORMAT_PROPERTY))
    if not version.isdigit():
        raise CorruptObject(key, f"the property {FORMAT_PROPERTY} is {version}")
    if int(version) > FORMAT_VERSION:
        raise UnsupportedFormat(
            f"{key}: the table has format {version}, this version reads up to {FORMAT_VERSION}:"
            f" use a newer Tidelog"
        )


def _schema() -> dict[str, Any]:
    fields = [_field(field) for field in ROW_SCHEMA]
    partition = pa.field(PARTITION_COLUMN, pa.int32())
    return {"type": "struct", "fields": [*fields, _field(partition)]}


def _field(field: pa.Field) -> dict[str, Any]:
    return {
        "name": field.name,
        "type": _type(field.type),
        "nullable": field.nullable,
        # Leave the field id out: without column mapping no reader uses it. With it, DuckDB finds no
        # column, and all values are null.
        "metadata": {},
    }


def _type(kind: pa.DataType) -> Any:
    if pa.types.is_list(kind):
        element = _type(kind.value_type)
        return {
            "type": "array",
            "elementType": element,
            "containsNull": kind.value_field.nullable,
        }
    if pa.types.is_struct(kind):
        return {"type": "struct", "fields": [_field(kind.field(i)) for i in range(len(kind))]}
    return _DELTA_TYPES[kind]
