"""kio and kafka-python as independent codecs, made to take and to return our messages."""

from __future__ import annotations

import dataclasses
import datetime
import io
import warnings
from itertools import repeat
from typing import Any

from kio.index import UnknownEntity, load_payload_module
from kio.schema.errors import ErrorCode as KioErrorCode
from kio.serial import entity_reader, entity_writer
from kio.static.constants import EntityType

from tests.properties.protocol.messages import is_own
from tidelog.protocol.fields import Field, WireKind
from tidelog.protocol.message import Message, Request, Struct
from tidelog.protocol.schemas.cluster.api_versions import ApiVersionsResponse
from tidelog.protocol.wire import NULL_UUID

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import kafka.protocol.admin
    import kafka.protocol.consumer
    import kafka.protocol.metadata
    import kafka.protocol.producer
    import kafka.protocol.sasl

_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)


class Unsupported(Exception):
    """The library has no such message or version."""


def through_kio(message: Message, version: int) -> bytes:
    """The message as kio encodes it, from kio's own object."""
    kio_type = kio_type_of(type(message), version)
    written = io.BytesIO()
    entity_writer(kio_type)(written, _to_kio(message, version, kio_type))
    return written.getvalue()


def kio_reads(message_type: type[Message], version: int, encoded: bytes) -> Any:
    """The message that kio decodes, as one of ours."""
    kio_type = kio_type_of(message_type, version)
    entity, size = entity_reader(kio_type)(encoded, 0)
    assert size == len(encoded)
    return _from_kio(entity, version, message_type)


def kafka_python_repeats(message_type: type[Message], version: int, encoded: bytes) -> bytes:
    """The bytes that kafka-python encodes after it has decoded."""
    theirs = kafka_python_reads(message_type, version, encoded)
    theirs._header = None  # the decoder leaves this attribute unset, and the encoder reads it
    return bytes(theirs.encode(version=version))


def kafka_python_reads(message_type: type[Message], version: int, encoded: bytes) -> Any:
    """The message that kafka-python decodes."""
    if message_type is ApiVersionsResponse and not encoded.startswith(b"\0\0"):
        raise Unsupported("with an error it takes every version for version 0")
    return _kafka_python_type(message_type, version).decode(encoded, version=version)


def same_values(ours: Any, theirs: Any, version: int) -> bool:
    """Whether kafka-python's object has, under each of our names, the value of our object."""
    if isinstance(ours, Struct):
        return all(
            same_values(getattr(ours, field.name), _attribute(theirs, field.name), version)
            for field in kafkas_fields(type(ours), version)
        )
    if isinstance(ours, list):
        return len(ours) == len(theirs) and all(map(same_values, ours, theirs, repeat(version)))
    if isinstance(theirs, set):
        # A bit field, of which kafka-python makes the set of its bits.
        return {bit for bit in range(32) if ours >> bit & 1} == theirs
    return bool(ours == theirs) or (theirs is None and ours == NULL_UUID)


def _attribute(theirs: Any, name: str) -> Any:
    """kafka-python renames `topic_authorized_operations` and the like in some messages."""
    return getattr(theirs, name) if hasattr(theirs, name) else theirs.authorized_operations


def kio_type_of(message_type: type[Message], version: int) -> Any:
    """kio's class of a message."""
    kind = EntityType.request if issubclass(message_type, Request) else EntityType.response
    try:
        module = load_payload_module(message_type.API_KEY, version, kind)
    except UnknownEntity as error:
        raise Unsupported from error
    return getattr(module, message_type.__name__)


def kio_fields(kio_type: Any) -> dict[str, Any]:
    """The fields by our names. Where kio has a type for a unit, its name lacks the unit."""
    timed = {"timedelta_i32", "timedelta_i64", "datetime_i64"}
    return {
        f"{field.name}_ms" if field.metadata.get("kafka_type") in timed else field.name: field
        for field in dataclasses.fields(kio_type)
    }


def kafkas_fields(type_: type[Struct], version: int) -> list[Field]:
    """The fields of a version without Tidelog's own."""
    return [field for field in type_.FIELDS if version in field.versions and not is_own(field)]


def kio_struct(annotation: Any) -> Any:
    """The dataclass inside `tuple[X, ...] | None`."""
    while not dataclasses.is_dataclass(annotation):
        annotation = annotation.__args__[0]
    return annotation


def _to_kio(struct: Struct, version: int, kio_type: Any) -> Any:
    fields = kio_fields(kio_type)
    ours = kafkas_fields(type(struct), version)
    assert fields.keys() == {field.name for field in ours}
    values = {}
    for field in ours:
        value = getattr(struct, field.name)
        theirs = fields[field.name]
        if field.tag is not None and field.type.kind is WireKind.STRUCT and value is None:
            continue
        values[theirs.name] = _value_to_kio(value, field, version, theirs)
    return kio_type(**values)


def _value_to_kio(value: Any, field: Field, version: int, theirs: Any) -> Any:
    nested = field.type.struct or (field.type.element and field.type.element.struct)
    if value is None or (field.type.kind is WireKind.UUID and value == NULL_UUID):
        return None
    if field.type.kind is WireKind.ARRAY:
        if nested:
            return tuple(_to_kio(item, version, kio_struct(theirs.type)) for item in value)
        return tuple(value)
    if nested:
        return _to_kio(value, version, kio_struct(theirs.type))
    match theirs.metadata.get("kafka_type"):
        case "error_code":
            return KioErrorCode(value)
        case "timedelta_i32" | "timedelta_i64":
            return datetime.timedelta(milliseconds=value)
        case "datetime_i64":
            return None if value == -1 else _EPOCH + datetime.timedelta(milliseconds=value)
    return value


def _from_kio(entity: Any, version: int, type_: type[Struct]) -> Any:
    fields = kio_fields(type(entity))
    values = {}
    for field in kafkas_fields(type_, version):
        value = getattr(entity, fields[field.name].name)
        values[field.name] = _value_from_kio(value, field, version)
    return type_(**values)


def _value_from_kio(value: Any, field: Field, version: int) -> Any:
    if value is None:
        times = field.name.endswith("_ms")
        return NULL_UUID if field.type.kind is WireKind.UUID else -1 if times else None
    if field.type.kind is WireKind.ARRAY:
        assert field.type.element is not None
        struct = field.type.element.struct
        return [_from_kio(item, version, struct) for item in value] if struct else list(value)
    if field.type.struct is not None:
        nested = _from_kio(value, version, field.type.struct)
        return None if field.tag is not None and nested == field.type.struct() else nested
    if isinstance(value, datetime.timedelta):
        return value // datetime.timedelta(milliseconds=1)
    if isinstance(value, datetime.datetime):
        return (value - _EPOCH) // datetime.timedelta(milliseconds=1)
    return value


def _kafka_python_type(message_type: type[Message], version: int) -> Any:
    for module in (
        kafka.protocol.admin,
        kafka.protocol.consumer,
        kafka.protocol.metadata,
        kafka.protocol.producer,
        kafka.protocol.sasl,
    ):
        found = getattr(module, message_type.__name__, None)
        if found is not None and version <= found.max_version:
            return found
    raise Unsupported
