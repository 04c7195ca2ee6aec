"""A coordinator's partition leaves and stays after all, while a snapshot of its state is under way.

The metadata log refuses a move to a broker that is not live (C3). Then a second coordinator of the
same broker loads the same log, and the snapshot of the first one lands at any moment.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

import pytest

from tests.unit.broker.coordinate.test_state_snapshots import (
    OK,
    commit,
    fill,
    groups_log,
    serving,
    snapshots,
    world,
)
from tests.unit.broker.one_broker import OneBroker, World, run, until
from tests.unit.broker.transactional_client import committed_offset, loaded
from tidelog.broker.coordinate import coordinators
from tidelog.clock import SystemClock
from tidelog.coordinator.snapshots import LOADED_RECORDS_MAX
from tidelog.identifiers import Epoch
from tidelog.storage.object_store import (
    Buffer,
    ByteRange,
    Condition,
    StoredObject,
    Suffix,
)
from tidelog.storage.stores.memory import MemoryStore

NOT_LIVE = Epoch(1_000_000)


async def nothing() -> None:
    """Do nothing beside a read."""


class SlowStore(MemoryStore):
    """A store that holds back the puts of snapshots."""

    def __init__(self) -> None:
        super().__init__(SystemClock())
        self.puts = asyncio.Event()
        """When set, puts of snapshots go through."""
        self.held = 0
        self.beside_read: Callable[[], Awaitable[None]] = nothing
        """Runs between the read of a snapshot and its answer."""

    async def put(
        self, key: str, data: Buffer | Sequence[Buffer], condition: Condition | None = None
    ) -> str:
        if key.startswith("state/"):
            self.held += 1
            await self.puts.wait()
            self.held -= 1
        return await super().put(key, data, condition)

    async def get(self, key: str, byte_range: ByteRange | Suffix | None = None) -> StoredObject:
        found = await super().get(key, byte_range)
        if key.startswith("state/"):
            await self.beside_read()
        return found


def slow_world(**settings: object) -> tuple[SlowStore, World]:
    store = SlowStore()
    here = world(**settings)
    here.store = store
    return store, here


async def refused_move(broker: OneBroker) -> None:
    """The partition of the groups leaves and comes back, and its second coordinator begins to
    load."""
    partition = groups_log(broker)
    (before,) = broker.broker.coordination.coordinators.groups.all()
    giving = broker.broker.ownership.giving
    assert await giving.give({partition.log.partition: NOT_LIVE}) == frozenset()
    assert groups_log(broker) is partition
    (after,) = broker.broker.coordination.coordinators.groups.all()
    assert after is not before


def test_a_snapshot_that_lands_during_the_second_load_begins_it_again() -> None:
    """The load has listed the snapshots. Then the log drops records that this load needs (F4)."""

    async def story() -> None:
        store, here = slow_world()
        store.puts.set()
        async with serving(here) as broker:
            await fill(broker)
            log = groups_log(broker).log
            await until(lambda: log.table_next == 10)
            store.puts.clear()
            await fill(broker)
            await until(lambda: store.held == 1)

            async def land() -> None:
                store.puts.set()
                await until(lambda: log.table_next == 20)

            store.beside_read = land
            await refused_move(broker)
            await loaded(broker)
            assert log.table_next == 20
            assert await committed_offset(broker) == 9
            assert await commit(broker, 77) is OK
            assert not broker.broker.health.faults()

    run(story)


def test_a_snapshot_that_waits_for_another_holds_nothing_that_a_successor_appended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Otherwise the snapshot would name the log's end without the records before it, and these
    would be lost (H6)."""
    monkeypatch.setattr(coordinators, "LAST_SNAPSHOT_RECORDS_MIN", 1)

    async def story() -> None:
        store, here = slow_world(coordinator_snapshot_interval_records=10_000)
        async with serving(here) as broker:
            await fill(broker)
            every = broker.broker.coordination.coordinators
            writing = asyncio.create_task(every.snapshot())
            await until(lambda: store.held == 1)
            waiting = asyncio.create_task(every.snapshot())
            await asyncio.sleep(0)
            await refused_move(broker)
            await loaded(broker)
            assert await commit(broker, 77) is OK
            store.puts.set()
            await asyncio.gather(writing, waiting)
            assert await committed_offset(broker) == 77
        async with serving(here) as broker:
            assert await committed_offset(broker) == 77
        assert len(await snapshots(here)) == 1

    run(story)


def test_a_log_stays_short_though_each_owner_appends_little() -> None:
    async def story() -> None:
        store, here = slow_world(coordinator_snapshot_interval_records=10_000)
        store.puts.set()
        async with serving(here) as broker:
            for _ in range(30):
                await fill(broker, 20)
                await refused_move(broker)
                await loaded(broker)
            log = groups_log(broker).log
            assert log.next_offset >= 600
            assert log.next_offset - log.table_next <= LOADED_RECORDS_MAX + 40
            assert await committed_offset(broker) == 19

    run(story)
