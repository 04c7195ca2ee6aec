"""Merges keep the number of needed WAL objects small. Merged objects are deleted when no WAL and no
image names them."""

from __future__ import annotations

import asyncio

import pytest

from tests.unit.broker.collect.collected_wal import roll, values, world
from tests.unit.broker.collections import by_folder, checkpoint, collections, forget_memory, objects
from tests.unit.broker.one_broker import TOPIC, OneBroker, World, batch, run
from tidelog.broker.collect.merger import old_objects
from tidelog.clock import SystemClock
from tidelog.identifiers import BrokerId, Epoch, Incarnation, Slot
from tidelog.storage.object_store import Buffer, ByteRange, StoredObject, Suffix
from tidelog.storage.stores.memory import MemoryStore
from tidelog.wal.format.object_format import (
    FOOTER_END,
    FOOTER_END_BYTES,
    WAL_FORMAT_VERSION,
    footer_crc,
    merged_key,
    wal_key,
    wal_prefix,
)

pytestmark = pytest.mark.usefixtures("without_pauses")


@pytest.mark.parametrize("partitions", [100, pytest.param(1000, marks=pytest.mark.slow)])
def test_many_small_partitions_are_kept_in_few_objects(partitions: int) -> None:
    """Each partition carries a little over in every object; merges bound their number."""
    rounds = 40 if partitions == 100 else 14

    async def story() -> None:
        here = world(wal_objects_max=8)
        async with here.broker(politely=False) as one:
            await one.create_topic(retention_ms="-1", partitions=partitions)
            collecting = collections(one, here.store)
            merger = one.broker.maintenance.merger
            for number in range(rounds):
                for partition in range(number % 7, partitions, 7):
                    await one.produce(batch(b"%d" % number), partition)
                await checkpoint(one)
                await merger.maintain()
                await collecting.collect()
            folders = await by_folder(here.store)
            assert folders["wal"] + folders["merged"] <= 2 * 8 + 2, folders
            assert merger.metrics.merges > 3
            assert collecting.metrics.objects["wal"] > 300
            assert collecting.metrics.objects["merged"] > 0
            forget_memory(one)
            expected = {
                partition: [
                    b"%d" % number for number in range(rounds) if number % 7 == partition % 7
                ]
                for partition in range(partitions)
            }
            for partition in range(partitions):
                assert await values(one, partition) == expected[partition]
        async with here.broker() as one:
            for partition in range(partitions):
                assert await values(one, partition) == expected[partition]
                produced = await one.produce(batch(b"more"), partition)
                assert produced.base_offset == len(expected[partition])

    run(story)


@pytest.mark.parametrize("steps", ["merged", "merged, checkpointed", "merged, collected"])
def test_after_a_death_behind_a_merge_the_records_are_found(steps: str) -> None:
    async def story() -> None:
        here = world(wal_objects_max=2)
        async with here.broker(politely=False) as one:
            await one.create_topic(retention_ms="-1", partitions=2)
            for number in range(12):
                await one.produce(batch(b"%d" % number), number % 2)
            await checkpoint(one)
            await one.produce(batch(b"12"))
            assert await one.broker.maintenance.merger._merge(own=True)
            if steps == "merged, checkpointed":
                await checkpoint(one)
            if steps == "merged, collected":
                await collections(one, here.store).collect()
        async with here.broker(politely=False) as one:
            extents = one.broker.writes.partitions.named(TOPIC, 0).log.extents
            assert extents.keys[0].startswith("merged/")
            assert await values(one) == [b"%d" % n for n in range(0, 13, 2)]
            assert await values(one, 1) == [b"%d" % n for n in range(1, 12, 2)]
            await checkpoint_if_any(one)
            await collections(one, here.store).collect()
        async with here.broker() as one:
            assert await values(one) == [b"%d" % n for n in range(0, 13, 2)]

    run(story)


def test_a_short_pass_behind_a_start_merges_what_dead_ones_left_and_no_objects_of_its_own() -> None:
    async def story() -> None:
        here = world(wal_objects_max=2)
        for life in range(2):
            async with here.broker(politely=False) as one:
                if life == 0:
                    await one.create_topic(retention_ms="-1")
                for number in range(12):
                    await one.produce(batch(b"%d of %d" % (number, life)))
                await checkpoint(one)
                if life == 0:
                    continue
                folder = wal_prefix(one.broker.membership.incarnation)
                extents = one.broker.writes.partitions.named(TOPIC, 0).log.extents
                await one.broker.maintenance.merger.maintain(0.5)
                own = [key for key in extents.keys if key.startswith(folder)]
                assert len(set(own)) == 12
                assert len(set(extents.keys) - set(own)) <= 2
                await one.broker.maintenance.merger.maintain()
                assert len(set(extents.keys)) <= 2
                assert len(await values(one)) == 24

    run(story)


async def checkpoint_if_any(one: OneBroker) -> None:
    await one.produce(batch(b"x"), 1)
    await checkpoint(one)


def test_a_merged_object_that_no_wal_names_goes() -> None:
    """The process died between the put of the object and the entry that names it, or gave up."""

    async def story() -> None:
        here = world()
        async with here.broker(politely=False) as one:
            await one.create_topic(retention_ms="-1")
            await one.produce(batch(b"a"))
            merger = one.broker.maintenance.merger
            number = merger.merged.begin()
            key = f"merged/{one.broker.membership.incarnation}/{number:020d}.merged"
            await here.store.put(key, b"whatever")
            collecting = collections(one, here.store)
            await collecting.collect()
            assert (await by_folder(here.store))["merged"] == 1, "an entry may yet name the object"
            merger.merged.end(None)
            await collecting.collect()
            assert (await by_folder(here.store))["merged"] == 0

    run(story)


def test_a_merged_object_stays_that_is_named_above_the_floor() -> None:
    async def story() -> None:
        here = world(wal_objects_max=2)
        async with here.broker(politely=False) as one:
            topic_id = await one.create_topic(retention_ms="-1")
            for number in range(8):
                await one.produce(batch(b"%d" % number))
            await checkpoint(one)
            assert await one.broker.maintenance.merger._merge(own=True)
            collecting = collections(one, here.store)
            await collecting.collect()
            assert (await by_folder(here.store))["merged"] == 1
            roll(one, topic_id, 0, 8)
            await collecting.collect()
            assert (await by_folder(here.store))["merged"] == 1
            await checkpoint(one)
            await collecting.collect()
            assert (await by_folder(here.store))["merged"] == 0

    run(story)


def test_a_checkpoint_under_way_knows_nothing_of_a_merge_whose_entry_comes_later() -> None:
    """D1: otherwise the checkpoint would refer to a merge that the WAL does not have below the
    checkpoint's slot."""

    async def story() -> None:
        here = world(wal_objects_max=2)
        async with here.broker(politely=False) as one:
            await one.create_topic(retention_ms="-1")
            for number in range(8):
                await one.produce(batch(b"%d" % number))
            await checkpoint(one)
            merger = one.broker.maintenance.merger
            log = one.broker.writes.partitions.named(TOPIC, 0).log
            async with one.broker.writes.checkpointer.paused():
                merging = asyncio.create_task(merger._merge(own=True))
                for _ in range(50):
                    await asyncio.sleep(0)
                assert (await by_folder(here.store))["merged"] == 1
                assert not any(key.startswith("merged/") for key in log.extents.keys)
            await merging
            assert any(key.startswith("merged/") for key in log.extents.keys)

    run(story)


def test_a_damaged_object_is_left_out_of_merges() -> None:
    async def story() -> None:
        here = world(wal_objects_max=2)
        async with here.broker(politely=False) as one:
            await one.create_topic(retention_ms="-1")
            for number in range(8):
                await one.produce(batch(b"%d" % number))
            await checkpoint(one)
            key = wal_key(one.broker.membership.incarnation, Slot(3))
            data = bytearray((await here.store.get(key)).data)
            data[100] ^= 1
            await here.store.put(key, bytes(data))
            forget_memory(one)
            await one.broker.maintenance.merger.maintain()
            merger = one.broker.maintenance.merger
            assert merger.metrics.failures == 1
            assert merger.metrics.merges >= 1
            assert key in one.broker.writes.partitions.named(TOPIC, 0).log.extents.keys
            await collections(one, here.store).collect()
            assert key in await objects(here.store)

    run(story)


def test_an_object_of_a_newer_version_is_left_out_of_merges_and_the_broker_goes_on() -> None:
    """A partition may come from a broker of a newer version."""

    async def story() -> None:
        here = world(wal_objects_max=2)
        async with here.broker(politely=False) as one:
            await one.create_topic(retention_ms="-1")
            for number in range(8):
                await one.produce(batch(b"%d" % number))
            await checkpoint(one)
            key = wal_key(one.broker.membership.incarnation, Slot(3))
            await here.store.put(key, of_a_newer_version((await here.store.get(key)).data))
            forget_memory(one)
            merger = one.broker.maintenance.merger
            await merger.maintain()
            assert merger.metrics.failures == 1
            assert merger.metrics.merges >= 1
            assert key in one.broker.writes.partitions.named(TOPIC, 0).log.extents.keys

    run(story)


def of_a_newer_version(data: Buffer) -> bytes:
    """A WAL object whose footer names a version that no build knows."""
    made = bytearray(data)
    end = len(made) - FOOTER_END_BYTES
    *places, _, _, magic = FOOTER_END.unpack_from(made, end)
    newer = WAL_FORMAT_VERSION + 1
    FOOTER_END.pack_into(made, end, *places, 0, newer, magic)
    crc = footer_crc(memoryview(made), places[0], end, newer)
    FOOTER_END.pack_into(made, end, *places, crc, newer, magic)
    return bytes(made)


class SlowGets(MemoryStore):
    """A store that runs a change before it returns an object for the first time."""

    def __init__(self) -> None:
        super().__init__(SystemClock())
        self.before: dict[str, asyncio.Event] = {}
        self.asked = asyncio.Event()

    async def get(self, key: str, byte_range: ByteRange | Suffix | None = None) -> StoredObject:
        gate = self.before.pop(key, None)
        if gate is not None:
            self.asked.set()
            await gate.wait()
        return await super().get(key, byte_range)


def test_a_reader_whose_object_is_merged_and_deleted_meanwhile_goes_on() -> None:
    """F4: the reader looks at the log again."""

    async def story() -> None:
        store = SlowGets()
        here = World(store, wal_linger_ms=0, wal_objects_max=2)
        async with here.broker(politely=False) as one:
            await one.create_topic(retention_ms="-1")
            for number in range(8):
                await one.produce(batch(b"%d" % number))
            await checkpoint(one)
            slot = wal_key(one.broker.membership.incarnation, Slot(0))
            data = (await store.get(slot)).data
            forget_memory(one)
            gate = store.before[slot] = asyncio.Event()
            reading = asyncio.create_task(values(one))
            await store.asked.wait()
            # The merge finds the slot in memory; otherwise it would wait for the same read.
            one.broker.reads.path.tail.put(slot, data)
            assert await one.broker.maintenance.merger._merge(own=True)
            await checkpoint(one)
            await collections(one, here.store).collect()
            assert slot not in await objects(here.store)
            forget_memory(one)
            gate.set()
            assert await reading == [b"%d" % number for number in range(8)]

    run(story)


def test_only_objects_that_may_go_are_old() -> None:
    own, other = (Incarnation(BrokerId(0), Epoch(epoch)) for epoch in (1, 12))
    is_old = old_objects(own, Slot(100))
    assert all(is_old(wal_key(own, Slot(number))) for number in (9, 99))
    assert not any(is_old(wal_key(own, Slot(number))) for number in (100, 1000))
    assert is_old(wal_key(other, Slot(1000)))
    assert is_old(merged_key(own, 1000))
    assert is_old(merged_key(other, 0))
    assert not is_old("staged/00000000-0000-4000-8000-000000000000")
