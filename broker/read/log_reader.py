"""Reads extents of WAL objects: from the tail cache, else from what was read back, else the store.

A reader reads only listed extents, and extents are listed once they are durable. So a reader never
sees a record that is not durable. Bytes from the store are checked (offsets, lengths, checksums)
before any reader gets them. Bytes in the cache are the very bytes that were acknowledged.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeAlias

from tidelog.broker.read.object_reads import ObjectReads
from tidelog.errors import CorruptObject, MissingObject, TidelogError
from tidelog.storage.object_store import ObjectNotFound, ObjectStore, StoreError
from tidelog.wal.log.extents import Extent, Place
from tidelog.wal.read.read_cache import ReadCache, StoredRange
from tidelog.wal.read.tail_cache import TailCache
from tidelog.wal.read.verify import verify

Loaded: TypeAlias = Mapping[Place, memoryview | CorruptObject | StoreError]
"""The result for the extent at a place: its bytes, or the error of the read."""


class LogReader:
    """One broker's reads of extents. `held` never waits; `load` brings what it missed."""

    def __init__(
        self,
        store: ObjectStore,
        tail: TailCache,
        read_cache: ReadCache,
    ) -> None:
        self._tail = tail
        self._read_cache = read_cache
        self._reads = ObjectReads(store, read_cache)

    @property
    def reads(self) -> ObjectReads:
        """The reads from the store, for metrics."""
        return self._reads

    async def close(self) -> None:
        """Cancel the reads under way."""
        await self._reads.close()

    async def load(self, extents: Iterable[Extent]) -> Loaded:
        """Read extents from the store, in few ranges. They also enter the read cache.

        An extent that cannot be read or proved has its error in place of its bytes. If it is wrong
        in a range that others share, it is read once more by itself.
        """
        loaded: dict[Place, memoryview | CorruptObject | StoreError] = {}
        shared, alone = [], []
        for extent in {each.place: each for each in extents}.values():
            data = self.held(extent)
            if data is not None:
                loaded[extent.place] = data
            elif self._read_cache.covers(extent.key, extent.position, extent.length):
                alone.append(extent)
            else:
                shared.append(extent)
        outcomes = await self._reads.read(shared) if shared else {}
        for extent in shared:
            outcome = outcomes[extent.place]
            data_or_error = _proven(extent, outcome)
            if isinstance(data_or_error, CorruptObject) and isinstance(outcome, StoredRange):
                outcome.doubted.add(extent.position)
                alone.append(extent)
            else:
                loaded[extent.place] = data_or_error
        outcomes = await self._reads.read(alone, alone=True) if alone else {}
        for extent in alone:
            loaded[extent.place] = _proven(extent, outcomes[extent.place])
        return loaded

    def has(self, extent: Extent) -> bool:
        """True if an extent's bytes are in memory; asking counts as no use of them."""
        return extent.key in self._tail or self._read_cache.covers(
            extent.key, extent.position, extent.length
        )

    def whole(self, key: str) -> memoryview | None:
        """A whole object, if the tail cache has it."""
        return self._tail.whole(key)

    async def read_extent(self, extent: Extent) -> memoryview:
        """One extent's bytes, from memory or the store. Raises CorruptObject or StoreError."""
        outcome = (await self.load([extent]))[extent.place]
        if isinstance(outcome, TidelogError):
            raise outcome
        return outcome

    def held(self, extent: Extent) -> memoryview | None:
        """An extent's bytes, if they are in memory.

        Bytes that were read back are checked at their first use; wrong ones count as absent.
        """
        key, position, length = extent.key, extent.position, extent.length
        data = self._tail.get(key, position, length)
        if data is not None:
            return data
        found = self._read_cache.get(key, position, length)
        if found is None or position in found.doubted:
            return None
        if position in found.proven and extent.adoption is None:
            return found.view(position, length)
        self._reads.used(extent)
        proven = _proven(extent, found)
        if isinstance(proven, memoryview):
            return proven
        found.doubted.add(position)
        return None


def _proven(
    extent: Extent, outcome: StoredRange | StoreError
) -> memoryview | CorruptObject | StoreError:
    """The checked bytes of an extent."""
    if isinstance(outcome, ObjectNotFound):
        missing = MissingObject(extent.key, "it is missing")
        missing.__cause__ = outcome
        return missing
    if isinstance(outcome, StoreError):
        return outcome
    data = outcome.view(extent.position, extent.length)
    try:
        # Each read stamps an adopted batch: other partitions may have adopted the cached bytes too.
        verified = verify(extent, data)
    except CorruptObject as error:
        return error
    outcome.proven.add(extent.position)
    return memoryview(verified.data).toreadonly()
