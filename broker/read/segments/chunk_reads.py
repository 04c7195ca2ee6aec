"""Reads row groups of segments as batches: each once for all its readers, and ahead of them.

A flight (`flights`) brings one range of a segment with one or more row groups, which become chunks
one by one. The chunks stay in memory, encoded. They share that memory with reads of the WAL.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

from tidelog.broker.read.flights import AtOnce, Flight, Flights
from tidelog.broker.read.segments.chunk import Chunk, encode_group, group_range
from tidelog.broker.read.segments.segment_indexes import SegmentIndexes
from tidelog.identifiers import TopicPartition
from tidelog.records.compression import Compression
from tidelog.storage.object_store import ObjectStore
from tidelog.storage.segment.segment import Segment
from tidelog.storage.segment.segment_index import SegmentIndex
from tidelog.storage.segment.segment_reader import read_groups
from tidelog.wal.log.leader_epochs import EpochStart
from tidelog.wal.read.read_cache import ReadMemory
from tidelog.workers.offload import Offload

READS_AT_ONCE = AtOnce(16, 64 * 1024 * 1024)
AHEAD_AT_ONCE = AtOnce(4, 32 * 1024 * 1024)
"""Bytes are those of rows, as batches, while they are read and encoded."""
AHEAD_SHARE = 8
"""The part of the memory that is for reads ahead of one reader, as a divisor."""
RANGE_BYTES_MAX = 8 * 1024 * 1024
"""The bytes of one read of a segment, unless a row group alone is larger."""


class ChunkSource(NamedTuple):
    """The source of a reader: a partition's segments, and the form of their batches."""

    partition: TopicPartition
    epochs: Sequence[EpochStart]
    """The partition's leader epochs. Those of offsets in segments never change."""
    codec: Compression


class _ChunkKey(NamedTuple):
    segment_key: str
    group: int
    codec: Compression


class _GroupFlight(Flight):
    __slots__ = ("arrivals", "asked", "index")

    task: asyncio.Task[None]

    def __init__(self, index: SegmentIndex, groups: Sequence[int], *, is_ahead: bool) -> None:
        size_bytes = sum(index.plain_bytes_of(group) for group in groups)
        super().__init__(size_bytes, is_ahead=is_ahead)
        loop = asyncio.get_running_loop()
        self.index = index
        self.arrivals: dict[int, asyncio.Future[Chunk]] = {
            group: loop.create_future() for group in groups
        }
        self.asked: set[int] = set()
        """The row groups that readers wait for, or have."""

    async def arrival(self, group: int) -> Chunk:
        """Wait for one of its chunks."""
        self.join()
        self.asked.add(group)
        try:
            # Shielded: a reader that gives up must not end the others' wait.
            return await asyncio.shield(self.arrivals[group])
        finally:
            self.leave()


class ChunkReads(Flights):
    """One broker's reads of segments. Must be closed."""

    def __init__(
        self, store: ObjectStore, offload: Offload, memory: ReadMemory, indexes: SegmentIndexes
    ) -> None:
        super().__init__(READS_AT_ONCE, AHEAD_AT_ONCE, memory)
        self._store = store
        self._offload = offload
        self._indexes = indexes
        self._chunks: dict[_ChunkKey, Chunk] = {}
        self._flights: dict[_ChunkKey, _GroupFlight] = {}
        """Flights that may be joined."""
        self.encoded = 0
        """Chunks made."""
        self.encoded_bytes = 0
        self.hits = 0
        """Look-ups that found the chunk in memory."""

    async def close(self) -> None:
        """End the flights, and the reads of footers."""
        await super().close()
        await self._indexes.close()

    def held(self, source: ChunkSource, segment: Segment, offset: int) -> Chunk | None:
        """The chunk with an offset that the segment covers, if it is in memory."""
        segment_key = segment.key(source.partition.topic_id)
        index = self._indexes.get(segment_key)
        if index is None:
            return None
        chunk = self._chunks.get(_ChunkKey(segment_key, index.group_of(offset), source.codec))
        if chunk is not None:
            self._memory.use(chunk)
            self.hits += 1
        return chunk

    async def read(self, source: ChunkSource, segment: Segment, offset: int) -> Chunk:
        """The chunk with an offset that the segment covers.

        Takes one range read for the footer, unless it is in memory, and one for the row group.
        Raises CorruptObject and StoreError; ObjectNotFound may mean that the table has changed
        (F4).
        """
        index = (await self._indexes.open(source.partition, segment)).index
        key = _ChunkKey(index.key, index.group_of(offset), source.codec)
        chunk = self._chunks.get(key)
        if chunk is not None:
            self._memory.use(chunk)
            return chunk
        flight = self._flights.get(key)
        if flight is None or not flight.may_be_joined:
            flight = self._begin(source, index, (key.group,), is_ahead=False)
        else:
            self.joined += 1
        return await flight.arrival(key.group)

    def read_ahead(
        self, source: ChunkSource, segments: Iterable[Segment], offset: int, bytes_max: int
    ) -> None:
        """Begin to read about `bytes_max` of batches from an offset on, for a later reader.

        The first of the segments covers the offset. Nothing is read if half of the batches is in
        memory or on its way. Reads ahead take at most the memory that is for them. Errors show in
        `read`.
        """
        if self.is_closed:
            return
        bytes_max = min(bytes_max, self._memory.bytes_max // AHEAD_SHARE)
        room, here, missing = bytes_max, 0, []
        for index, group in self._following(source, segments, offset):
            if room <= 0:
                break
            size = index.plain_bytes_of(group)
            first, following = group_range(index, group)
            if first < offset:
                size = size * (following - offset) // (following - first)
            room -= size
            key = _ChunkKey(index.key, group, source.codec)
            if key not in self._chunks and key not in self._flights:
                missing.append((index, group))
            elif not missing:
                here += size
        if 2 * here >= bytes_max:
            return
        for index, groups in _ranges(missing):
            if not self.has_room_ahead(sum(index.plain_bytes_of(group) for group in groups)):
                return
            self._begin(source, index, groups, is_ahead=True)

    def _following(
        self, source: ChunkSource, segments: Iterable[Segment], offset: int
    ) -> Iterator[tuple[SegmentIndex, int]]:
        """The row groups from an offset on, up to a segment whose footer is not in memory.

        That footer is read ahead too, and its row groups the next time.
        """
        for segment in segments:
            index = self._indexes.get(segment.key(source.partition.topic_id))
            if index is None:
                self._indexes.begin(source.partition, segment)
                return
            for group in range(index.group_of(offset), index.groups):
                yield index, group

    def _begin(
        self, source: ChunkSource, index: SegmentIndex, groups: Sequence[int], *, is_ahead: bool
    ) -> _GroupFlight:
        flight = _GroupFlight(index, groups, is_ahead=is_ahead)
        keys = [_ChunkKey(index.key, group, source.codec) for group in groups]
        self._flights.update(dict.fromkeys(keys, flight))
        bring = partial(self._make_chunks, source, flight)
        self.begin(flight, bring, partial(self._landed, flight, keys), "segment read")
        return flight

    async def _make_chunks(self, source: ChunkSource, flight: _GroupFlight) -> None:
        """Read the range, and make chunks of its row groups, one at a time."""
        index, groups = flight.index, list(flight.arrivals)
        start, data = await read_groups(self._store, index, groups[0], groups[-1])
        for group in groups:
            batches = await self._offload.run(
                encode_group, index, group, start, data, source.epochs, source.codec
            )
            chunk = Chunk(batches, is_ahead=group not in flight.asked)
            self.encoded += 1
            self.encoded_bytes += len(chunk)
            self._keep(_ChunkKey(index.key, group, source.codec), chunk)
            flight.arrivals[group].set_result(chunk)

    def _keep(self, key: _ChunkKey, chunk: Chunk) -> None:
        if key not in self._chunks and self._memory.fits(len(chunk)):
            self._chunks[key] = chunk
            self._memory.add(chunk, partial(self._chunks.pop, key))

    def _landed(self, flight: _GroupFlight, keys: Sequence[_ChunkKey]) -> None:
        for key in keys:
            if self._flights.get(key) is flight:
                del self._flights[key]
        error = None if flight.task.cancelled() else flight.task.exception()
        for arrival in flight.arrivals.values():
            if error is None or arrival.done():
                arrival.cancel()
            else:
                arrival.set_exception(error)
                # Retrieve the error: no reader may be waiting.
                arrival.exception()


def _ranges(
    missing: Iterable[tuple[SegmentIndex, int]],
) -> Iterator[tuple[SegmentIndex, list[int]]]:
    """Consecutive row groups, joined up to the bytes of one read."""
    run: list[int] = []
    of: SegmentIndex | None = None
    for index, group in missing:
        if (
            of is index
            and group == run[-1] + 1
            and index.byte_range(run[0], group).length <= RANGE_BYTES_MAX
        ):
            run.append(group)
            continue
        if of is not None:
            yield of, run
        of, run = index, [group]
    if of is not None:
        yield of, run
