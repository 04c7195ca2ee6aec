"""Logs of one partition for properties: plain and idempotent batches among transactions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st

from tests.properties.records.batches import new_records, record_lists
from tidelog.records.batch import TimestampType
from tidelog.records.compression import Compression
from tidelog.records.control import MarkerType, control_batch
from tidelog.records.records import Record, decode_records, encode_batch
from tidelog.records.row_columns import AbortedRange

Row = dict[str, Any]
codecs = st.sampled_from(Compression)
undated_lists = st.lists(
    new_records(st.just(-1) | st.integers(-5, 5) | st.integers(1_700_000_000_000, 2 * 10**12)),
    min_size=1,
    max_size=5,
)


@dataclass
class Log:
    """A partition's log as bytes, and the rows that a table should have of it."""

    buffer: bytes
    ordinals: list[int]
    aborted: list[AbortedRange]
    expected: list[Row]
    next_offset: int


def row(record: Record, producer: tuple[int, int, int]) -> Row:
    """The expected row of a record in the table."""
    producer_id, epoch, ordinal = producer
    stamp = pa.scalar(record.timestamp * 1000, pa.timestamp("us", tz="UTC"))
    return {
        "offset": record.offset,
        "timestamp": None if record.timestamp == -1 else stamp.value,
        "timestamp_type": int(record.timestamp_type),
        "key": record.key,
        "value": record.value,
        "headers": [{"key": k, "value": v} for k, v in record.headers] or None,
        "producer_id": None if producer_id == -1 else producer_id,
        "producer_epoch": None if epoch == -1 else epoch,
        "transaction": None if ordinal == -1 else ordinal,
    }


@st.composite
def logs(draw: st.DrawFn) -> Log:
    """Plain and idempotent batches among transactions, of which each producer has several."""
    log = Log(b"", [], [], [], draw(st.sampled_from([0, 7, 2**40])))
    first_offsets: dict[int, int] = {}
    pending: dict[int, list[Row]] = {1: [], 2: []}
    ordinals = {1: 0, 2: 0}
    for kind in draw(st.lists(st.sampled_from(["plain", "data", "data", "end"]), max_size=8)):
        producer_id = draw(st.sampled_from([1, 2]))
        if kind == "end":
            if producer_id not in first_offsets:
                continue
            commits = draw(st.booleans())
            _end(log, producer_id, first_offsets.pop(producer_id), commits)
            if commits:
                log.expected += pending[producer_id]
            pending[producer_id] = []
            ordinals[producer_id] += 1
            continue
        records = draw(record_lists() | undated_lists)
        by_broker = draw(st.booleans())
        producer = (producer_id, 3, ordinals[producer_id]) if kind == "data" else (-1, -1, -1)
        if kind == "plain" and draw(st.booleans()):
            producer = (9, 0, -1)
        batch = encode_batch(
            records,
            compression=draw(codecs),
            timestamp_type=TimestampType(by_broker),
            base_offset=log.next_offset,
            producer_id=producer[0],
            producer_epoch=producer[1],
            base_sequence=0 if producer[0] >= 0 else -1,
            is_transactional=kind == "data",
        )
        rows = [row(record, producer) for record in decode_records(batch)]
        if kind == "data":
            first_offsets.setdefault(producer_id, log.next_offset)
            pending[producer_id] += rows
        else:
            log.expected += rows
        _append(log, batch, producer[2], len(records))
        log.next_offset += draw(st.sampled_from([0, 0, 5, 2**33]))
    for producer_id, first_offset in first_offsets.items():
        _end(log, producer_id, first_offset, commits=False)
    log.expected.sort(key=lambda row: row["offset"])
    return log


def _append(log: Log, batch: bytearray, ordinal: int, records: int) -> None:
    log.buffer += batch
    log.ordinals.append(ordinal)
    log.next_offset += records


def _end(log: Log, producer_id: int, first_offset: int, commits: bool) -> None:
    marker = control_batch(
        MarkerType(commits),
        producer_id=producer_id,
        producer_epoch=3,
        coordinator_epoch=0,
        timestamp=0,
        base_offset=log.next_offset,
    )
    if not commits:
        log.aborted.append(AbortedRange(producer_id, first_offset, log.next_offset))
    _append(log, marker, -1, 1)
