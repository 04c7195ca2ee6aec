"""Snapshots, the objects that they make obsolete, and the limits of an old view (rule A2)."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from tests.simulation.world.clock import SimulatedClock
from tests.unit.coordinator.cluster.samples import WRITER, harbour
from tests.unit.coordinator.cluster.world import LOG, Broker, World, entry_key, simulate, within
from tidelog.clock import SystemClock
from tidelog.coordinator.cluster.log.log_view import LogAbandoned
from tidelog.coordinator.cluster.log.snapshots import Snapshots
from tidelog.coordinator.cluster.records.records import LeaseResumed, MetadataEntry, encode_entry
from tidelog.coordinator.cluster.state.state_snapshot import decode_snapshot
from tidelog.entropy import SeededEntropy
from tidelog.errors import CorruptObject
from tidelog.identifiers import Epoch
from tidelog.storage.object_store import IfAbsent
from tidelog.storage.stores.filesystem import FilesystemStore
from tidelog.workers.offload import InlineOffload

SNAPSHOTS = "cluster/snapshot/"
GRACE_SECONDS = 600


def snapshot_key(sequence: int) -> str:
    return f"{SNAPSHOTS}{sequence:020d}.json"


def numbers(keys: list[str]) -> list[int]:
    return [int(key.rpartition("/")[2].removesuffix(".json")) for key in keys]


async def grow(broker: Broker, upto: int) -> None:
    """Append entries up to this number, and let the background work end each time."""
    while broker.log.state.sequence < upto:
        if await broker.show_life() % 10 == 0:
            await asyncio.sleep(1)
    await asyncio.sleep(1)


def test_a_snapshot_is_written_at_each_interval_and_used() -> None:
    async def story(world: World) -> None:
        broker = await world.broker(1, world.process("a"), snapshot_interval_entries=10)
        await grow(broker, 25)
        assert numbers(world.keys(SNAPSHOTS)) == [10, 20]
        assert numbers(world.keys(LOG)) == list(range(26))
        key = snapshot_key(20)
        assert decode_snapshot(key, world.stored(key)).sequence == 20
        for number in range(1, 21):
            world.remove(entry_key(number))
        assert (await world.log(world.process("b"))).state == broker.log.state

    simulate(story)


def test_nothing_is_deleted_before_a_snapshot_has_stood_for_the_grace() -> None:
    async def story(world: World) -> None:
        broker = await world.broker(1, world.process("a"), snapshot_interval_entries=10)
        await grow(broker, 20)
        await asyncio.sleep(GRACE_SECONDS - 10)
        await grow(broker, 30)
        assert numbers(world.keys(SNAPSHOTS)) == [10, 20, 30]
        assert numbers(world.keys(LOG)) == list(range(31))
        await asyncio.sleep(20)
        await grow(broker, 40)
        assert numbers(world.keys(SNAPSHOTS)) == [20, 30, 40]
        # The bucket's identity stays.
        assert numbers(world.keys(LOG)) == [0, *range(20, 41)]
        assert (await world.log(world.process("b"))).state == broker.log.state

    simulate(story)


@pytest.mark.parametrize("offset_hours", [-48, 48])
def test_a_broker_with_a_wrong_clock_deletes_nothing_too_early(offset_hours: int) -> None:
    async def story(world: World) -> None:
        process = world.process("a", clock_offset_ms=offset_hours * 3_600_000)
        broker = await world.broker(1, process, snapshot_interval_entries=10)
        await grow(broker, 30)
        assert numbers(world.keys(LOG)) == list(range(31))
        await asyncio.sleep(GRACE_SECONDS)
        await grow(broker, 40)
        assert numbers(world.keys(LOG)) == [0, *range(30, 41)]

    simulate(story)


def test_a_clock_that_jumps_deletes_nothing_too_early() -> None:
    """The filesystem store takes an object's time from the wall clock."""

    async def story(world: World) -> None:
        broker = await world.broker(1, world.process("a"), snapshot_interval_entries=10)
        await grow(broker, 30)
        clock = world.store.memory._clock
        assert isinstance(clock, SimulatedClock)
        clock.jump(24 * 3_600_000)
        await grow(broker, 40)
        assert numbers(world.keys(LOG)) == list(range(41))
        await asyncio.sleep(GRACE_SECONDS)
        await grow(broker, 50)
        assert numbers(world.keys(LOG)) == [0, *range(40, 51)]

    simulate(story)


class SetClock(SystemClock):
    """A clock whose monotonic time a test sets."""

    now = 0.0

    def monotonic(self) -> float:
        return self.now


def make_old(folder: Path) -> None:
    for path in folder.rglob("*.json"):
        os.utime(path, (1, 1))


def test_the_age_of_old_files_counts_from_the_first_look(tmp_path: Path) -> None:
    """Files have such times when the machine's clock was set ahead by days."""

    async def story() -> None:
        clock = SetClock()
        store = FilesystemStore(tmp_path, clock, SeededEntropy(1))
        snapshots = Snapshots(store, clock, InlineOffload())
        for number in range(4):
            await store.put(entry_key(number), b"entry")
        await snapshots.write(harbour())
        make_old(tmp_path)
        grace_ms = GRACE_SECONDS * 1000
        assert await snapshots.collect(grace_ms) == 0
        clock.now = GRACE_SECONDS - 1.0
        assert await snapshots.collect(grace_ms) == 0
        # A new process has observed the objects for less than the grace.
        clock.now = GRACE_SECONDS + 1.0
        assert await Snapshots(store, clock, InlineOffload()).collect(grace_ms) == 0
        assert await snapshots.collect(grace_ms) == 2
        left = [meta.key async for meta in store.list("cluster/")]
        assert left == [entry_key(0), entry_key(3), snapshot_key(3)]

    asyncio.run(story())


def test_nothing_is_deleted_below_a_snapshot_that_cannot_be_read() -> None:
    async def story(world: World) -> None:
        broker = await world.broker(1, world.process("a"), snapshot_interval_entries=10)
        await grow(broker, 10)
        world.place(snapshot_key(10), b"rubbish")
        await asyncio.sleep(GRACE_SECONDS + 1)
        await grow(broker, 20)
        assert numbers(world.keys(LOG)) == list(range(21))

    simulate(story)


def test_a_corrupt_snapshot_is_named_and_no_older_one_taken_instead() -> None:
    async def story(world: World) -> None:
        broker = await world.broker(1, world.process("a"), snapshot_interval_entries=10)
        await grow(broker, 20)
        for data in (b"rubbish", world.stored(snapshot_key(10))):
            world.place(snapshot_key(20), data)
            with pytest.raises(CorruptObject) as caught:
                await world.log(world.process("b"))
            assert caught.value.key == snapshot_key(20)

    simulate(story)


def test_a_log_without_snapshots_gets_one_when_it_is_opened() -> None:
    async def story(world: World) -> None:
        broker = await world.broker(1, world.process("a"), snapshot_interval_entries=100)
        await grow(broker, 50)
        await world.log(world.process("b"), snapshot_interval_entries=26)
        await asyncio.sleep(1)
        assert world.keys(SNAPSHOTS) == []
        await world.log(world.process("c"), snapshot_interval_entries=25)
        await asyncio.sleep(1)
        assert numbers(world.keys(SNAPSHOTS)) == [50]

    simulate(story)


def test_an_object_that_lands_below_the_snapshot_is_ignored() -> None:
    async def story(world: World) -> None:
        broker = await world.broker(1, world.process("a"), snapshot_interval_entries=10)
        await grow(broker, 10)
        await asyncio.sleep(GRACE_SECONDS + 1)
        await grow(broker, 20)
        assert numbers(world.keys(LOG)) == [0, *range(10, 21)]
        late = encode_entry(MetadataEntry(5, WRITER, 0, Epoch(1), (LeaseResumed(Epoch(1)),)))
        world.place(entry_key(5), late)
        assert (await world.log(world.process("b"))).state == broker.log.state
        # The next deletion also deletes this object.
        await grow(broker, 30)
        await asyncio.sleep(GRACE_SECONDS + 1)
        await grow(broker, 40)
        assert numbers(world.keys(LOG)) == [0, *range(30, 41)]

    simulate(story)


def test_a_view_that_slept_through_a_deletion_is_abandoned_and_writes_nothing() -> None:
    """The broker's next number is free again, so the store alone would permit its write there."""

    async def story(world: World) -> None:
        sleeper = await world.broker(1, world.process("a"))
        awake = await world.broker(2, world.process("b"), snapshot_interval_entries=10)
        assert sleeper.log.state.sequence == 1
        sleeper.process.pause()
        await grow(awake, 15)
        await asyncio.sleep(GRACE_SECONDS + 1)
        await grow(awake, 20)
        assert numbers(world.keys(LOG)) == [0, *range(10, 21)]
        sleeper.process.resume()
        with pytest.raises(LogAbandoned, match=r"at entry 1: .* a snapshot at 20 replaced"):
            await sleeper.create("from the past")
        with pytest.raises(LogAbandoned):
            await sleeper.log.refresh()
        assert entry_key(2) not in world.keys(LOG)

    simulate(story)


def test_an_idle_log_goes_on_after_any_time_without_other_writers() -> None:
    async def story(world: World) -> None:
        broker = await world.broker(1, world.process("a"), snapshot_interval_entries=10)
        await grow(broker, 12)
        await asyncio.sleep(5 * GRACE_SECONDS)
        assert await broker.create("late") == 13

    simulate(story)


def test_an_idle_log_catches_up_where_nothing_was_deleted() -> None:
    async def story(world: World) -> None:
        idle = await world.broker(1, world.process("a"))
        other = await world.broker(2, world.process("b"))
        await grow(other, 9)
        await asyncio.sleep(5 * GRACE_SECONDS)
        assert (await idle.log.refresh()) == other.log.state

    simulate(story)


@pytest.mark.parametrize("seed", range(10))
def test_an_append_with_a_pause_of_the_process_is_not_believed(seed: int) -> None:
    """The process sends the put and stalls. Its view is too old by then, whatever the answer."""

    async def story(world: World) -> None:
        broker = await world.broker(1, world.process("a"))
        appending = asyncio.ensure_future(broker.create("x"))
        await asyncio.sleep(0.001)
        assert world.store.in_flight(broker.process) == 1
        broker.process.pause()
        await asyncio.sleep(GRACE_SECONDS / 2 + 1)
        broker.process.resume()
        with pytest.raises(LogAbandoned, match="may or may not be there"):
            await appending
        with pytest.raises(LogAbandoned):
            await broker.create("y")

    simulate(story, seed)


def test_an_answer_from_before_a_long_pause_is_not_believed() -> None:
    async def story(world: World) -> None:
        broker = await world.broker(1, world.process("a"))
        reading = within(broker.process, broker.log.refresh())
        await asyncio.sleep(0.001)
        assert world.store.in_flight(broker.process, "get") == 1
        broker.process.pause()
        await asyncio.sleep(GRACE_SECONDS / 2 + 1)
        broker.process.resume()
        with pytest.raises(LogAbandoned, match="an answer came 301 s after"):
            await reading

    simulate(story)


def test_a_late_put_into_a_deleted_number_misleads_no_reader() -> None:
    """Rule A2 as a whole: the writer has ended itself, and readers look only above the snapshot."""

    async def story(world: World) -> None:
        slow = await world.broker(1, world.process("a"))
        awake = await world.broker(2, world.process("b"), snapshot_interval_entries=10)
        await grow(awake, 10)
        await asyncio.sleep(GRACE_SECONDS + 1)
        await grow(awake, 20)
        before = await world.log(world.process("c"))
        late = encode_entry(MetadataEntry(2, WRITER, 0, slow.epoch, (LeaseResumed(slow.epoch),)))
        await world.store.of(slow.process).put(entry_key(2), late, IfAbsent())
        assert (await world.log(world.process("d"))).state == before.state
        assert await awake.log.refresh() == before.state
        with pytest.raises(LogAbandoned):
            await slow.log.refresh()

    simulate(story)


@pytest.mark.parametrize("seed", range(10))
def test_an_opener_succeeds_while_the_log_is_shortened(seed: int) -> None:
    async def story(world: World) -> None:
        broker = await world.broker(
            1,
            world.process("a"),
            snapshot_interval_entries=5,
            delete_grace_ms=400,
            append_timeout_ms=150,
        )
        opened = 0

        async def open_again_and_again() -> None:
            nonlocal opened
            for n in range(30):
                process = world.process(f"reader-{n}")
                try:
                    # The reader's own idea of the grace is as short.
                    log = await world.log(process, delete_grace_ms=400, append_timeout_ms=150)
                except LogAbandoned:
                    continue
                opened += 1
                # A reader may see an entry before its writer has the answer.
                assert log.state.sequence <= broker.log.state.sequence + 1

        reading = asyncio.create_task(open_again_and_again())
        while not reading.done():
            await broker.show_life()
        await reading
        assert opened > 0
        assert len(world.keys(LOG)) < broker.log.state.sequence - 20

    simulate(story, seed, slow_probability=0.0)
