"""Reads record batches with another implementation than Tidelog's, and compares."""

from __future__ import annotations

from kafka.record.memory_records import MemoryRecords

from tidelog.records.buffers import Buffer
from tidelog.records.records import Record

_SNAPPY = 2
"""kafka-python lacks a codec for these here, so only the headers of such batches are compared."""


class ReadersDisagree(AssertionError):
    """Two implementations read different records from the same bytes."""


def compare(data: Buffer, records: list[Record]) -> None:
    """Decode a fetch's bytes with kafka-python, and compare with `records`, which Tidelog's client
    decoded."""
    ours = {record.offset: (record.key, record.value, record.timestamp) for record in records}
    batches = MemoryRecords(bytes(data))
    while batches.has_next():
        batch = batches.next_batch()
        if batch.compression_type == _SNAPPY:
            for offset in range(batch.base_offset, batch.last_offset + 1):
                ours.pop(offset, None)
            continue
        for theirs in batch:
            found = (theirs.key, theirs.value, theirs.timestamp)
            if not batch.is_control_batch and ours.pop(theirs.offset, None) != found:
                raise ReadersDisagree(f"offset {theirs.offset}: kafka-python reads {found}")
    if ours:
        raise ReadersDisagree(f"kafka-python does not read the offsets {sorted(ours)}")
