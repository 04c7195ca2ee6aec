"""Versions that a checkpoint replaces are deleted after a grace. No process commits into a deleted
version again."""

from __future__ import annotations

import asyncio

import pytest

from tests.simulation.world.clock import SimulatedClock
from tests.unit.storage.segments import TOPIC_ID, advance, listed
from tests.unit.storage.table.table_log_world import World, contents, grow, tell
from tidelog.storage.object_store import ByteRange, StoredObject, StoreNotApplied, Suffix
from tidelog.storage.sequence import AppendUndecided
from tidelog.storage.stores.faulty import FaultRates, FaultyStore
from tidelog.storage.table.table_log import log_prefix
from tidelog.storage.table.table_state import CommitRefusal


def test_only_files_replaced_by_a_checkpoint_older_than_the_grace_are_deleted() -> None:
    async def story(world: World) -> None:
        log = await world.open()
        assert await log.clean_up() == 0
        await grow(log, 3)
        await log.write_checkpoint()
        await asyncio.sleep(500)
        await grow(log, 3)
        await log.write_checkpoint()
        assert await log.clean_up() == 0
        await asyncio.sleep(200)
        assert await log.clean_up() == 2
        assert (await world.keys())[0] == "00000000000000000002.checkpoint.parquet"
        assert contents((await world.open()).state) == contents(log.state)
        await asyncio.sleep(1000)
        assert await log.clean_up() == 4
        assert await world.keys() == [
            "00000000000000000005.checkpoint.parquet",
            "00000000000000000005.json",
            "_last_checkpoint",
        ]
        assert contents((await world.open()).state) == contents(log.state)

    tell(story)


def test_a_foreign_object_in_the_log_stays_and_prevents_no_clean_up() -> None:
    """A copy of a checkpoint that an operator made ended the broker."""

    async def story(world: World) -> None:
        log = await world.open()
        foreign = [f"{log_prefix(TOPIC_ID)}{name}.checkpoint.parquet" for name in ("1", "1 (copy)")]
        for key in foreign:
            await world.truth.put(key, b"foreign")
        await grow(log, 3)
        await log.write_checkpoint()
        assert await log.clean_up() == 0
        await asyncio.sleep(1000)
        assert await log.clean_up() == 2
        assert {key.rpartition("/")[2] for key in foreign} < {*await world.keys()}

    tell(story)


def test_a_process_that_starts_again_waits_for_the_grace_once_more() -> None:
    async def story(world: World) -> None:
        log = await world.open()
        await grow(log, 3)
        await log.write_checkpoint()
        await asyncio.sleep(700)
        successor = await world.open()
        assert await successor.clean_up() == 0
        await asyncio.sleep(700)
        assert await successor.clean_up() == 2
        assert contents((await world.open()).state) == contents(log.state)

    tell(story)


def test_a_clock_that_jumps_deletes_nothing_too_early() -> None:
    """The filesystem store takes an object's time from the wall clock."""

    async def story(world: World) -> None:
        log = await world.open()
        await grow(log, 3)
        await log.write_checkpoint()
        world.clock.jump(24 * 3600 * 1000)
        await grow(log, 3)
        await log.write_checkpoint()
        assert await log.clean_up() == 0

    tell(story)


def test_a_process_whose_clock_is_ahead_deletes_nothing_too_early() -> None:
    async def story(world: World) -> None:
        world.clock = SimulatedClock(world.loop, offset_ms=24 * 3600 * 1000)
        log = await world.open()
        await grow(log, 3)
        await log.write_checkpoint()
        assert await log.clean_up() == 0
        await asyncio.sleep(700)
        assert await log.clean_up() == 2

    tell(story)


def test_a_stalled_writer_does_not_commit_into_a_deleted_number() -> None:
    """A2: the number after the process's last one was used and cleaned up, and is free again."""

    async def story(world: World) -> None:
        away, other = await world.open(), await world.open()
        await grow(away, 2)
        await other.refresh()
        await grow(other, 5)
        await other.write_checkpoint()
        await asyncio.sleep(5000)
        assert await other.clean_up() == 6
        late = (advance(0, 20, 30, listed(0, 20, 29, 1000)),)
        assert await away.commit(late) == CommitRefusal(0, "the table ends at offset 70, not at 20")
        await grow(away, 1)
        assert away.state.version == 7
        assert contents((await world.open()).state) == contents(away.state)

    tell(story)


class Stalling(FaultyStore):
    """A process stalls for an hour in its put, and runs no code meanwhile."""

    stalls = False

    async def put(self, key: str, data: object, condition: object = None) -> str:
        if self.stalls and key.endswith(".json"):
            self.stalls = False
            await self.meanwhile()
        return await super().put(key, data, condition)  # type: ignore[arg-type]

    async def meanwhile(self) -> None:
        raise NotImplementedError


def test_a_writer_that_lost_a_race_reads_again_before_it_commits() -> None:
    """The cleaner may delete the entries above the lost number, since they were put before the
    writer's next look."""

    class Cut(FaultyStore):
        is_cut = False

        def __init__(self, world: World) -> None:
            super().__init__(world.truth, world.clock, world.entropy, FaultRates())
            self.asked: list[str] = []

        async def get(self, key: str, byte_range: ByteRange | Suffix | None = None) -> StoredObject:
            self.asked.append(key.rpartition("/")[2])
            if self.is_cut and key.endswith("1.json"):
                raise StoreNotApplied(key, "not now")
            return await super().get(key, byte_range)

        async def put(self, key: str, data: object, condition: object = None) -> str:
            self.asked.append(key.rpartition("/")[2])
            return await super().put(key, data, condition)  # type: ignore[arg-type]

    async def story(world: World) -> None:
        other = await world.open()
        store = Cut(world)
        away = await world.open(store)
        await grow(other, 3)
        store.is_cut = True
        with pytest.raises(StoreNotApplied):
            await away.commit((advance(1, 0, 10, listed(1, 0, 9, 1000)),))
        assert away.state.version == 0
        store.is_cut = False
        store.asked.clear()
        await grow(away, 1, partition=1)
        assert store.asked[0] == "_last_checkpoint"
        assert away.state.version == 3
        await store.close()

    tell(story)


def test_an_answer_that_comes_after_the_grace_is_not_believed() -> None:
    async def story(world: World) -> None:
        other = await world.open()
        await grow(other, 2)

        class Stalled(Stalling):
            async def meanwhile(self) -> None:
                await other.refresh()
                await grow(other, 5)
                await other.write_checkpoint()
                # A stalled process does not notice this pause through any timeout.
                world.loop._now += 5000
                assert await other.clean_up() == 6

        store = Stalled(world.truth, world.clock, world.entropy, FaultRates())
        log = await world.open(store)
        store.stalls = True
        late = (advance(0, 20, 30, listed(0, 20, 29, 1000)),)
        with pytest.raises(AppendUndecided):
            await log.commit(late)
        assert await log.commit(late) == CommitRefusal(0, "the table ends at offset 70, not at 20")
        found = await world.open()
        assert found.state.partition(0).next_offset == 70
        assert found.state.segment_count == 7
        await store.close()

    tell(story)


def test_a_log_cleaned_up_during_a_read_is_read_again() -> None:
    async def story(world: World) -> None:
        log = await world.open()
        await grow(log, 3)
        await log.write_checkpoint()

        class Late(FaultyStore):
            """Cleans up between the read of the hint and the read of the object that it names."""

            async def get(
                self, key: str, byte_range: ByteRange | Suffix | None = None
            ) -> StoredObject:
                stored = await super().get(key, byte_range)
                if key.endswith("_last_checkpoint") and log.state.version < 5:
                    await grow(log, 3)
                    await log.write_checkpoint()
                    await asyncio.sleep(1000)
                    assert await log.clean_up() == 6
                return stored

        store = Late(world.truth, world.clock, world.entropy, FaultRates())
        assert contents((await world.open(store)).state) == contents(log.state)
        await store.close()

    tell(story)
