"""Decodes the records of coordinators' machines from the batches of their logs. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Generic, NamedTuple, TypeVar

from tidelog.errors import CorruptObject, TidelogError
from tidelog.records.batch import NO_PRODUCER_ID, iterate_batches
from tidelog.records.buffers import Buffer
from tidelog.records.control import MarkerType, parse_marker
from tidelog.records.records import decode_batch

RecordT = TypeVar("RecordT")


class LoggedRecord(NamedTuple):
    """A record of the log, with its producer."""

    key: bytes | None
    value: bytes | None
    producer_id: int = NO_PRODUCER_ID
    """The producer of its transaction; NO_PRODUCER_ID if it is in none."""


def _no_record(_producer_id: int, _is_commit: bool) -> None:
    """The record of a transaction's end for a machine without transactional records."""


class Codec(NamedTuple, Generic[RecordT]):
    """Encodes and decodes a machine's records. `decode` raises TidelogError.

    `ended`: the record that a producer's marker in this log means to the machine (True: commit).
    """

    encode: Callable[[RecordT], tuple[bytes, bytes | None]]
    decode: Callable[[LoggedRecord], RecordT]
    ended: Callable[[int, bool], RecordT | None] = _no_record


def decode_log(batches: Buffer, offset: int, codec: Codec[RecordT]) -> list[RecordT]:
    """The records in batches of the log, from an offset on that begins a batch.

    Raises TidelogError.
    """
    found: list[RecordT] = []
    for position, header in iterate_batches(batches):
        if header.last_offset < offset:
            continue
        if header.is_control:
            marker = parse_marker(batches, position)
            if marker is not None:
                is_commit = marker.type is MarkerType.COMMIT
                end = codec.ended(header.producer_id, is_commit)
                found += [] if end is None else [end]
            continue
        producer_id = header.producer_id if header.is_transactional else NO_PRODUCER_ID
        found += [
            codec.decode(LoggedRecord(record.key, record.value, producer_id))
            for record in decode_batch(batches, position, header)
        ]
    return found


def decode_objects(
    objects: Sequence[tuple[str, Buffer]], offset: int, codec: Codec[RecordT]
) -> list[RecordT]:
    """The records in objects of the log, each with its key, from an offset on that begins a batch.

    Raises CorruptObject.
    """
    found: list[RecordT] = []
    for key, batches in objects:
        try:
            found += decode_log(batches, offset, codec)
        except TidelogError as error:
            raise CorruptObject(key, str(error)) from error
    return found
