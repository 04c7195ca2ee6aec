"""What a roll reads: the batches of some extents, and which transactions they belong to.

It takes what the tail cache has without disturbing it, and the rest from the WAL objects by ranges,
past the caches of consumers: what is rolled is read once.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence

from tidelog.errors import CorruptObject
from tidelog.offload import Offload
from tidelog.storage.object_store import (
    Buffer,
    ByteRange,
    ObjectNotFound,
    ObjectStore,
    Suffix,
)
from tidelog.wal.adoption import object_key
from tidelog.wal.extents import Extent
from tidelog.wal.object_format import TAIL_READ_BYTES, SlotIndex, decode_tail, tail_bytes
from tidelog.wal.reading import read_all
from tidelog.wal.segment_roll import Ordinals, StoredBatches
from tidelog.wal.tail_cache import TailCache

READS_AT_ONCE_MAX = 8
INDEXES_HELD_MAX = 64


class MissingWalObject(CorruptObject):
    """It is not there: lost, or not needed any more since the table has it (F4)."""


class RollSource:
    """One broker's reads for rolls."""

    def __init__(self, store: ObjectStore, tail: TailCache, offload: Offload) -> None:
        self._store = store
        self._tail = tail
        self._offload = offload
        self._at_once = asyncio.Semaphore(READS_AT_ONCE_MAX)
        self._indexes: OrderedDict[str, Ordinals] = OrderedDict()
        self.bytes_read = 0
        """From the store."""

    async def read(self, extents: Sequence[Extent], *, again: bool = False) -> list[StoredBatches]:
        """The extents' bytes, unproved. StoreError, MissingWalObject. `again`: from the store,
        whatever the cache has."""
        found: list[Buffer | None] = [
            None if again else self._tail.peek(extent.key, extent.position, extent.length)
            for extent in extents
        ]
        missing = [extent for extent, data in zip(extents, found, strict=True) if data is None]
        fetched = iter(await self._fetch(missing))
        return [
            StoredBatches(extent, next(fetched) if data is None else data)
            for extent, data in zip(extents, found, strict=True)
        ]

    async def ordinals(self, keys: Iterable[str]) -> Mapping[str, Ordinals]:
        """The transactions' ordinals by the indexes of these objects. StoreError, CorruptObject."""
        found = {}
        for key in sorted(keys):
            ordinals = self._indexes.get(key)
            if ordinals is None:
                ordinals = await self._read_index(key)
                self._indexes[key] = ordinals
                if len(self._indexes) > INDEXES_HELD_MAX:
                    self._indexes.popitem(last=False)
            found[key] = ordinals
        return found

    async def _fetch(self, extents: Sequence[Extent]) -> list[Buffer]:
        async def read(extent: Extent) -> Buffer:
            try:
                stored = await self._store.get(
                    object_key(extent.key), ByteRange(extent.position, extent.length)
                )
            except ObjectNotFound as error:
                raise MissingWalObject(object_key(extent.key), "the object is missing") from error
            self.bytes_read += len(stored.data)
            return stored.data

        return await read_all(read, extents, self._at_once)

    async def _read_index(self, key: str) -> Ordinals:
        whole = self._tail.whole(key)
        if whole is not None:
            return await self._offload.run(_decode, key, whole, len(whole))
        try:
            stored = await self._store.get(key, Suffix(TAIL_READ_BYTES))
            tail, size = stored.data, stored.size
            needed = tail_bytes(key, tail, size)
            if needed > len(tail):
                rest = ByteRange(size - needed, needed - len(tail))
                tail = b"".join(((await self._store.get(key, rest)).data, tail))
        except ObjectNotFound as error:
            raise MissingWalObject(key, "the object is missing") from error
        return await self._offload.run(_decode, key, tail, size)


def _decode(key: str, tail: Buffer, size: int) -> Ordinals:
    index = decode_tail(key, tail, size)
    if not isinstance(index, SlotIndex):
        raise CorruptObject(key, "it is a seal, not an object with records")
    return Ordinals.of(index)
