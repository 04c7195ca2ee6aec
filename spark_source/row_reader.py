"""Reads a piece's rows in a task: segments whole or by ranges, then the tail.

A task's plan may be stale: a roll or compaction may have replaced an object. Then the reader looks
at the partition again and continues from its position. An object that is missing twice is lost
(rule F4). No row is returned twice. A task that dies has changed nothing; Spark reruns it from its
first row.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa

from tidelog.bucket.views.atomic_view import AtomicView
from tidelog.bucket.views.bucket import Bucket
from tidelog.bucket.views.partition_view import PartitionView
from tidelog.bucket.views.reading import BucketView, NoSuchTopic
from tidelog.errors import MissingObject
from tidelog.identifiers import TransactionName
from tidelog.records.parse.row_arrays import integers_of
from tidelog.spark_source.planning import Piece, tail_of
from tidelog.spark_source.ranges import DataLost, ReadRange, available
from tidelog.storage.segment.segment import Segment
from tidelog.storage.segment.segment_reader import SegmentReader, read_groups
from tidelog.storage.superseded import Looks, required

WHOLE_BYTES_MAX = 32 * 1024 * 1024
"""One request reads a segment up to this size; a larger one is read by footer and ranges."""
RANGE_BYTES_MAX = 16 * 1024 * 1024
_WHOLE_SHARE = 4
"""A segment is read by ranges if the piece needs less than one part in this many."""
_ALWAYS_WHOLE_BYTES = 1024 * 1024
_ATTEMPTS_MAX = 10


class RowReader:
    """Reads pieces of a bucket."""

    def __init__(self, bucket: Bucket, columns: Sequence[str], *, fail_on_data_loss: bool) -> None:
        """`columns` are columns of rows, the offset first."""
        self._bucket = bucket
        self._columns = list(columns)
        self._fail_on_data_loss = fail_on_data_loss

    async def rows(self, piece: Piece) -> AsyncIterator[pa.RecordBatch]:
        """The piece's rows by offset. Raises CorruptObject, DataLost, StoreError."""
        looks = Looks(looks_max=_ATTEMPTS_MAX)
        while True:
            position = piece.range.start
            try:
                with required():
                    async for rows in self._read(piece):
                        position = integers_of(rows.column("offset"))[-1].item() + 1
                        yield rows.select(self._columns)
                return
            except MissingObject as missing:
                looks.missed(missing)
            following = await self._read_again(piece, position)
            if following is None:
                return
            piece = following

    async def _read(self, piece: Piece) -> AsyncIterator[pa.RecordBatch]:
        wanted = piece.range
        upcoming: asyncio.Task[_Opened] | None = None
        try:
            for index, segment in enumerate(piece.segments):
                opened = await (upcoming or self._start(piece, segment))
                # Open the next segment while this one is decoded and sent to Spark.
                following = piece.segments[index + 1 : index + 2]
                upcoming = self._start(piece, following[0]) if following else None
                async for rows in opened.rows(piece, self._columns):
                    yield rows
        finally:
            if upcoming is not None:
                upcoming.cancel()
                await asyncio.gather(upcoming, return_exceptions=True)
        if piece.tail is None:
            return
        keep = None
        if piece.excluded is not None:
            keep = AtomicView(BucketView(self._bucket.state), piece.excluded).keep
        async for rows in self._bucket.tails.rows(
            piece.tail,
            wanted.start,
            wanted.end,
            columns=self._columns,
            keep=keep,
        ):
            yield rows

    def _start(self, piece: Piece, segment: Segment) -> asyncio.Task[_Opened]:
        return asyncio.create_task(_open(self._bucket, piece, segment))

    async def _read_again(self, piece: Piece, position: int) -> Piece | None:
        """The rest of a piece as it is now; None if its topic was deleted."""
        limits, is_loss = piece.range.limits, self._fail_on_data_loss
        await self._bucket.refresh()
        found = await self._bucket.view_partitions([limits.partition])
        rest = ReadRange(limits, position, piece.range.end)
        view = partition_in(found, rest, fail_on_data_loss=is_loss)
        if view is None:
            return None
        wanted = available(rest, view.log_start, fail_on_data_loss=is_loss)
        segments = tuple(
            stored.segment
            for stored in view.segments
            if stored.segment.first_row < wanted.end and stored.segment.last_row >= wanted.start
        )
        tail = tail_of(view, wanted.start, wanted.end)
        return replace(piece, range=wanted, segments=segments, tail=tail)


class _Opened:
    """An open segment."""

    def __init__(self, bucket: Bucket, reader: SegmentReader, whole: memoryview | None) -> None:
        self._access = bucket.access
        self._reader = reader
        self._whole = whole

    async def rows(self, piece: Piece, columns: list[str]) -> AsyncIterator[pa.RecordBatch]:
        """The piece's rows of the segment, a row group at a time."""
        index, wanted = self._reader.index, piece.range
        groups = index.groups_between(wanted.start, wanted.end)
        excluded: frozenset[TransactionName] = frozenset()
        # Records that were in the table at the snapshot were decided before it.
        if piece.excluded and index.identity.last_offset >= wanted.limits.table_next:
            excluded = piece.excluded
            columns = list(dict.fromkeys([*columns, "producer_id", "transaction"]))
        bytes_max = RANGE_BYTES_MAX if self._whole is None else None
        for first, last in index.runs(groups, columns, bytes_max):
            if self._whole is None:
                start, data = await read_groups(self._access.store, index, first, last, columns)
            else:
                start, data = 0, self._whole
            for group in range(first, last + 1):
                for rows in await self._access.offload.run(
                    index.decode, group, group, start, data, columns
                ):
                    kept = _wanted(rows, wanted.start, wanted.end, excluded)
                    if kept.num_rows:
                        yield kept


async def _open(bucket: Bucket, piece: Piece, segment: Segment) -> _Opened:
    access, partition = bucket.access, piece.range.limits.partition
    if not _is_whole(piece, segment):
        reader = await SegmentReader.open(access.store, access.offload, partition, segment)
        return _Opened(bucket, reader, None)
    reader, data = await SegmentReader.open_whole(access.store, access.offload, partition, segment)
    return _Opened(bucket, reader, memoryview(data))


def _is_whole(piece: Piece, segment: Segment) -> bool:
    """True if one request reads the whole segment."""
    if segment.size_bytes > WHOLE_BYTES_MAX:
        return False
    first, last = segment.first_row, segment.last_row
    taken = min(last + 1, piece.range.end) - max(first, piece.range.start)
    is_much = taken * _WHOLE_SHARE >= last + 1 - first
    return is_much or segment.size_bytes <= _ALWAYS_WHOLE_BYTES


def partition_in(
    view: BucketView, wanted: ReadRange, *, fail_on_data_loss: bool
) -> PartitionView | None:
    """The partition of a range; None if its topic was deleted.

    Raises CorruptObject, and DataLost for a deleted topic if `fail_on_data_loss` is set.
    """
    try:
        return view.partition(wanted.limits.partition)
    except NoSuchTopic:
        if not fail_on_data_loss:
            return None
        raise DataLost(
            f"offsets {wanted.start} to {wanted.end - 1} of {wanted.limits} are not there any more:"
            " the topic was deleted; with failOnDataLoss=false they are passed over"
        ) from None


def _wanted(
    rows: pa.RecordBatch, start: int, end: int, excluded: frozenset[TransactionName]
) -> pa.RecordBatch:
    """The rows at offsets [start, end), without those of excluded transactions."""
    first, following = np.searchsorted(integers_of(rows.column("offset")), [start, end])
    rows = rows.slice(first, following - first)
    if not excluded or not rows.num_rows:
        return rows
    producers = integers_of(rows.column("producer_id"), -1)
    ordinals = integers_of(rows.column("transaction"), -1)
    kept = np.ones(rows.num_rows, np.bool_)
    for name in excluded:
        kept &= (producers != name.producer_id) | (ordinals != name.ordinal)
    return rows.filter(pa.array(kept))
