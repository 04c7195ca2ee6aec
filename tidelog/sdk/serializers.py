"""Serializers of keys and values.

A serializer is a callable `(value, context) -> bytes | None`, a deserializer `(bytes, context) ->
value`, as in confluent-kafka, so that those of its schema registry fit unchanged. `context` is a
confluent_kafka.serialization.SerializationContext: the topic, `key` or `value`, and the headers.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias

import pyarrow as pa
from confluent_kafka.serialization import SerializationContext

from tidelog.errors import InvalidConfiguration, TidelogError

Serializer: TypeAlias = Callable[[Any, SerializationContext], bytes | None]
Deserializer: TypeAlias = Callable[[bytes, SerializationContext], Any]


class NotSerializable(TidelogError):
    """A key or value does not fit its serializer, or another field no message. Nothing was sent."""


class NotDeserializable(TidelogError):
    """The bytes of a key or value do not fit the deserializer.

    The consumer's position is behind the message, so that the next call passes it over.
    """


def to_bytes(value: Any, context: SerializationContext | None = None) -> bytes | None:
    """Bytes as they are, and text as UTF-8."""
    if value is None or type(value) is bytes:
        return value
    if isinstance(value, str):
        return _utf8(value)
    if isinstance(value, bytearray | memoryview):
        return bytes(value)
    raise NotSerializable(
        f"a {type(value).__name__} is neither bytes nor text: give the producer a serializer, such"
        ' as value_serializer="json"'
    )


def _utf8(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise NotSerializable(f"the text has no UTF-8: {error}") from error


def from_text(data: bytes, context: SerializationContext | None = None) -> str:
    """UTF-8 as text."""
    return data.decode()


def to_json(value: Any, context: SerializationContext | None = None) -> bytes | None:
    """JSON without spaces, as UTF-8. None stays a null: a tombstone, not JSON's `null`."""
    if value is None:
        return None
    try:
        text = json.dumps(value, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise NotSerializable(f"{type(value).__name__} is no JSON: {error}") from error
    return _utf8(text)


def from_json(data: bytes, context: SerializationContext | None = None) -> Any:
    """The value of a JSON text."""
    return json.loads(data)


class ArrowSerializer:
    """Rows of one schema as an Arrow IPC message, without the schema.

    A value is a row (a mapping), rows (a sequence of mappings) or a pyarrow.RecordBatch.
    """

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema

    def __call__(self, value: Any, context: SerializationContext | None = None) -> bytes | None:
        if value is None:
            return None
        try:
            batch = self._batch(value)
        except (pa.ArrowException, TypeError, AttributeError) as error:
            raise NotSerializable(f"the rows do not fit the schema: {error}") from error
        if not batch.schema.equals(self._schema):
            raise NotSerializable(
                f"the record batch has the schema {batch.schema}, not {self._schema}"
            )
        return batch.serialize().to_pybytes()  # type: ignore[no-any-return]

    def _batch(self, value: Any) -> pa.RecordBatch:
        if isinstance(value, pa.RecordBatch):
            return value
        rows = [value] if isinstance(value, Mapping) else list(value)
        return pa.RecordBatch.from_pylist(rows, schema=self._schema)


class ArrowDeserializer:
    """Record batches of `ArrowSerializer`."""

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema

    def __call__(self, data: bytes, context: SerializationContext | None = None) -> pa.RecordBatch:
        batch = pa.ipc.read_record_batch(pa.py_buffer(data), self._schema)
        batch.validate(full=True)
        return batch


SERIALIZERS: Final[dict[str, Serializer | None]] = {
    "bytes": None,
    "string": to_bytes,
    "json": to_json,
}
"""By name; None stands for `to_bytes` without a context, which the producer calls by itself."""
DESERIALIZERS: Final[dict[str, Deserializer | None]] = {
    "bytes": None,
    "string": from_text,
    "json": from_json,
}
"""By name; None leaves bytes as they are."""


def serializer_of(setting: str, given: Serializer | str | None) -> Serializer | None:
    """The serializer that a name or a callable selects. Raises InvalidConfiguration."""
    if isinstance(given, str):
        _check_name(setting, given)
        return SERIALIZERS[given]
    return _checked_callable(setting, given)


def deserializer_of(setting: str, given: Deserializer | str | None) -> Deserializer | None:
    """The deserializer that a name or a callable selects. Raises InvalidConfiguration."""
    if isinstance(given, str):
        _check_name(setting, given)
        return DESERIALIZERS[given]
    return _checked_callable(setting, given)


def _check_name(setting: str, name: str) -> None:
    if name not in SERIALIZERS:
        raise InvalidConfiguration(
            f"{setting}: {name!r} is none of {', '.join(SERIALIZERS)}; a callable (value, context)"
            " is taken too"
        )


def _checked_callable(
    setting: str, given: Callable[[Any, SerializationContext], Any] | None
) -> Callable[[Any, SerializationContext], Any] | None:
    if given is not None and not callable(given):
        raise InvalidConfiguration(
            f"{setting}: a {type(given).__name__} is neither a callable (value, context) nor one of"
            f" {', '.join(SERIALIZERS)}"
        )
    return given
