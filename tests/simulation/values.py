"""What the records of a simulation hold: a value, and padding by which damage shows."""

from __future__ import annotations

import hashlib

from tidelog.records.records import NewRecord, Record


class DamagedRecord(AssertionError):
    """A record came back different from how it was sent."""


def new_record(value: str, padding_bytes: int, now_ms: int) -> NewRecord:
    """A record that holds the value."""
    return NewRecord(_body(value, padding_bytes), _digest(value), timestamp=now_ms)


def value_of(record: Record) -> str:
    """The value in a record.

    Raises:
        DamagedRecord: it is not what was sent.
    """
    text, _, padding = (record.value or b"").partition(b"\0")
    value = text.decode()
    if record.key != _digest(value) or record.value != _body(value, len(padding)):
        raise DamagedRecord(f"offset {record.offset} holds {record.key!r}: {record.value!r}")
    return value


def _digest(value: str) -> bytes:
    return hashlib.blake2b(value.encode(), digest_size=8).digest()


def _body(value: str, padding_bytes: int) -> bytes:
    """The value, then padding that depends on it, so that damage anywhere shows."""
    padding = (_digest(value) * (padding_bytes // 8 + 1))[:padding_bytes]
    return value.encode() + b"\0" + padding
