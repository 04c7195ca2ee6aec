"""Segments for tests: rows of many kinds, written as a roll writes them."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

import pyarrow as pa

from tidelog.identifiers import TopicPartition
from tidelog.records.records import NewRecord, encode_batch
from tidelog.records.rows.row_decoding import decode_rows
from tidelog.storage.segment.segment import Segment, SegmentName
from tidelog.storage.segment.segment_writer import SegmentWriter, WrittenSegment
from tidelog.storage.table.table_change import Commit, PartitionChange, TableAdvance
from tidelog.storage.table.table_schema import metadata

TOPIC_ID = UUID("01234567-89ab-4cde-8f01-23456789abcd")
PARTITION = TopicPartition(TOPIC_ID, 3)
STAMP = 1_700_000_000_000


def some_rows(base_offset: int, count: int, size: int = 20) -> pa.RecordBatch:
    """Rows with and without keys, values, headers and timestamps, at every second offset."""
    batches = [
        encode_batch(
            [
                NewRecord(
                    None if offset % 7 == 1 else (b"%d " % offset * size)[:size],
                    [None, b"", b"key %d" % offset][offset % 3],
                    [("name", b"x"), ("none", None)] if offset % 5 == 0 else (),
                    -1 if offset % 11 == 0 else STAMP + offset,
                )
            ],
            base_offset=offset,
        )
        for offset in range(base_offset, base_offset + 2 * count, 2)
    ]
    rows = list(decode_rows(b"".join(batches)))
    return pa.Table.from_batches(rows).combine_chunks().to_batches()[0]


def written(
    batches: Sequence[pa.RecordBatch],
    base_offset: int,
    next_offset: int,
    topic_partition: TopicPartition = PARTITION,
    number: int = 1,
) -> WrittenSegment:
    """A segment of these rows."""
    writer = SegmentWriter(topic_partition, base_offset)
    for batch in batches:
        writer.write(batch)
    return writer.finish(next_offset, UUID(int=number))


def data_of(segment: WrittenSegment) -> bytes:
    """The object's bytes."""
    return b"".join(segment.pieces)


def listed(
    partition: int, base: int, last: int, number: int = 0, timestamp_max: int | None = STAMP
) -> Segment:
    """A segment as its table lists it, without the object."""
    name = SegmentName(partition=partition, base_offset=base, last_offset=last, id=UUID(int=number))
    return Segment(
        name=name,
        size_bytes=1000,
        row_count=last - base + 1,
        first_row=base,
        last_row=last,
        undated_rows=0,
        raw_bytes=5000,
        timestamp_min=timestamp_max,
        timestamp_max=timestamp_max,
        crc32c=number,
        tail_bytes=100,
    )


def advance(partition: int, base: int, next_offset: int, *segments: Segment) -> PartitionChange:
    """Segments behind the end of a partition's part of the table."""
    return PartitionChange(
        partition=partition, advance=TableAdvance(base, next_offset), appended=segments
    )


def commit_of(*changes: PartitionChange, first: bool = False) -> Commit:
    """An entry of the log with these changes."""
    described = metadata(TOPIC_ID, "flights", STAMP) if first else None
    return Commit(writer_id=b"w" * 16, timestamp_ms=STAMP, changes=changes, metadata=described)
