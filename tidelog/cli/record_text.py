"""Records as text: lines that are values, or JSON objects with all fields.

A JSON record: `{"key": K, "value": V, "headers": [[NAME, V], ...], "partition": N}`. Read records
also have `offset`, `timestamp` (milliseconds) and `timestamp_type`. K and V are null, text, or
`{"base64": "..."}` for bytes that are not UTF-8.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Iterator
from dataclasses import dataclass

from tidelog.errors import Refused
from tidelog.records.records import NewRecord, Record

LINES = "lines"
JSON = "json"
INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1


class NotARecord(Refused):
    """A line of input is not a record; the message names the line and the error."""


@dataclass(frozen=True, slots=True)
class Parsed:
    """A record to send, with its own partition, if any."""

    record: NewRecord
    partition: int | None = None


def parse(line: bytes, number: int, form: str, now_ms: int) -> Parsed:
    """The record in a line. Raises NotARecord."""
    if form == LINES:
        return Parsed(NewRecord(line, timestamp=now_ms))
    try:
        found = json.loads(line)
        if not isinstance(found, dict):
            raise TypeError("it is not a JSON object")
        unknown = found.keys() - {"key", "value", "headers", "partition", "timestamp"}
        if unknown:
            raise TypeError(f"unknown field {min(unknown)!r}")
        partition = found.get("partition")
        timestamp = found.get("timestamp", now_ms)
        if type(partition) not in (int, type(None)) or type(timestamp) is not int:
            raise TypeError("partition and timestamp must be whole numbers")
        if not INT64_MIN <= timestamp <= INT64_MAX:
            raise ValueError(f"timestamp {timestamp} is no number of 64 bits")
        headers = tuple(_headers(found.get("headers", [])))
        record = NewRecord(_bytes(found.get("value")), _bytes(found.get("key")), headers, timestamp)
        return Parsed(record, partition)
    except RecursionError as error:
        raise NotARecord(f"line {number} is no record: it is nested too deeply") from error
    except (ValueError, TypeError, binascii.Error) as error:
        raise NotARecord(f"line {number} is no record: {error}") from error


def text(record: Record, partition: int, form: str) -> bytes:
    """A read record as a line of output, without the line end."""
    if form == LINES:
        return record.value or b""
    fields = {
        "partition": partition,
        "offset": record.offset,
        "timestamp": record.timestamp,
        "timestamp_type": record.timestamp_type.name,
        "key": _shown(record.key),
        "value": _shown(record.value),
        "headers": [[name, _shown(value)] for name, value in record.headers],
    }
    return json.dumps(fields, ensure_ascii=False).encode()


def _headers(found: object) -> Iterator[tuple[str, bytes | None]]:
    # A JSON object, or text, of two letters each would also give pairs.
    for each in found if isinstance(found, list) else [found]:
        match each:
            case [str(name), value]:
                name.encode()
                yield name, _bytes(value)
            case _:
                raise TypeError('headers are a list of [NAME, VALUE], as [["carrier", "UA"]]')


def _bytes(value: object) -> bytes | None:
    match value:
        case None:
            return None
        case str():
            return value.encode()
        case {"base64": str(encoded)}:
            return base64.b64decode(encoded, validate=True)
        case _:
            raise TypeError(
                f"{value!r} is neither null nor text nor base64; write JSON as text:"
                f" {json.dumps(json.dumps(value))}"
            )


def _shown(value: bytes | None) -> object:
    if value is None:
        return None
    try:
        return value.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(value).decode()}
