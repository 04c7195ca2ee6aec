"""Finds the first offset of a time, in segments and tails."""

from __future__ import annotations

from tidelog.bucket.views.bucket import Bucket
from tidelog.bucket.views.partition_view import PartitionView
from tidelog.bucket.views.tails import Keep
from tidelog.storage.segment.segment_index import first_row_since
from tidelog.storage.segment.segment_reader import SegmentReader


async def first_offset_since(
    bucket: Bucket,
    view: PartitionView,
    timestamp_ms: int,
    end: int,
    keep: Keep | None = None,
) -> int | None:
    """The first offset below `end` with a committed record of this time or later, or None.

    `keep` selects the records of an atomic snapshot's tail, which may lie above the last stable
    offset.

    Raises CorruptObject, StoreError.
    """
    access = bucket.access
    for stored in view.segments:
        segment = stored.segment
        latest = segment.timestamp_max
        is_late = latest is not None and latest >= timestamp_ms
        if is_late and view.log_start <= segment.last_row and segment.first_row < end:
            reader = await SegmentReader.open(access.store, access.offload, view.partition, segment)
            found = await reader.first_since(timestamp_ms, view.log_start)
            if found is not None:
                return found[0] if found[0] < end else None
    async for rows in bucket.tails.rows(
        view, upper=end, columns=("offset", "timestamp"), keep=keep
    ):
        found = first_row_since(rows, timestamp_ms)
        if found is not None:
            return found[0]
    return None
