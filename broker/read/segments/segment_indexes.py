"""The footers of the last segments read, within a budget of memory; each is read once for all."""

from __future__ import annotations

import asyncio
from collections import OrderedDict

from tidelog.broker.read.flights import ReadGate
from tidelog.identifiers import TopicPartition
from tidelog.storage.object_store import ObjectStore
from tidelog.storage.segment.segment import Segment
from tidelog.storage.segment.segment_index import SegmentIndex
from tidelog.storage.segment.segment_reader import SegmentReader
from tidelog.workers.offload import Offload

MEMORY_A_BYTE = 10
"""The approximate memory of a decoded and indexed footer for each stored byte."""
OPENS_AT_ONCE_MAX = 16
OPEN_BYTES_AT_ONCE_MAX = 16 * 1024 * 1024


class SegmentIndexes:
    """Footers of segments. Must be closed. Wrong footers are not kept, but read again."""

    def __init__(self, store: ObjectStore, offload: Offload, bytes_max: int) -> None:
        self._store = store
        self._offload = offload
        self._bytes_max = bytes_max
        self._held: OrderedDict[str, SegmentReader] = OrderedDict()
        self._sizes: dict[str, int] = {}
        self._opening: dict[str, asyncio.Task[SegmentReader]] = {}
        self._gate = ReadGate(OPENS_AT_ONCE_MAX, OPEN_BYTES_AT_ONCE_MAX)
        self.size_bytes = 0
        self.opened = 0
        """Footers read."""

    async def close(self) -> None:
        """Cancel the reads under way."""
        tasks = list(self._opening.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def get(self, key: str) -> SegmentIndex | None:
        """A segment's index, if it is in memory."""
        reader = self._held.get(key)
        if reader is None:
            return None
        self._held.move_to_end(key)
        return reader.index

    async def open(self, partition: TopicPartition, segment: Segment) -> SegmentReader:
        """A reader of a segment; takes one range read if the footer is not in memory.

        Raises the errors of `SegmentReader.open`.
        """
        key = segment.key(partition.topic_id)
        reader = self._held.get(key)
        if reader is not None:
            self._held.move_to_end(key)
            return reader
        # Shielded: a reader that gives up must not end the others' wait; it is one small read.
        return await asyncio.shield(self.begin(partition, segment))

    def begin(self, partition: TopicPartition, segment: Segment) -> asyncio.Task[SegmentReader]:
        """Begin to read a footer that is not in memory, for a later reader."""
        key = segment.key(partition.topic_id)
        task = self._opening.get(key)
        if task is None:
            task = asyncio.create_task(self._open(partition, segment), name="footer read")
            self._opening[key] = task
            task.add_done_callback(lambda done: self._opened(key, segment, done))
        return task

    async def _open(self, partition: TopicPartition, segment: Segment) -> SegmentReader:
        await self._gate.enter(segment.tail_bytes)
        try:
            self.opened += 1
            return await SegmentReader.open(self._store, self._offload, partition, segment)
        finally:
            self._gate.leave(segment.tail_bytes)

    def _opened(self, key: str, segment: Segment, task: asyncio.Task[SegmentReader]) -> None:
        del self._opening[key]
        # Retrieve the error: no reader may be waiting.
        if task.cancelled() or task.exception() is not None:
            return
        size = segment.tail_bytes * MEMORY_A_BYTE
        if size > self._bytes_max:
            return
        self._held[key] = task.result()
        self._sizes[key] = size
        self.size_bytes += size
        while self.size_bytes > self._bytes_max:
            dropped, _ = self._held.popitem(last=False)
            self.size_bytes -= self._sizes.pop(dropped)
