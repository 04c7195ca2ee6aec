"""The inventory knows all slots, and does not list the slots that this process has written
itself."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace

from tidelog.broker.collect.wal_inventory import OwnWal, WalInventory
from tidelog.clock import SystemClock
from tidelog.coordinator.cluster.records.process_identity import ProcessIdentity
from tidelog.coordinator.cluster.state.incarnations import BrokerInfo, RetiredWal
from tidelog.coordinator.cluster.state.state import ClusterState
from tidelog.identifiers import BrokerId, Epoch, Incarnation, Slot
from tidelog.storage.object_store import ObjectMeta
from tidelog.storage.stores.memory import MemoryStore
from tidelog.wal.format.object_format import wal_key
from tidelog.wal.recover.slot_runs import SlotRun

ME = Incarnation(BrokerId(0), Epoch(9))
DEAD = Incarnation(BrokerId(0), Epoch(2))
PROCESS = ProcessIdentity("host", "boot", "pids", 1, 1)


class Listings(MemoryStore):
    """Records the keys that listings have returned."""

    def __init__(self) -> None:
        super().__init__(SystemClock())
        self.listed: list[str] = []

    async def list(self, prefix: str = "", start_after: str = "") -> AsyncIterator[ObjectMeta]:
        async for meta in super().list(prefix, start_after):
            self.listed.append(meta.key)
            yield meta


async def fill(store: MemoryStore, owner: Incarnation, *runs: SlotRun) -> None:
    for run in runs:
        for slot in range(*run):
            await store.put(wal_key(owner, Slot(slot)), b"x" * 10)


def state(**retired: int) -> ClusterState:
    """A state with retired incarnations, given as `_EPOCH=SLOT`; this process has id 0."""
    found = ClusterState(sequence=20)
    wals = {
        Epoch(int(name[1:])): RetiredWal(Incarnation(BrokerId(0), Epoch(int(name[1:]))), Slot(end))
        for name, end in retired.items()
    }
    me = BrokerInfo(ME, "host", 1, PROCESS, 9000, ME.epoch)
    return replace(
        found, retired=wals, brokers={ME.epoch: me}, live_epochs={ME.broker_id: ME.epoch}
    )


def dead_of(known: ClusterState) -> set[Incarnation]:
    return {wal.incarnation for wal in known.retired.values()}


def test_own_slots_are_not_listed() -> None:
    async def story() -> None:
        store, ends = Listings(), [0]
        inventory = WalInventory(
            store, ME, lambda: OwnWal(Slot(ends[-1]), Slot(ends[-1] - 1), 10 * ends[-1])
        )
        for end in (50, 120, 200):
            ends.append(end)
            await inventory.look(state(), ())
        assert dict(inventory)[ME] == ([SlotRun(0, 200)], 10)
        inventory.hand_over(ME, [SlotRun(0, 30), SlotRun(40, 60)])
        ends.append(201)
        await inventory.look(state(), ())
        assert dict(inventory)[ME].runs == [SlotRun(30, 40), SlotRun(60, 201)]
        assert store.listed == []

    asyncio.run(story())


def test_a_dead_wal_is_listed_once_until_its_seal_alone_is_left() -> None:
    async def story() -> None:
        store = Listings()
        await fill(store, DEAD, SlotRun(3, 10), SlotRun(12, 20), SlotRun(40, 41))
        # Slots of a live incarnation and of a finished one.
        other = Incarnation(BrokerId(0), Epoch(1))
        await fill(store, ME, SlotRun(0, 500))
        await fill(store, other, SlotRun(7, 8))
        inventory = WalInventory(store, ME, lambda: OwnWal(Slot(0), Slot(-1), 0))
        now = state(_1=7, _2=19)
        await inventory.look(now, dead_of(now))
        assert dict(inventory)[DEAD] == ([SlotRun(3, 10), SlotRun(12, 20), SlotRun(40, 41)], 10)
        assert other not in dict(inventory)
        assert sum(key.startswith("wal/0-9/") for key in store.listed) <= 1
        store.listed.clear()
        inventory.hand_over(DEAD, [SlotRun(3, 10), SlotRun(12, 19)])
        await inventory.look(now, dead_of(now))
        inventory.hand_over(DEAD, [SlotRun(40, 41)])
        await inventory.look(now, dead_of(now))
        assert DEAD not in dict(inventory)
        # Another incarnation dies.
        await fill(store, Incarnation(BrokerId(0), Epoch(5)), SlotRun(0, 3))
        later = state(_1=7, _2=19, _5=2)
        for _ in range(3):
            await inventory.look(later, dead_of(later))
        assert store.listed == [
            wal_key(Incarnation(BrokerId(0), Epoch(5)), Slot(n)) for n in range(3)
        ]

    asyncio.run(story())


def test_many_dead_wals_are_listed_together_and_only_wals_of_the_share() -> None:
    async def story() -> None:
        store = Listings()
        retired = {f"_{epoch}": 2 for epoch in range(30, 60)}
        now = replace(state(**retired), sequence=60)
        for owner in dead_of(now):
            await fill(store, owner, SlotRun(0, 3))
        share = {owner for owner in dead_of(now) if owner.epoch % 3}
        inventory = WalInventory(store, ME, lambda: OwnWal(Slot(0), Slot(-1), 0))
        for _ in range(2):
            await inventory.look(now, share)
            assert {owner for owner, _ in inventory} == {ME, *share}
            assert len(store.listed) == 90
        # A second broker joins and takes most incarnations; then it leaves again.
        await inventory.look(now, set(list(share)[:2]))
        assert len(dict(inventory)) == 3
        await inventory.look(now, share)
        assert {owner for owner, _ in inventory} == {ME, *share}

    asyncio.run(story())


def test_the_newest_slot_of_each_wal_is_no_lower_than_its_last_put() -> None:
    async def story() -> None:
        store = Listings()
        living = Incarnation(BrokerId(1), Epoch(4))
        await fill(store, living, SlotRun(0, 5))
        info = BrokerInfo(living, "host", 1, PROCESS, 9000, living.epoch)
        inventory = WalInventory(store, ME, lambda: OwnWal(Slot(10), Slot(12), 0))
        now = state(_2=19)
        now = replace(now, brokers={**now.brokers, living.epoch: info})
        assert await inventory.newest_slots(now) == {ME: 12, DEAD: 19, living: 4}
        await fill(store, living, SlotRun(5, 9))
        store.listed.clear()
        assert await inventory.newest_slots(now) == {ME: 12, DEAD: 19, living: 8}
        assert len(store.listed) == 4

    asyncio.run(story())
