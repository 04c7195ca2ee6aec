"""Cold partitions with given batches, and their offsets as a fetch shows them."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence

from tests.unit.broker.cold_log import TOPIC_ID, ColdLog
from tidelog.records.records import NewRecord, Record, encode_batch
from tidelog.storage.object_store import (
    ByteRange,
    ObjectStore,
    StoredObject,
    StoreNotApplied,
    Suffix,
)
from tidelog.storage.segment.segment import Segment

STAMP = 1_700_000_000_000


def run(story: Coroutine[None, None, None]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(30):
            await story

    asyncio.run(bounded())


def batch(base: int, count: int = 10, size: int = 20, **options: object) -> bytearray:
    """Records whose values and timestamps are their offsets."""
    records = [
        NewRecord((b"%d " % offset * size)[:size], b"k%d" % offset, (), STAMP + offset)
        for offset in range(base, base + count)
    ]
    return encode_batch(records, base_offset=base, **options)  # type: ignore[arg-type]


def log_of(count: int, *, batch_records: int = 10, size: int = 20) -> list[bytearray]:
    return [batch(base, batch_records, size) for base in range(0, count, batch_records)]


def offsets(records: Sequence[Record]) -> list[int]:
    return [record.offset for record in records]


class SlowStore:
    """A store around another one. Its ranges wait for `open`, are counted, and fail while
    `is_broken`."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self.open = asyncio.Event()
        self.open.set()
        self.is_broken = False
        self.gets = 0
        self.given_up = 0

    def __getattr__(self, name: str) -> object:
        return getattr(self._store, name)

    async def get(self, key: str, byte_range: ByteRange | Suffix | None = None) -> StoredObject:
        self.gets += 1
        try:
            await self.open.wait()
        except asyncio.CancelledError:
            self.given_up += 1
            raise
        if self.is_broken:
            raise StoreNotApplied(key, "the store is away")
        return await self._store.get(key, byte_range)


async def slow_log(count: int, size: int, **options: int) -> tuple[ColdLog, SlowStore]:
    """A log in one segment of a slow store, with its footer in memory."""
    cold = ColdLog(log_of(count, size=size), **options)  # type: ignore[arg-type]
    slow = SlowStore(cold.memory)
    cold.store._store = slow  # type: ignore[attr-defined]
    await cold.write()
    segment = await cold.roll(count)
    assert segment is not None
    await cold.indexes.open(cold.log.partition, segment)
    slow.gets = 0
    return cold, slow


async def merged(cold: ColdLog, segments: Sequence[Segment | None], next_offset: int) -> Segment:
    """One segment in the place of several, whose objects are then deleted."""
    old = [segment for segment in segments if segment is not None]
    base = old[0].name.base_offset
    chosen = [data for data in cold.batches if base <= int.from_bytes(data[:8], "big")]
    chosen = [data for data in chosen if int.from_bytes(data[:8], "big") < next_offset]
    new = await cold.put_segment(b"".join(chosen), base, next_offset)
    assert new is not None
    await cold.replace(old, new)
    for segment in old:
        await cold.memory.delete(segment.key(TOPIC_ID))
    return new


class ColdLogView:
    """Another process that changes the same table."""

    def __init__(self, cold: ColdLog) -> None:
        self.cold = ColdLog(cold.batches)
        self.cold.memory = cold.memory
        self.cold.store._store = cold.memory  # type: ignore[attr-defined]

    async def merge(self, segments: Sequence[Segment | None], next_offset: int) -> None:
        await self.cold.tables.open(TOPIC_ID)
        await merged(self.cold, segments, next_offset)
