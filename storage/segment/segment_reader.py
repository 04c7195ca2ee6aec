"""Reads segments by ranges: one request for the footer, one for consecutive row groups."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from tidelog.errors import CorruptObject
from tidelog.identifiers import TopicPartition
from tidelog.records.parse.row_arrays import integers_of
from tidelog.storage.object_store import Buffer, ObjectStore, StoredObject, Suffix
from tidelog.storage.segment.parquet_seal import tail_bytes
from tidelog.storage.segment.segment import Segment
from tidelog.storage.segment.segment_index import (
    RECORD_COLUMNS,
    TIME_COLUMNS,
    SegmentIndex,
    first_row_since,
    latest_row,
)
from tidelog.workers.offload import Offload

TAIL_BYTES_GUESS = 64 * 1024
"""First read if the footer's length is unknown; most footers fit."""
READ_BYTES_MAX = 64 * 1024 * 1024
"""Limit of one range; a single row group may exceed it."""


class SegmentReader:
    """One segment, with its footer in memory. Errors name the object's key.

    After ObjectNotFound the caller reads the table again (rule F4). CorruptObject: the bytes are
    not the segment's, and none of them is returned.
    """

    def __init__(self, store: ObjectStore, offload: Offload, index: SegmentIndex) -> None:
        self._store = store
        self._offload = offload
        self.index = index

    @classmethod
    async def open(
        cls,
        store: ObjectStore,
        offload: Offload,
        topic_partition: TopicPartition,
        segment: Segment,
    ) -> SegmentReader:
        """A reader of a segment in the table, after one range read.

        CorruptObject if the footer contradicts the table.
        """
        key = segment.key(topic_partition.topic_id)
        tail = await store.get(key, Suffix(segment.tail_bytes))
        return cls(store, offload, await _index_of(offload, topic_partition, segment, tail))

    @classmethod
    async def open_whole(
        cls,
        store: ObjectStore,
        offload: Offload,
        topic_partition: TopicPartition,
        segment: Segment,
    ) -> tuple[SegmentReader, Buffer]:
        """Like `open`, with the segment's bytes: one request for both."""
        whole = await store.get(segment.key(topic_partition.topic_id))
        index = await _index_of(offload, topic_partition, segment, whole)
        return cls(store, offload, index), whole.data

    @classmethod
    async def open_key(cls, store: ObjectStore, offload: Offload, key: str) -> SegmentReader:
        """A reader of any segment by key, after one range read, or two for a long footer."""
        tail = await store.get(key, Suffix(TAIL_BYTES_GUESS))
        needed = tail_bytes(key, tail.data)
        while needed > len(tail.data):
            if needed > tail.size:
                raise CorruptObject(key, f"a footer of {needed} bytes in {tail.size}")
            tail = await store.get(key, Suffix(needed + TAIL_BYTES_GUESS))
            needed = tail_bytes(key, tail.data)
        index = await offload.run(SegmentIndex, key, tail.size, tail.data)
        return cls(store, offload, index)

    async def read(
        self, offset: int, bytes_max: int, columns: Sequence[str] = RECORD_COLUMNS
    ) -> list[pa.RecordBatch]:
        """The rows from an offset on: whole row groups in one range read, the first one cut.

        The range holds as many row groups as fit into `bytes_max` stored bytes, but at least one.
        Empty if no row is at or above the offset. `columns` must begin with the offset.
        """
        first = self.index.group_at(offset)
        if first is None:
            return []
        last = first
        limit = min(bytes_max, READ_BYTES_MAX)
        while (
            last + 1 < self.index.groups
            and self.index.byte_range(first, last + 1, columns).length <= limit
        ):
            last += 1
        batches = await self.groups(first, last, columns)
        offsets = integers_of(batches[0].column("offset"))
        cut = int(np.searchsorted(offsets, offset, "left"))
        return [batches[0].slice(cut), *batches[1:]]

    async def first_since(self, timestamp_ms: int, offset: int = 0) -> tuple[int, int] | None:
        """Offset and timestamp (ms) of the first row at or above `offset` with a time of
        `timestamp_ms` or later.

        It costs a range read of two columns for each candidate row group. Without deleted records
        there is at most one.
        """
        for group in self.index.groups_since(timestamp_ms, offset):
            (rows,) = await self.groups(group, group, TIME_COLUMNS)
            found = first_row_since(rows, timestamp_ms, offset)
            if found is not None:
                return found
            if self.index.offsets_of(group)[0] >= offset:
                why = "its timestamps are not what its statistics say"
                raise CorruptObject(self.index.key, why)
        return None

    async def latest(self, offset: int = 0) -> tuple[int, int] | None:
        """Offset and timestamp (ms) of the first row with the latest timestamp from `offset` on."""
        best: tuple[int, int] | None = None
        for group in self._groups_by_time(offset):
            latest = self.index.timestamp_max_of(group)
            if best is not None and latest < best[1]:
                break
            (rows,) = await self.groups(group, group, TIME_COLUMNS)
            found = latest_row(rows, offset)
            if found is not None and (best is None or (-found[1], found[0]) < (-best[1], best[0])):
                best = found
        return best

    def _groups_by_time(self, offset: int) -> list[int]:
        """The row groups from `offset` on, latest timestamp first, ties in offset order."""
        index = self.index
        first = index.group_at(offset)
        groups = range(index.groups if first is None else first, index.groups)
        return sorted(groups, key=lambda group: -index.timestamp_max_of(group))

    async def groups(self, first: int, last: int, columns: Sequence[str]) -> list[pa.RecordBatch]:
        """The rows of the row groups `first` to `last`, inclusive, in one range read."""
        start, data = await read_groups(self._store, self.index, first, last, columns)
        return await self._offload.run(self.index.decode, first, last, start, data, columns)


async def _index_of(
    offload: Offload, topic_partition: TopicPartition, segment: Segment, end: StoredObject
) -> SegmentIndex:
    """The footer in `end` (the object's end, or all of it), compared with the table's entry."""
    key = segment.key(topic_partition.topic_id)
    if end.size != segment.size_bytes:
        why = f"it has {end.size} bytes, the table says {segment.size_bytes}"
        raise CorruptObject(key, why)
    if tail_bytes(key, end.data) != segment.tail_bytes:
        raise CorruptObject(key, "its footer has another length than the table says")
    index = await offload.run(SegmentIndex, key, end.size, end.data)
    identity, name = index.identity, segment.name
    covered = (identity.base_offset, identity.last_offset)
    if (
        identity.topic_partition != topic_partition
        or name.partition != topic_partition.partition
        or covered != (name.base_offset, name.last_offset)
        or index.row_count != segment.row_count
    ):
        raise CorruptObject(key, "its footer contradicts the table")
    return index


async def read_groups(
    store: ObjectStore,
    index: SegmentIndex,
    first: int,
    last: int,
    columns: Sequence[str] = RECORD_COLUMNS,
) -> tuple[int, Buffer]:
    """The start and the bytes of one range with these columns of the row groups `first` to `last`.

    `last` is inclusive. The bytes are not checked yet. CorruptObject, StoreError.
    """
    wanted = index.byte_range(first, last, columns)
    stored = await store.get(index.key, wanted)
    if len(stored.data) != wanted.length or stored.size != index.size_bytes:
        raise CorruptObject(
            index.key,
            f"{len(stored.data)} bytes came of {wanted.length} from {wanted.start} on; it has"
            f" {stored.size} in all, {index.size_bytes} when its footer was read",
        )
    return wanted.start, stored.data
