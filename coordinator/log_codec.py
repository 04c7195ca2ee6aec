"""How the records of coordinators' machines lie in the batches of their logs. Pure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, NamedTuple, TypeVar

from tidelog.records.batch import NO_PRODUCER_ID, iterate_batches
from tidelog.records.buffers import Buffer
from tidelog.records.control import MarkerType, parse_marker
from tidelog.records.records import decode_batch

RecordT = TypeVar("RecordT")


class LoggedRecord(NamedTuple):
    """A record as the log has it."""

    key: bytes | None
    value: bytes | None
    producer_id: int = NO_PRODUCER_ID
    """Whose transaction it is a part of; NO_PRODUCER_ID if of none."""


def _no_record(_producer_id: int, _is_commit: bool) -> None:
    """What the end of a transaction is to a machine whose records are in none."""


class Codec(NamedTuple, Generic[RecordT]):
    """How the machine's records lie in the log. `decode` raises TidelogError.

    `ended`: what it is to the machine that the transaction of a producer id was committed (or, with
    False, aborted) in this log.
    """

    encode: Callable[[RecordT], tuple[bytes, bytes | None]]
    decode: Callable[[LoggedRecord], RecordT]
    ended: Callable[[int, bool], RecordT | None] = _no_record


def decode_log(batches: Buffer, offset: int, codec: Codec[RecordT]) -> list[RecordT]:
    """What some batches of the log hold from an offset on, where a batch begins. Raises
    TidelogError."""
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
