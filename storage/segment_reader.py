"""Segments opened and read by ranges: one for the footer, one for consecutive row groups."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from tidelog.errors import CorruptObject
from tidelog.identifiers import TopicPartition
from tidelog.offload import Offload
from tidelog.records.row_arrays import integers_of
from tidelog.storage.object_store import ByteRange, ObjectStore, Suffix
from tidelog.storage.parquet_seal import tail_bytes
from tidelog.storage.segment import Segment
from tidelog.storage.segment_index import (
    RECORD_COLUMNS,
    TIME_COLUMNS,
    SegmentIndex,
    first_row_since,
)

TAIL_BYTES_GUESS = 64 * 1024
"""Read at first where the footer's length is not known; most footers fit."""
READ_BYTES_MAX = 64 * 1024 * 1024
"""Of one range; a single row group may be larger."""


class SegmentReader:
    """One segment, its footer in memory. Errors name the object's key.

    ObjectNotFound passes through: whoever reads asks the table again (rule F4). CorruptObject: the
    bytes are not the segment's; nothing of them is given out.
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
        """The segment that a table lists: one range read. Its footer must say the same of itself as
        the table does."""
        key = segment.key(topic_partition.topic_id)
        tail = await store.get(key, Suffix(segment.tail_bytes))
        if tail.size != segment.size_bytes:
            why = f"it has {tail.size} bytes, the table says {segment.size_bytes}"
            raise CorruptObject(key, why)
        if tail_bytes(key, tail.data) != segment.tail_bytes:
            raise CorruptObject(key, "its footer has another length than the table says")
        index = await offload.run(SegmentIndex, key, tail.size, tail.data)
        identity, name = index.identity, segment.name
        covered = (identity.base_offset, identity.last_offset)
        if (
            identity.topic_partition != topic_partition
            or name.partition != topic_partition.partition
            or covered != (name.base_offset, name.last_offset)
            or index.row_count != segment.row_count
        ):
            raise CorruptObject(key, "its footer contradicts the table")
        return cls(store, offload, index)

    @classmethod
    async def open_key(cls, store: ObjectStore, offload: Offload, key: str) -> SegmentReader:
        """Any segment, by its key alone: one range read, or two where the footer is long."""
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
        """The rows from an offset on, whole row groups in one range read, the first one cut.

        As many row groups as lie in bytes_max stored bytes, but at least one. Nothing where no row
        is at or above the offset. `columns` must begin with the offset.
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
        batches = await self._decode(first, last, columns)
        offsets = integers_of(batches[0].column("offset"))
        cut = int(np.searchsorted(offsets, offset, "left"))
        return [batches[0].slice(cut), *batches[1:]]

    async def first_since(self, timestamp_ms: int) -> tuple[int, int] | None:
        """Offset and timestamp (ms) of the first row of that time or a later one: one range read of
        two columns. None, without a read, where there is no such row."""
        group = self.index.group_since(timestamp_ms)
        if group is None:
            return None
        (rows,) = await self._decode(group, group, TIME_COLUMNS)
        found = first_row_since(rows, timestamp_ms)
        if found is None:
            raise CorruptObject(self.index.key, "its timestamps are not what its statistics say")
        return found

    async def _decode(self, first: int, last: int, columns: Sequence[str]) -> list[pa.RecordBatch]:
        wanted: ByteRange = self.index.byte_range(first, last, columns)
        stored = await self._store.get(self.index.key, wanted)
        if len(stored.data) != wanted.length or stored.size != self.index.size_bytes:
            raise CorruptObject(
                self.index.key,
                f"{len(stored.data)} bytes came of {wanted.length} from {wanted.start} on",
            )
        return await self._offload.run(
            self.index.decode, first, last, wanted.start, stored.data, columns
        )
