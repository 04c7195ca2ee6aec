"""Rewrites segments: small ones merged into one, or without the records that compaction drops.

Rows are streamed. Memory holds the last read, the segment being written, and a bit per row of the
segment being read; for compaction also the keys. The table does not change here: a new segment is
garbage until the caller commits it.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from tidelog.entropy import Entropy
from tidelog.identifiers import TopicPartition
from tidelog.records.parse.row_arrays import boolean_array, integers_of, nulls_of
from tidelog.records.parse.varints import Booleans
from tidelog.records.row_columns import ROW_SCHEMA
from tidelog.storage.clean.compaction import Round, joined_ranges
from tidelog.storage.clean.key_offsets import KeyOffsets
from tidelog.storage.object_store import ObjectStore
from tidelog.storage.segment.segment import CleanedRange, Segment, SegmentName
from tidelog.storage.segment.segment_reader import SegmentReader
from tidelog.storage.segment.segment_writer import SegmentWriter
from tidelog.workers.offload import Offload

READ_BYTES = 8 * 1024 * 1024
"""Approximate bytes of rows that one read brings into memory."""
LOOKUP_BYTES = 32 * 1024 * 1024
"""Bytes of keys in one lookup. Each lookup costs a pass over all known keys."""
_ROW_BYTES = 64
"""Approximate memory of a row beside key, value and headers."""
_KEY_COLUMNS = ("offset", "key")
_ALL_COLUMNS = tuple(ROW_SCHEMA.names)

Pace = Callable[[int], Awaitable[None]]
"""Takes the number of bytes read or written, and waits if the rate is too high."""


class Replacement(NamedTuple):
    """Removed segments, and the stored one in their place; none if no row is left."""

    removed: tuple[SegmentName, ...]
    rewritten: tuple[Segment, ...]


class KeyMap(NamedTuple):
    """The latest offsets of the keys in [`first_dirty`, `end`)."""

    keys: KeyOffsets
    end: int


@dataclass(slots=True)
class _Group:
    """Segments that are rewritten as one."""

    segments: list[Segment]
    writer: SegmentWriter


class SegmentRewriter:
    """Rewrites one partition's segments.

    Raises ObjectNotFound if a segment was meanwhile removed from the table (F4), CorruptObject and
    other StoreErrors.
    """

    def __init__(
        self,
        store: ObjectStore,
        entropy: Entropy,
        offload: Offload,
        topic_partition: TopicPartition,
        pace: Pace,
    ) -> None:
        self._store = store
        self._entropy = entropy
        self._offload = offload
        self._topic_partition = topic_partition
        self._pace = pace

    async def merge(self, segments: Sequence[Segment], log_start: int) -> Replacement:
        """Store one segment with the rows of consecutive ones at or above the log start."""
        group = self._begin(segments[0])
        for segment in segments:
            group.segments.append(segment)
            async for rows in self._rows(segment, _ALL_COLUMNS):
                await self._offload.run(_write_from, group.writer, rows, log_start)
        return await self._finish(group, _joined(segments))

    async def map_keys(
        self, segments: Sequence[Segment], first_dirty: int, end: int, bytes_max: int
    ) -> KeyMap:
        """Map the keys of the dirty part, up to the memory limit `bytes_max`."""
        keys = KeyOffsets()
        for segment in segments:
            if segment.name.last_offset < first_dirty or segment.name.base_offset >= end:
                continue
            start = max(first_dirty, segment.name.base_offset)
            async for batches in self._rows(segment, _KEY_COLUMNS, start):
                following = await self._offload.run(_add_keys, keys, batches)
                if await self._offload.run(keys.fills, bytes_max):
                    return KeyMap(keys, min(end, following))
        return KeyMap(keys, end)

    async def compact(
        self, segments: Sequence[Segment], keys: KeyOffsets, round_: Round, target_bytes: int
    ) -> AsyncGenerator[Replacement, None]:
        """Store the round's new segments and yield each replacement.

        The caller commits a replacement before it takes the next one. Clean segments that lose no
        row stay as they are.
        """
        group: _Group | None = None
        for segment in segments:
            name = segment.name
            if name.last_offset < round_.log_start or name.base_offset >= round_.end:
                continue
            kept = await self._kept(segment, keys, round_)
            stays = segment.cleaned_to > name.last_offset and bool(kept.all())
            stays = stays and (not round_.expired_before(segment) or segment.tombstones == 0)
            is_full = group is not None and (
                group.writer.size_bytes + segment.size_bytes > target_bytes
            )
            if group is not None and (stays or is_full):
                yield await self._finish(group, round_.cleaned_after(group.segments))
                group = None
            if stays:
                continue
            group = group or self._begin(segment)
            group.segments.append(segment)
            await self._copy_kept(group.writer, segment, kept, round_)
        if group is not None:
            yield await self._finish(group, round_.cleaned_after(group.segments))

    async def _kept(self, segment: Segment, keys: KeyOffsets, round_: Round) -> Booleans:
        """A mask of the segment's rows that the round keeps. Tombstones count by their keys
        alone.
        """
        found: list[Booleans] = []
        waiting: list[pa.RecordBatch] = []
        waiting_bytes = 0
        async for batches in self._rows(segment, _KEY_COLUMNS):
            waiting += batches
            waiting_bytes += sum(batch.nbytes for batch in batches)
            if waiting_bytes >= LOOKUP_BYTES:
                found.append(await self._offload.run(latest_rows, waiting, keys, round_))
                waiting, waiting_bytes = [], 0
        if waiting:
            found.append(await self._offload.run(latest_rows, waiting, keys, round_))
        return np.concatenate(found)

    async def _copy_kept(
        self, writer: SegmentWriter, segment: Segment, kept: Booleans, round_: Round
    ) -> None:
        expired = round_.expired_before(segment)
        row = 0
        async for batches in self._rows(segment, _ALL_COLUMNS):
            for batch in batches:
                part = kept[row : row + batch.num_rows]
                row += batch.num_rows
                await self._offload.run(_write_kept, writer, batch, part, expired)

    async def _rows(
        self, segment: Segment, columns: Sequence[str], offset: int = 0
    ) -> AsyncIterator[list[pa.RecordBatch]]:
        """A segment's rows from `offset` on, some row groups at a time."""
        reader = await SegmentReader.open(
            self._store, self._offload, self._topic_partition, segment
        )
        in_memory = segment.raw_bytes + _ROW_BYTES * segment.row_count
        bytes_max = max(1, READ_BYTES * segment.size_bytes // in_memory)
        while batches := await reader.read(offset, bytes_max, columns):
            await self._pace(sum(batch.nbytes for batch in batches))
            yield batches
            offset = int(integers_of(batches[-1].column("offset"))[-1]) + 1

    def _begin(self, segment: Segment) -> _Group:
        writer = SegmentWriter(self._topic_partition, segment.name.base_offset)
        return _Group([], writer)

    async def _finish(self, group: _Group, cleaned: Iterable[CleanedRange]) -> Replacement:
        removed = tuple(segment.name for segment in group.segments)
        if not group.writer.row_count:
            return Replacement(removed, ())
        following = removed[-1].last_offset + 1
        written = await self._offload.run(group.writer.finish, following, self._entropy.uuid())
        segment = replace(
            written.segment, cleaned=joined_ranges(cleaned, written.segment.tombstones or 0)
        )
        # Before the put: the table refuses a segment whose put began too long ago.
        await self._pace(segment.size_bytes)
        await self._store.put(segment.key(self._topic_partition.topic_id), written.pieces)
        return Replacement(removed, (segment,))


def _joined(segments: Sequence[Segment]) -> list[CleanedRange]:
    """The cleaned ranges of consecutive segments, up to the first dirty segment."""
    found: list[CleanedRange] = []
    for segment in segments:
        found += segment.cleaned
        if segment.cleaned_to <= segment.name.last_offset:
            break
    return found


def _add_keys(keys: KeyOffsets, batches: Sequence[pa.RecordBatch]) -> int:
    """Add the keys of some rows; returns the offset after them."""
    following = 0
    for batch in batches:
        offsets = integers_of(batch.column("offset"))
        keys.add(batch.column("key"), offsets)
        following = int(offsets[-1]) + 1
    return following


def latest_rows(batches: Sequence[pa.RecordBatch], keys: KeyOffsets, round_: Round) -> Booleans:
    """A mask of the rows with the latest record of their key, or at or above the round's end."""
    table = pa.Table.from_batches(batches)
    column = table.column("key")
    offsets = np.concatenate([integers_of(batch.column("offset")) for batch in batches])
    has_key = np.concatenate([~nulls_of(batch.column("key")) for batch in batches])
    is_latest = has_key & (keys.latest(column) <= offsets)
    kept: Booleans = (is_latest | (offsets >= round_.end)) & (offsets >= round_.log_start)
    return kept


def _write_from(writer: SegmentWriter, batches: Sequence[pa.RecordBatch], offset: int) -> None:
    """Write the rows at or above an offset."""
    for batch in batches:
        first = int(np.searchsorted(integers_of(batch.column("offset")), offset, "left"))
        writer.write(batch.slice(first))


def _write_kept(
    writer: SegmentWriter,
    batch: pa.RecordBatch,
    kept: Booleans,
    expired: Sequence[tuple[int, int]],
) -> None:
    """Write the kept rows, without tombstones in the expired ranges."""
    if expired and batch.column("value").null_count:
        offsets = integers_of(batch.column("offset"))
        goes = np.zeros(len(offsets), np.bool_)
        for first, following in expired:
            goes |= (first <= offsets) & (offsets < following)
        kept = kept & ~(goes & nulls_of(batch.column("value")))
    writer.write(batch if kept.all() else batch.filter(boolean_array(kept)))
