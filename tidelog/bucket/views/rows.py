"""A partition's rows in offset order: those of its segments, then those of its tail.

A missing object raises MissingObject: compaction, retention or a roll has replaced it since the
view, or it is lost. The reader takes a new view and continues behind its last row (rule F4). A
later view shows the same committed rows, except those that retention and compaction have removed.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa

from tidelog.bucket.views.partition_view import PartitionView
from tidelog.bucket.views.reading import BucketAccess
from tidelog.bucket.views.tails import Keep, TailReader
from tidelog.records.parse.row_arrays import integers_of
from tidelog.records.row_columns import ROW_SCHEMA
from tidelog.storage.segment.segment import Segment
from tidelog.storage.segment.segment_reader import SegmentReader
from tidelog.storage.superseded import required

SEGMENT_READ_BYTES = 8 * 1024 * 1024
"""The bytes of one range of a segment; a single row group may be larger."""
OFFSET = "offset"


class Times(NamedTuple):
    """A range of the records' own timestamps, in milliseconds; the end is exclusive."""

    since_ms: int | None = None
    until_ms: int | None = None

    def may_be_in(self, segment: Segment) -> bool:
        """Whether a record of the segment may have such a time; one without a time has not."""
        if self == ALL_TIMES:
            return True
        first, last = segment.timestamp_min, segment.timestamp_max
        if first is None or last is None:
            return False
        return (self.since_ms is None or last >= self.since_ms) and (
            self.until_ms is None or first < self.until_ms
        )


ALL_TIMES: Final = Times()


async def partition_rows(
    access: BucketAccess,
    tails: TailReader,
    view: PartitionView,
    start: int = 0,
    upper: int | None = None,
    *,
    columns: Sequence[str] = ROW_SCHEMA.names,
    times: Times = ALL_TIMES,
    committed: bool = True,
    keep: Keep | None = None,
) -> AsyncIterator[pa.RecordBatch]:
    """The rows at offsets [start, upper), some MiB at a time.

    `committed` and `keep` select rows of the tail (`TailReader.rows`). All rows of segments are
    committed. `times` leaves out segments and row groups without such rows; the others come whole.

    Raises MissingObject and other CorruptObjects, UnsupportedFormat, StoreError.
    """
    first = max(start, view.log_start)
    end = view.high_watermark if upper is None else min(upper, view.high_watermark)
    for stored in view.segments:
        name = stored.segment.name
        if name.last_offset >= first and name.base_offset < end and times.may_be_in(stored.segment):
            async for rows in _segment_rows(
                access, view, stored.segment, first, end, columns, times
            ):
                yield rows
    async for rows in tails.rows(
        view, start, upper, columns=columns, committed=committed, keep=keep
    ):
        yield rows


async def _segment_rows(
    access: BucketAccess,
    view: PartitionView,
    segment: Segment,
    start: int,
    upper: int,
    columns: Sequence[str],
    times: Times,
) -> AsyncIterator[pa.RecordBatch]:
    # The reader cuts by offset, so that column is always read.
    wanted = [OFFSET, *(name for name in columns if name != OFFSET)]
    with required():
        reader = await SegmentReader.open(access.store, access.offload, view.partition, segment)
        index = reader.index
        groups = index.groups_between(start, upper, times.since_ms, times.until_ms)
        for run in index.runs(groups, wanted, SEGMENT_READ_BYTES):
            for rows in await reader.groups(*run, wanted):
                offsets = integers_of(rows.column(OFFSET))
                first, following = np.searchsorted(offsets, [start, upper])
                if first < following:
                    yield rows.slice(first, following - first).select(list(columns))
