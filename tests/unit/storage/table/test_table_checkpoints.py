"""Checkpoints of a table: when they are due, their contents, and two processes that write one."""

from __future__ import annotations

import asyncio

import pytest

from tests.unit.storage.segments import TOPIC_ID, advance, listed
from tests.unit.storage.table.table_log_world import World, contents, grow, tell
from tidelog.storage.stores.faulty import FaultRates
from tidelog.storage.table.table_change import PartitionChange
from tidelog.storage.table.table_log import CHECKPOINT_COMMITS, TableLog


def test_a_checkpoint_holds_all_that_the_log_says() -> None:
    async def story(world: World) -> None:
        log = await world.open()
        await grow(log, 5)
        await grow(log, 3, partition=2)
        await log.commit((advance(4, 0, 77),))
        names = tuple(stored.segment.name for stored in log.state.partition(0).segments[:2])
        merge = PartitionChange(partition=0, removed=names, rewritten=(listed(0, 0, 19, 99),))
        await log.commit((merge,))
        plainly = await world.open()
        assert await log.write_checkpoint() == 9
        assert not log.checkpoint_due
        before = world.gets()
        found = await world.open()
        assert world.gets() - before == 3, "hint, checkpoint, and no commit behind it"
        assert contents(found.state) == contents(plainly.state) == contents(log.state)
        await grow(found, 1)
        assert await log.refresh() == 10

    tell(story)


def test_a_checkpoint_is_due_after_some_commits() -> None:
    async def story(world: World) -> None:
        log = await world.open()
        await grow(log, CHECKPOINT_COMMITS - 1)
        assert not log.checkpoint_due
        await grow(log, 1)
        assert log.checkpoint_due
        assert (await world.open()).checkpoint_due
        await log.write_checkpoint()
        await grow(log, CHECKPOINT_COMMITS - 1)
        assert not log.checkpoint_due
        assert not (await world.open()).checkpoint_due

    tell(story)


def test_an_older_checkpoint_does_not_become_the_newest() -> None:
    async def story(world: World) -> None:
        slow, fast = await world.open(), await world.open()
        await grow(slow, 2)
        await grow_after(fast, 3)
        await fast.write_checkpoint()
        assert await slow.write_checkpoint() == 1
        hint = await world.truth.get(f"topics/{TOPIC_ID}/_delta_log/_last_checkpoint")
        assert bytes(hint.data).startswith(b'{"version": 4')
        assert (await world.open()).state.version == 4

    async def grow_after(log: TableLog, count: int) -> None:
        await log.refresh()
        await grow(log, count)

    tell(story)


def test_two_that_write_the_same_checkpoint_do_no_harm() -> None:
    async def story(world: World) -> None:
        first = await world.open()
        await grow(first, 2)
        second = await world.open()
        async with asyncio.TaskGroup() as tasks:
            for log in (first, second):
                tasks.create_task(log.write_checkpoint())
        assert contents((await world.open()).state) == contents(first.state)

    tell(story)


def test_commits_go_on_while_a_checkpoint_is_written() -> None:
    async def story(world: World) -> None:
        store = world.faulty(FaultRates(slow=1.0))
        log = await world.open(store)
        await grow(log, 2)
        async with asyncio.TaskGroup() as tasks:
            checkpoint = tasks.create_task(log.write_checkpoint())
            tasks.create_task(grow(log, 3))
        assert checkpoint.result() == 1
        assert contents((await world.open()).state) == contents(log.state)
        await store.close()

    tell(story)


def test_a_table_without_a_commit_has_no_checkpoint() -> None:
    async def story(world: World) -> None:
        with pytest.raises(ValueError, match="without a commit"):
            await (await world.open()).write_checkpoint()

    tell(story)


def bytes_of(world: World) -> tuple[int, int, int, int]:
    statistics = world.truth.statistics
    return (
        statistics.get.requests,
        statistics.put.requests,
        statistics.get.bytes_total,
        statistics.put.bytes_total,
    )


def test_with_10_000_segments_nothing_costs_more_than_a_checkpoint() -> None:
    async def story(world: World) -> None:
        log = await world.open()
        await grow(log, 3)
        small = bytes_of(world)
        await grow(log, 1)
        one_commit = [after - before for before, after in zip(small, bytes_of(world), strict=True)]
        # Each commit adds a thousand: the test does not measure how the segments came about.
        for _ in range(10):
            base = log.state.partition(0).next_offset
            segments = [listed(0, base + 10 * i, base + 10 * i + 9, base + i) for i in range(1000)]
            await log.commit((advance(0, base, base + 10_000, *segments),))
        await log.write_checkpoint()
        assert log.state.segment_count > 10_000
        size = (await world.truth.head(log.checkpoint_key(log.state.version))).size
        assert size < 1_000_000

        before = bytes_of(world)
        await grow(log, 1)
        found = [after - before for before, after in zip(before, bytes_of(world), strict=True)]
        assert found[:3] == one_commit[:3] == [0, 1, 0]
        assert found[3] < one_commit[3] + 100

        before = bytes_of(world)
        other = await world.open()
        gets, puts, read, _ = (
            after - before for before, after in zip(before, bytes_of(world), strict=True)
        )
        assert (gets, puts) == (7, 0), "hint, checkpoint, one commit, four that are not there"
        assert read < size + 3000
        before = bytes_of(world)
        assert other.state.partition(0).at(55_555) is not None
        assert bytes_of(world) == before
        before = bytes_of(world)
        await other.refresh()
        assert bytes_of(world)[2] - before[2] < 300

    tell(story)
