"""The records of a simulation: a value, and padding that shows damage.

Values are unique in a run. In compacted topics some records share a key, which their values name
(`...#k3`). Some are tombstones (`...#k3!`), whose value lies in a header.
"""

from __future__ import annotations

import hashlib
import random
import re

from tidelog.records.records import NewRecord, Record

_KEYED = re.compile(r"#(k[0-9]+)(!?)$")
_KEYS = 12
"""Shared keys in each partition of a compacted topic."""
_TOMBSTONES = 0.15
_HEADER = "value"


class DamagedRecord(AssertionError):
    """A record differs from the one that was sent."""


def keyed(value: str, chance: random.Random) -> str:
    """A value for a compacted topic: with one of a few keys, now and then a tombstone."""
    mark = "!" if chance.random() < _TOMBSTONES else ""
    return f"{value}#k{chance.randrange(_KEYS)}{mark}"


def shared_key(value: str) -> str | None:
    """The key that a value's record shares with others, if it does."""
    found = _KEYED.search(value)
    return found[1] if found else None


def is_tombstone(value: str) -> bool:
    """Whether the record takes its key away."""
    found = _KEYED.search(value)
    return found is not None and bool(found[2])


def new_record(value: str, padding_bytes: int, now_ms: int) -> NewRecord:
    """A record that holds the value."""
    if is_tombstone(value):
        return NewRecord(None, _key(value), ((_HEADER, value.encode()),), now_ms)
    return NewRecord(_body(value, padding_bytes), _key(value), timestamp=now_ms)


def value_of(record: Record) -> str:
    """The value in a record.

    Raises:
        DamagedRecord: the record differs from the one that was sent.
    """
    if record.value is None:
        value = (dict(record.headers).get(_HEADER) or b"").decode()
        is_whole = is_tombstone(value)
    else:
        text, _, padding = record.value.partition(b"\0")
        value = text.decode()
        is_whole = record.value == _body(value, len(padding)) and not is_tombstone(value)
    if record.key != _key(value) or not is_whole:
        raise DamagedRecord(f"offset {record.offset} holds {record.key!r}: {record.value!r}")
    return value


def _key(value: str) -> bytes:
    shared = shared_key(value)
    return _digest(value) if shared is None else shared.encode()


def _digest(value: str) -> bytes:
    return hashlib.blake2b(value.encode(), digest_size=8).digest()


def _body(value: str, padding_bytes: int) -> bytes:
    """The value, then padding that depends on it, so that damage anywhere shows."""
    padding = (_digest(value) * (padding_bytes // 8 + 1))[:padding_bytes]
    return value.encode() + b"\0" + padding
