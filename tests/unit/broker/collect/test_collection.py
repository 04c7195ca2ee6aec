"""WAL objects go when nothing needs them, and never before; merges keep few of them needed.

What a table has is said by `roll` here: the records below an offset count as rolled.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from uuid import UUID

import pytest

from tests.unit.broker.collections import (
    by_folder,
    checkpoint,
    collections,
    forget_memory,
    hold_openings,
    objects,
    until_opened,
)
from tests.unit.broker.one_broker import TOPIC, OneBroker, World, batch, run
from tidelog.clock import SystemClock
from tidelog.coordinator.snapshot_format import SnapshotOrigin
from tidelog.errors import CorruptObject
from tidelog.identifiers import Slot, TopicPartition
from tidelog.records.records import decode_records
from tidelog.storage.object_store import ByteRange, StoredObject, Suffix
from tidelog.storage.stores.memory import MemoryStore
from tidelog.wal.format.merged_object import MergedObject
from tidelog.wal.format.object_format import wal_key, wal_prefix
from tidelog.wal.roll.merge_plan import MergePlan
from tidelog.wal.write.checkpoint import (
    CHECKPOINT_FORMAT_VERSION,
    CHECKPOINT_MAGIC,
    checkpoint_key,
    list_checkpoints,
    newest_checkpoint,
)


def world(**settings: object) -> World:
    return World(MemoryStore(SystemClock()), wal_linger_ms=0, **settings)


@pytest.fixture(autouse=True)
def _without_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidelog.broker.collect.merger.OBJECTS_A_SECOND_MIN", 1e9)


def roll(one: OneBroker, topic_id: UUID, partition: int, offset: int) -> None:
    """The table has everything below the offset."""
    hosted = one.broker.writes.partitions.find(TopicPartition(topic_id, partition))
    hosted.log.advance_table(offset)


async def values(one: OneBroker, partition: int = 0, *, start: int = 0) -> list[bytes | None]:
    """What a consumer reads from an offset on."""
    found: list[bytes | None] = []
    while True:
        answer = await one.fetch(start + len(found), partition)
        assert answer.error_code == 0, answer
        if not answer.records:
            return found
        found += [record.value for record in decode_records(b"".join(answer.records))]


def test_slots_go_that_are_rolled_and_below_the_newest_checkpoint() -> None:
    async def story() -> None:
        here = world()
        async with here.broker(politely=False) as one:
            topic_id = await one.create_topic(retention_ms="-1")
            for number in range(10):
                await one.produce(batch(b"%d" % number))
            collecting = collections(one, here.store)
            wal = wal_prefix(one.broker.membership.incarnation)
            roll(one, topic_id, 0, 6)
            await collecting.collect()
            assert len(await objects(here.store, wal)) == 10, "no checkpoint tells of it"
            await checkpoint(one)
            await one.produce(batch(b"10"))
            await collecting.collect()
            # The opening image shares the first slot; offsets 6 to 9 and the slot above the floor.
            left = [
                wal_key(one.broker.membership.incarnation, Slot(slot)) for slot in (6, 7, 8, 9, 10)
            ]
            assert await objects(here.store, wal) == left
            assert collecting.metrics.objects == {"wal": 6}
            assert collecting.metrics.bytes["wal"] > 6 * 64
            forget_memory(one)
            assert await values(one, start=6) == [b"%d" % number for number in range(6, 11)]
        async with here.broker() as one:
            assert await values(one, start=6) == [b"%d" % number for number in range(6, 11)]
            assert (await one.produce(batch(b"11"))).base_offset == 11

    run(story)


def test_an_idle_broker_s_slots_go_that_were_rolled_behind_its_newest_checkpoint() -> None:
    async def story() -> None:
        here = world()
        async with here.broker(politely=False) as one:
            topic_id = await one.create_topic(retention_ms="-1")
            for number in range(4):
                await one.produce(batch(b"%d" % number))
            await checkpoint(one)
            roll(one, topic_id, 0, 4)
            merger = one.broker.upkeep.merger
            merger._checkpointed_at -= merger._checkpoint_seconds
            await merger.maintain()
            await collections(one, here.store).collect()
            assert await objects(here.store, wal_prefix(one.broker.membership.incarnation)) == []

    run(story)


def test_what_is_marked_is_looked_at_again_when_the_grace_has_passed() -> None:
    async def story() -> None:
        here = world()
        async with here.broker(politely=False) as one:
            topic_id = await one.create_topic(retention_ms="-1")
            for number in range(4):
                await one.produce(batch(b"%d" % number))
            roll(one, topic_id, 0, 3)
            await checkpoint(one)
            patient = collections(one, here.store, grace_seconds=3600.0)
            for _ in range(3):
                await patient.collect()
            assert (await by_folder(here.store))["wal"] == 4
            assert patient.metrics.marked == {"wal": 3}
            patient.marks.slots._grace_seconds = 0.0
            await patient.pass_once()
            assert (await by_folder(here.store))["wal"] == 1
            await patient.pass_once()
            assert patient.metrics.marked == {"wal": 0}

    run(story)


def test_older_checkpoints_go_and_the_newest_stays() -> None:
    async def story() -> None:
        here = world()
        async with here.broker(politely=False) as one:
            await one.create_topic(retention_ms="-1")
            for number in range(3):
                await one.produce(batch(b"%d" % number))
                await checkpoint(one)
            me = one.broker.membership.incarnation
            assert len(await list_checkpoints(here.store, me)) == 3
            await collections(one, here.store).collect()
            assert await list_checkpoints(here.store, me) == [3]
        async with here.broker() as one:
            assert await values(one) == [b"0", b"1", b"2"]

    run(story)


def test_of_a_retired_wal_all_goes_but_its_seal_when_its_partitions_are_opened_anew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    opening = hold_openings(monkeypatch)

    async def story() -> None:
        here = world()
        async with here.broker(politely=False) as one:
            topic_id = await one.create_topic(retention_ms="-1", partitions=3)
            for number in range(3):
                await one.produce(batch(b"of the first"), number)
            first = one.broker.membership.incarnation
        async with here.broker(politely=False) as one:
            end = one.broker.membership.metadata.state.retired[first.epoch].end_slot
            await one.produce(batch(b"of the second"))
            await checkpoint(one)
            await one.broker.writes.openings.flush()
            collecting = collections(one, here.store)
            await collecting.collect()
            assert len(await objects(here.store, wal_prefix(first))) >= 4, "two are not opened"
            for number in range(3):
                roll(one, topic_id, number, 1)
            opening.set()
            await until_opened(one)
            # The images in the newest checkpoint may be from before the rolls.
            await one.produce(batch(b"of the second"))
            await checkpoint(one)
            await collecting.collect()
            assert await objects(here.store, wal_prefix(first)) == [wal_key(first, end)]
            assert await newest_checkpoint(here.store, first) is None
            assert await values(one, start=1) == [b"of the second"] * 2
        async with here.broker() as one:
            assert await values(one, start=1) == [b"of the second"] * 2
            assert (await one.offsets(-1, 2)).offset == 1

    run(story)


def test_records_of_a_retired_wal_stay_as_long_as_a_partition_has_them_nowhere_else() -> None:
    async def story() -> None:
        here = world()
        for life in range(4):
            async with here.broker(politely=life % 2 == 0) as one:
                if life == 0:
                    await one.create_topic(retention_ms="-1")
                await one.produce(batch(b"%d" % life))
                merger = one.broker.upkeep.merger
                await merger.maintain()
                await one.broker.writes.openings.flush()
                await collections(one, here.store).collect()
                forget_memory(one)
                assert await values(one) == [b"%d" % number for number in range(life + 1)]
        async with here.broker() as one:
            assert await values(one) == [b"0", b"1", b"2", b"3"]

    run(story)


@pytest.mark.parametrize("partitions", [100, pytest.param(1000, marks=pytest.mark.slow)])
def test_many_small_partitions_are_kept_in_few_objects(partitions: int) -> None:
    """Each partition carries a little over in every object; merges bound their number."""
    rounds = 40 if partitions == 100 else 14

    async def story() -> None:
        here = world(wal_objects_max=8)
        async with here.broker(politely=False) as one:
            await one.create_topic(retention_ms="-1", partitions=partitions)
            collecting = collections(one, here.store)
            merger = one.broker.upkeep.merger
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


class SleptClock(SystemClock):
    """Whoever sleeps is where he wanted to be at once."""

    def __init__(self) -> None:
        self.slept: list[float] = []

    def monotonic(self) -> float:
        return 1000 + sum(self.slept)

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        await asyncio.sleep(0)


@pytest.fixture
def _as_slow_as_they_may_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidelog.broker.collect.merger.OBJECTS_A_SECOND_MIN", 1e-9)


@asynccontextmanager
async def spreading(clock: SleptClock, seconds: float) -> AsyncIterator[OneBroker]:
    """A broker with a topic, whose merges may take so long by that clock."""
    async with world(wal_objects_max=2).broker(politely=False) as one:
        await one.create_topic(retention_ms="-1")
        merger = one.broker.upkeep.merger
        merger._clock, merger._spread_seconds = clock, seconds
        merger._checkpointed_at = clock.monotonic()
        yield one


@pytest.mark.usefixtures("_as_slow_as_they_may_be")
@pytest.mark.parametrize("interval_seconds", [0, 40])
def test_a_pass_is_spread_over_its_interval_behind_a_checkpoint(
    monkeypatch: pytest.MonkeyPatch, interval_seconds: int
) -> None:
    """30 s for 24 objects, half of which are old by the checkpoint with which the pass begins."""
    monkeypatch.setattr("tidelog.broker.collect.merger.INDEXES_AT_ONCE_MAX", 1)
    clock = SleptClock()

    async def story() -> None:
        async with spreading(clock, 3 / 4 * interval_seconds) as one:
            merger = one.broker.upkeep.merger
            for number in range(12):
                await one.produce(batch(b"%d" % number))
            await checkpoint(one)
            for number in range(12, 24):
                await one.produce(batch(b"%d" % number))
            await merger.maintain()
            log = one.broker.writes.partitions.named(TOPIC, 0).log
            assert sum(clock.slept) == pytest.approx(30 if interval_seconds else 0)
            assert len(set(log.extents.keys)) == 1
            forget_memory(one)
            assert await values(one) == [b"%d" % number for number in range(24)]

    run(story)


@pytest.mark.usefixtures("_as_slow_as_they_may_be")
def test_a_pass_ends_in_its_time_though_objects_become_old_all_the_while(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It goes faster instead, and leaves the rest to the next. Of 12 old objects 6 are merged, in
    half of the 30 s and in the 5 s in which others work; of some 18 in the 10 s that are left a
    third; and 6 more in the second that is left then."""
    monkeypatch.setattr("tidelog.broker.collect.merger.MERGE_SOURCES_MAX", 6)
    monkeypatch.setattr("tidelog.broker.collect.merger.INDEXES_AT_ONCE_MAX", 1)
    clock = SleptClock()

    async def story() -> None:
        async with spreading(clock, 30.0) as one:
            merger = one.broker.upkeep.merger
            store_merged = merger._store_merged

            async def twelve_become_old() -> None:
                for _ in range(12):
                    await one.produce(batch(b"x"))
                await checkpoint(one)

            async def meanwhile(plan: MergePlan, number: int) -> MergedObject | None:
                await clock.sleep(5.0)
                await twelve_become_old()
                return await store_merged(plan, number)

            monkeypatch.setattr(merger, "_store_merged", meanwhile)
            await twelve_become_old()
            await merger.maintain()
            assert merger.metrics.merges == 3
            assert 30 < sum(clock.slept) < 35

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
            assert await one.broker.upkeep.merger._merge()
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


async def checkpoint_if_any(one: OneBroker) -> None:
    await one.produce(batch(b"x"), 1)
    await checkpoint(one)


def test_a_merged_object_that_no_wal_names_goes() -> None:
    """The process died, or lost patience, between the object and its name."""

    async def story() -> None:
        here = world()
        async with here.broker(politely=False) as one:
            await one.create_topic(retention_ms="-1")
            await one.produce(batch(b"a"))
            merger = one.broker.upkeep.merger
            number = merger.merged.begin()
            key = f"merged/{one.broker.membership.incarnation}/{number:020d}.merged"
            await here.store.put(key, b"whatever")
            collecting = collections(one, here.store)
            await collecting.collect()
            assert (await by_folder(here.store))["merged"] == 1, "it may be named yet"
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
            assert await one.broker.upkeep.merger._merge()
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
    """D1: else it would refer to what the WAL does not say below its slot."""

    async def story() -> None:
        here = world(wal_objects_max=2)
        async with here.broker(politely=False) as one:
            await one.create_topic(retention_ms="-1")
            for number in range(8):
                await one.produce(batch(b"%d" % number))
            await checkpoint(one)
            merger = one.broker.upkeep.merger
            log = one.broker.writes.partitions.named(TOPIC, 0).log
            async with one.broker.writes.checkpointer.held_off():
                merging = asyncio.create_task(merger._merge())
                for _ in range(50):
                    await asyncio.sleep(0)
                assert (await by_folder(here.store))["merged"] == 1
                assert not any(key.startswith("merged/") for key in log.extents.keys)
            await merging
            assert any(key.startswith("merged/") for key in log.extents.keys)

    run(story)


def test_superseded_snapshots_of_a_state_go() -> None:
    async def story() -> None:
        here = world()
        async with here.broker(politely=False) as one:
            origin = SnapshotOrigin("cluster", "__consumer_offsets", UUID(int=1), 3)
            for offset in (10, 20, 30):
                await here.store.put(origin.key(offset), b"a state")
            await collections(one, here.store).collect()
            assert await objects(here.store, "state/") == [origin.key(30)]

    run(story)


def test_foreign_and_staged_objects_leases_and_the_metadata_log_stay() -> None:
    async def story() -> None:
        here = world()
        async with here.broker(politely=False) as one:
            kept = ["staged/abc", "wal/notes.txt", "checkpoint/0-1/latest", "handover/young"]
            for key in kept:
                await here.store.put(key, b"something")
            before = await objects(here.store, "cluster/")
            await collections(one, here.store, grace_seconds=0.0).collect()
            found = await objects(here.store)
            assert set(kept) <= set(found)
            assert await objects(here.store, "cluster/") == before

    run(story)


def test_a_damaged_checkpoint_keeps_all() -> None:
    async def story() -> None:
        here = world()
        async with here.broker(politely=False) as one:
            topic_id = await one.create_topic(retention_ms="-1")
            for number in range(4):
                await one.produce(batch(b"%d" % number))
            roll(one, topic_id, 0, 4)
            await checkpoint(one)
            key = checkpoint_key(one.broker.membership.incarnation, Slot(4))
            await here.store.put(key, bytes((await here.store.get(key)).data)[:-1])
            before = await objects(here.store)
            with pytest.raises(CorruptObject) as caught:
                await collections(one, here.store).collect()
            assert caught.value.key == key
            assert await objects(here.store) == before

    run(story)


def test_a_checkpoint_of_a_newer_version_keeps_all_and_the_broker_goes_on() -> None:
    async def story() -> None:
        here = world()
        async with here.broker(politely=False) as one:
            topic_id = await one.create_topic(retention_ms="-1")
            for number in range(4):
                await one.produce(batch(b"%d" % number))
            roll(one, topic_id, 0, 4)
            await checkpoint(one)
            key = checkpoint_key(one.broker.membership.incarnation, Slot(4))
            newer = bytearray((await here.store.get(key)).data)
            newer[len(CHECKPOINT_MAGIC)] = CHECKPOINT_FORMAT_VERSION + 1
            await here.store.put(key, newer)
            before = await objects(here.store)
            found = collections(one, here.store)
            found.objects._interval_seconds = 0.0
            collecting = asyncio.create_task(found.objects.run())
            for _ in range(1_000_000):
                if found.metrics.failures >= 2 or collecting.done():
                    break
                await asyncio.sleep(0)
            assert found.metrics.failures >= 2
            assert await objects(here.store) == before
            collecting.cancel()

    run(story)


def test_a_tenure_without_an_anchor_keeps_all() -> None:
    """No checkpoint has what the metadata log calls opened: its image may refer to anything."""

    async def story() -> None:
        here = world()
        async with here.broker(politely=False) as one:
            await one.create_topic(retention_ms="-1")
            await one.produce(batch(b"a"))
        async with here.broker(politely=False) as one:
            await until_opened(one)
            me = one.broker.membership.incarnation
            for slot in await list_checkpoints(here.store, me):
                await here.store.delete(checkpoint_key(me, slot))
            with pytest.raises(CorruptObject, match="no checkpoint has the tenure"):
                await collections(one, here.store).collect()

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
            await one.broker.upkeep.merger.maintain()
            merger = one.broker.upkeep.merger
            assert merger.metrics.failures == 1
            assert merger.metrics.merges >= 1
            assert key in one.broker.writes.partitions.named(TOPIC, 0).log.extents.keys
            await collections(one, here.store).collect()
            assert key in await objects(here.store)

    run(story)


class SlowGets(MemoryStore):
    """A store that lets something happen before it gives an object away for the first time."""

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
    """F4: it looks at the log again."""

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
            # The merge finds it in memory; else it would wait for the same read.
            one.broker.reads.path.tail.put(slot, data)
            assert await one.broker.upkeep.merger._merge()
            await checkpoint(one)
            await collections(one, here.store).collect()
            assert slot not in await objects(here.store)
            forget_memory(one)
            gate.set()
            assert await reading == [b"%d" % number for number in range(8)]

    run(story)
