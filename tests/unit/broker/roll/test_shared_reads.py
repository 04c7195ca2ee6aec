"""Small partitions are rolled together: one range of each WAL object is read for all of them."""

from __future__ import annotations

import asyncio
from uuid import UUID

import pytest

from tests.unit.broker.one_broker import OneBroker, batch, run
from tests.unit.broker.rolled import flush, flush_all, hosted, offsets, rows, spoil, world
from tidelog.clock import SystemClock
from tidelog.storage.object_store import ByteRange, StoredObject, StoreNotApplied, Suffix
from tidelog.storage.stores.memory import MemoryStore


class WatchedStore(MemoryStore):
    """Records the reads of the WAL. The next `refused` of them fail."""

    def __init__(self) -> None:
        super().__init__(SystemClock())
        self.wal_gets: list[str] = []
        self.refused = 0

    async def get(self, key: str, byte_range: ByteRange | Suffix | None = None) -> StoredObject:
        if key.startswith("wal/"):
            self.wal_gets.append(key)
            if self.refused:
                self.refused -= 1
                raise StoreNotApplied(key, "not now")
        return await super().get(key, byte_range)


async def in_the_same_objects(one: OneBroker, partitions: int, rounds: int) -> tuple[UUID, int]:
    """A topic with a record of each partition in each of several objects, and the number of
    objects."""
    topic_id = await one.create_topic(partitions=partitions)
    for number in range(rounds):
        value = b"%d" % number
        await asyncio.gather(*(one.produce(batch(value), each) for each in range(partitions)))
    objects = {
        extent.key for number in range(partitions) for extent in hosted(one, number).log.extents
    }
    assert len(objects) < partitions
    return topic_id, len(objects)


def test_small_partitions_are_read_together_one_range_an_object() -> None:
    store = WatchedStore()
    here = world(store, tail_cache_bytes=0)

    async def story() -> None:
        async with here.broker() as one:
            topic_id, objects = await in_the_same_objects(one, 20, 5)
            store.wal_gets.clear()
            await flush_all(one, 20)
            assert len(store.wal_gets) == objects
            for number in range(20):
                found = await rows(store, topic_id, number)
                assert [row["value"] for row in found] == [b"%d" % n for n in range(5)]
            # The broker no longer holds any of the bytes.
            source = one.broker.topic_tables.roller._builder._source
            assert source._gathered.memory.size_bytes == 0

    run(story)


def test_a_failed_shared_read_is_repeated_by_each_roll() -> None:
    store = WatchedStore()
    here = world(store, tail_cache_bytes=0)

    async def story() -> None:
        async with here.broker() as one:
            topic_id, objects = await in_the_same_objects(one, 20, 5)
            store.refused = objects
            await flush_all(one, 20)
            assert one.broker.topic_tables.roller.metrics.failures == 0
            for number in range(20):
                assert await offsets(store, topic_id, number) == list(range(5))

    run(story)


@pytest.mark.parametrize("damage", ["spoilt", "missing"])
def test_a_corrupt_object_stops_only_rolls_of_partitions_with_records_in_the_object(
    damage: str,
) -> None:
    store = WatchedStore()
    here = world(store, tail_cache_bytes=0)

    async def story() -> None:
        async with here.broker() as one:
            topic_id, _ = await in_the_same_objects(one, 20, 2)
            await one.produce(batch(b"last"), 7)
            *_, extent = hosted(one, 7).log.extents
            if damage == "missing":
                await store.delete(extent.key)
            else:
                await spoil(store, extent.key, extent.position + extent.length - 1)
            done = await asyncio.gather(
                *(flush(one, number) for number in range(20)), return_exceptions=True
            )
            assert [number for number, error in enumerate(done) if error is not None] == [7]
            assert extent.key in str(done[7])
            for number in set(range(20)) - {7}:
                assert await offsets(store, topic_id, number) == [0, 1]

    run(story)
