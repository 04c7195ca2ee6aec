"""The table log: which process commits which version, when requests and processes fail."""

from __future__ import annotations

import asyncio

import pytest

from tests.unit.storage.segments import TOPIC_ID, advance, listed
from tests.unit.storage.table.table_log_world import Refusing, World, contents, grow, tell
from tidelog.errors import CorruptObject
from tidelog.storage.object_store import Buffer, ObjectNotFound, StoreError, StoreNotApplied
from tidelog.storage.sequence import AppendUndecided
from tidelog.storage.stores.faulty import FaultRates, StoreFault
from tidelog.storage.table.table_change import PartitionChange
from tidelog.storage.table.table_log import TableCommitted, TableLog
from tidelog.storage.table.table_state import CommitRefusal
from tidelog.workers.offload import InlineOffload


def test_a_table_begins_with_its_first_commit() -> None:
    async def story(world: World) -> None:
        log = await world.open()
        assert log.state.version == -1
        assert await world.keys() == []
        assert await log.commit((advance(0, 0, 10, listed(0, 0, 9)),)) == TableCommitted(0)
        assert await world.keys() == ["00000000000000000000.json"]
        assert contents((await world.open()).state) == contents(log.state)

    tell(story)


def test_the_second_broker_to_add_the_same_rows_is_refused_and_continues() -> None:
    """E1, E2: the late roll of a fenced broker."""

    async def story(world: World) -> None:
        old, new = await world.open(), await world.open()
        assert await new.commit((advance(0, 0, 30, listed(0, 0, 29, 1)),)) == TableCommitted(0)
        late = (advance(0, 0, 20, listed(0, 0, 19, 2)),)
        refusal = await old.commit(late)
        assert refusal == CommitRefusal(0, "the table ends at offset 30, not at 0")
        assert old.state.partition(0).next_offset == 30
        assert await old.commit((advance(0, 30, 40, listed(0, 30, 39, 3)),)) == TableCommitted(1)
        assert contents((await world.open()).state) == contents(old.state)

    tell(story)


def test_commits_to_other_partitions_do_not_refuse_each_other() -> None:
    async def story(world: World) -> None:
        logs = [await world.open() for _ in range(4)]
        async with asyncio.TaskGroup() as tasks:
            for partition, log in enumerate(logs):
                tasks.create_task(grow(log, 6, partition))
        state = (await world.open()).state
        assert state.version == 23
        assert [state.partition(p).next_offset for p in range(4)] == [60] * 4
        assert len(await world.keys()) == 24

    tell(story)


def test_a_change_that_fits_the_commits_of_others_is_not_refused() -> None:
    """A new owner knows the table's end from its image. Its view of the log may be older."""

    async def story(world: World) -> None:
        old, new = await world.open(), await world.open()
        await grow(new, 3)
        assert await old.commit((advance(0, 30, 40, listed(0, 30, 39)),)) == TableCommitted(3)

    tell(story)


def test_a_removal_is_refused_when_another_came_first() -> None:
    """E3: two processes compact the same segments."""

    async def story(world: World) -> None:
        log = await world.open()
        await grow(log, 2)
        other = await world.open()
        names = tuple(stored.segment.name for stored in log.state.partition(0).segments)
        merge = [
            PartitionChange(partition=0, removed=names, rewritten=(listed(0, 0, 19, n),))
            for n in (101, 102)
        ]
        assert await log.commit((merge[0],)) == TableCommitted(2)
        assert isinstance(await other.commit((merge[1],)), CommitRefusal)
        assert await other.refresh() == 2
        [stored] = other.state.partition(0).segments
        assert stored.segment == listed(0, 0, 19, 101)

    tell(story)


@pytest.mark.parametrize(
    "faults",
    [
        [StoreFault.REFUSED],
        [StoreFault.REQUEST_LOST],
        [StoreFault.ANSWER_LOST],
        [StoreFault.LATE],
        [StoreFault.SLOW],
        [StoreFault.LATE, StoreFault.REQUEST_LOST, StoreFault.ANSWER_LOST],
    ],
    ids=lambda faults: " ".join(fault.name for fault in faults),
)
def test_a_commit_whose_answer_is_lost_is_known_by_its_writer(faults: list[StoreFault]) -> None:
    async def story(world: World) -> None:
        store = world.faulty(FaultRates(late_seconds_max=5.0))
        log = await world.open(store)
        store.plan("put", *faults)
        await grow(log, 2)
        assert (await world.open()).state.partition(0).next_offset == 20
        assert len(await world.keys()) == 2
        await store.close()

    tell(story)


@pytest.mark.parametrize("lands", [True, False])
def test_after_an_undecided_commit_the_same_log_goes_on_rightly(lands: bool) -> None:
    async def story(world: World) -> None:
        store = Refusing(world.truth, world.clock, world.entropy, FaultRates())
        log = await world.open(store)
        await grow(log, 1)
        mine = (advance(0, 10, 20, listed(0, 10, 19, 7)),)
        store.plan("put", StoreFault.ANSWER_LOST if lands else StoreFault.REQUEST_LOST)
        store.mute = True
        with pytest.raises(AppendUndecided, match="may or may not"):
            await log.commit(mine)
        with pytest.raises(StoreError):
            await log.commit(mine)
        store.mute = False
        result = await log.commit(mine)
        if lands:
            assert result == CommitRefusal(0, "the table ends at offset 20, not at 10")
        else:
            assert result == TableCommitted(1)
        assert log.state.partition(0).next_offset == 20
        assert log.state.segment_count == 2
        await store.close()

    tell(story)


def test_a_commit_that_certainly_failed_may_be_repeated() -> None:
    async def story(world: World) -> None:
        store = world.faulty(FaultRates(refused=1.0))
        log = await world.open()
        log = TableLog(store, world.clock, world.entropy, InlineOffload(), TOPIC_ID, "flights")
        mine = (advance(0, 0, 10, listed(0, 0, 9)),)
        with pytest.raises(StoreNotApplied):
            await log.commit(mine)
        store.rates = FaultRates()
        assert await log.commit(mine) == TableCommitted(0)
        await store.close()

    tell(story)


def test_an_object_that_is_not_there_is_no_commit() -> None:
    async def story(world: World) -> None:
        log = await world.open()
        with pytest.raises(ObjectNotFound):
            await world.truth.get(log.key(0))
        data: Buffer = b"x"
        await world.truth.put(log.key(0), data)
        with pytest.raises(CorruptObject, match=log.key(0)):
            await log.refresh()

    tell(story)


def test_a_commit_without_changes_is_a_mistake() -> None:
    async def story(world: World) -> None:
        log = await world.open()
        with pytest.raises(ValueError, match="at least one"):
            await log.commit(())
        assert await world.keys() == []

    tell(story)


def test_a_fence_is_a_version_that_changes_nothing() -> None:
    async def story(world: World) -> None:
        log, other = await world.open(), await world.open()
        await grow(log, 2)
        before = contents(log.state)[2:]
        assert await other.fence() == 2
        assert await log.refresh() == 2
        assert contents(log.state)[2:] == before
        await grow(log, 1)
        assert contents((await world.open()).state) == contents(log.state)

    tell(story)
