"""The table log: who commits what, whatever becomes of requests, of others, and of time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from tests.simulation.clock import SimulatedClock
from tests.simulation.loop import SimulatedLoop
from tests.unit.storage.segments import TOPIC_ID, advance, listed
from tidelog.entropy import SeededEntropy
from tidelog.errors import CorruptObject
from tidelog.offload import InlineOffload
from tidelog.storage.object_store import (
    Buffer,
    ByteRange,
    ObjectNotFound,
    StoredObject,
    StoreError,
    StoreNotApplied,
    Suffix,
)
from tidelog.storage.sequence import AppendUndecided
from tidelog.storage.stores.faulty import FaultRates, FaultyStore, StoreFault
from tidelog.storage.stores.memory import MemoryStore
from tidelog.storage.stores.metered import MeteredStore
from tidelog.storage.table.table_change import PartitionChange
from tidelog.storage.table.table_checkpoint import capture
from tidelog.storage.table.table_log import (
    CHECKPOINT_COMMITS,
    DELETE_GRACE_SECONDS,
    TableCommitted,
    TableLog,
)
from tidelog.storage.table.table_state import CommitRefusal, TableState


class World:
    """A bucket and processes that read and change one topic's table in it."""

    def __init__(self, loop: SimulatedLoop) -> None:
        self.loop = loop
        self.clock = SimulatedClock(loop)
        self.truth = MeteredStore(MemoryStore(self.clock), self.clock)
        self.entropy = SeededEntropy(1)

    async def open(
        self, store: FaultyStore | None = None, grace_seconds: float = DELETE_GRACE_SECONDS
    ) -> TableLog:
        return await TableLog.open(
            store or self.truth,
            self.clock,
            self.entropy,
            InlineOffload(),
            TOPIC_ID,
            "flights",
            grace_seconds,
        )

    def faulty(self, rates: FaultRates | None = None) -> FaultyStore:
        return FaultyStore(self.truth, self.clock, self.entropy, rates or FaultRates())

    def gets(self) -> int:
        return self.truth.statistics.get.requests

    async def keys(self) -> list[str]:
        return [meta.key.rpartition("/")[2] async for meta in self.truth.list("topics/")]


def tell(story: Callable[[World], Awaitable[None]], seconds_max: float = 1e6) -> None:
    """Run a story in virtual time; nothing that it started is left over or fails unseen."""

    async def main(loop: SimulatedLoop) -> None:
        await story(World(loop))

    with SimulatedLoop(1) as loop:
        loop.run(main(loop), seconds_max=seconds_max)
        assert loop.unhandled == []


async def grow(log: TableLog, count: int, partition: int = 0, size: int = 10) -> None:
    """Commit segments at the end of a partition, one after the other."""
    for _ in range(count):
        base = log.state.partition(partition).next_offset
        segment = listed(partition, base, base + size - 1, base)
        result = await log.commit((advance(partition, base, base + size, segment),))
        assert isinstance(result, TableCommitted)


def contents(state: TableState) -> tuple[object, ...]:
    """All that a state says, for comparison."""
    found = capture(state)
    return (found.version, found.metadata, found.next_offsets, found.segments, found.removed)


# Commits and who else commits.


def test_a_table_begins_with_its_first_commit() -> None:
    async def story(world: World) -> None:
        log = await world.open()
        assert log.state.version == -1
        assert await world.keys() == []
        assert await log.commit((advance(0, 0, 10, listed(0, 0, 9)),)) == TableCommitted(0)
        assert await world.keys() == ["00000000000000000000.json"]
        assert contents((await world.open()).state) == contents(log.state)

    tell(story)


def test_of_two_that_add_the_same_rows_one_is_refused_and_goes_on_from_there() -> None:
    """E1, E2: a fenced broker's late roll."""

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


def test_a_change_that_is_right_for_what_others_committed_is_not_refused() -> None:
    """A new owner knows from its image where the table ends, its view of the log may be older."""

    async def story(world: World) -> None:
        old, new = await world.open(), await world.open()
        await grow(new, 3)
        assert await old.commit((advance(0, 30, 40, listed(0, 30, 39)),)) == TableCommitted(3)

    tell(story)


def test_a_removal_is_refused_when_another_came_first() -> None:
    """E3: two that compact the same segments."""

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


# Requests that go wrong.


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


class Refusing(FaultyStore):
    """Answers nothing while told so."""

    mute = False

    async def get(self, key: str, byte_range: ByteRange | Suffix | None = None) -> StoredObject:
        if self.mute:
            raise StoreNotApplied(key, "mute")
        return await super().get(key, byte_range)


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


# Checkpoints.


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


# Clean-up, and who was away meanwhile.


def test_only_what_a_checkpoint_older_than_the_grace_replaces_is_deleted() -> None:
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
    """The filesystem store's times are those of the wall clock."""

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


def test_who_was_away_does_not_commit_into_a_number_that_was_deleted() -> None:
    """A2: the number after its last is free again, for it was used and cleaned up."""

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
    """A process that stalls for an hour as it puts: nothing of it runs meanwhile."""

    stalls = False

    async def put(self, key: str, data: object, condition: object = None) -> str:
        if self.stalls and key.endswith(".json"):
            self.stalls = False
            await self.meanwhile()
        return await super().put(key, data, condition)  # type: ignore[arg-type]

    async def meanwhile(self) -> None:
        raise NotImplementedError


def test_who_lost_a_race_and_could_not_read_on_looks_again_before_it_commits() -> None:
    """What lies above the lost number was put before we looked, so it may be deleted by then."""

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
                # What no timeout of a stalled process can see in time.
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


def test_what_is_cleaned_up_while_it_is_read_is_read_again() -> None:
    async def story(world: World) -> None:
        log = await world.open()
        await grow(log, 3)
        await log.write_checkpoint()

        class Late(FaultyStore):
            """Everything is cleaned up between the read of the hint and what it points to."""

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


# What is wrong is named.


async def lose(world: World, log: TableLog, key: str, message: str) -> None:
    kept = bytes((await world.truth.get(key)).data)
    await world.truth.delete(key)
    with pytest.raises(CorruptObject, match=message) as raised:
        await world.open()
    assert raised.value.key == key
    middle = len(kept) // 2
    altered = kept[:middle] + bytes([kept[middle] ^ 1]) + kept[middle + 1 :]
    for damaged in (kept[:middle], b"", altered):
        await world.truth.put(key, damaged)
        with pytest.raises(CorruptObject) as raised:
            await world.open()
        assert raised.value.key == key
    await world.truth.put(key, kept)
    assert contents((await world.open()).state) == contents(log.state)


def test_a_missing_or_damaged_version_or_checkpoint_is_named() -> None:
    async def story(world: World) -> None:
        log = await world.open()
        await grow(log, 4)
        await lose(world, log, log.key(1), "later ones are there")
        await lose(world, log, log.key(0), "later ones are there")
        await log.write_checkpoint()
        await grow(log, 2)
        await lose(world, log, log.checkpoint_key(3), "later ones are there")
        await lose(world, log, log.key(4), "later ones are there")

    tell(story)


def test_no_altered_byte_of_a_checkpoint_goes_unseen() -> None:
    async def story(world: World) -> None:
        log = await world.open()
        await grow(log, 4)
        key = log.checkpoint_key(await log.write_checkpoint())
        kept = bytes((await world.truth.get(key)).data)
        unseen = 0
        for position in range(0, len(kept), 7):
            altered = bytearray(kept)
            altered[position] ^= 16
            await world.truth.put(key, altered)
            try:
                assert contents((await world.open()).state) == contents(log.state)
                unseen += 1
            except CorruptObject as error:
                assert error.key == key  # noqa: PT017
        # The file's first magic, and the seal's own: without it, it is a checkpoint of others.
        assert unseen <= 3

    tell(story)


def test_a_hint_that_does_not_decode_is_named() -> None:
    async def story(world: World) -> None:
        log = await world.open()
        await grow(log, 2)
        key = f"topics/{TOPIC_ID}/_delta_log/_last_checkpoint"
        for wrong in (b"", b"[]", b'{"size": 1}'):
            await world.truth.put(key, wrong)
            with pytest.raises(CorruptObject, match="_last_checkpoint"):
                await world.open()

    tell(story)


def test_a_store_that_fails_leaves_the_log_usable() -> None:
    async def story(world: World) -> None:
        store = Refusing(world.truth, world.clock, world.entropy, FaultRates())
        log = await world.open(store)
        await grow(log, 2)
        other = await world.open()
        await grow(other, 60)
        await other.write_checkpoint()
        store.mute = True
        with pytest.raises(StoreNotApplied):
            await log.refresh()
        assert log.state.version == 1
        store.mute = False
        assert await log.refresh() == 61
        await store.close()

    tell(story)


@pytest.mark.parametrize(("grace_seconds", "given_up_after"), [(600.0, 30), (8.0, 2)])
def test_a_commit_gives_up_before_its_view_is_too_old(
    grace_seconds: float, given_up_after: float
) -> None:
    """With the age that a view may have before it is half the grace, where that is short."""

    async def story(world: World) -> None:
        store = world.faulty(FaultRates(refused=1.0))
        log = await world.open(grace_seconds=grace_seconds)
        log._sequence._store = store
        started = world.clock.monotonic()
        with pytest.raises(StoreNotApplied):
            await grow(log, 1)
        assert world.clock.monotonic() - started == pytest.approx(given_up_after, abs=0.01)

    tell(story)


# Size.


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
        # In one commit each a thousand: how they came to be is not what is measured.
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
