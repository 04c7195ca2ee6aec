"""fsck takes a seal for the end of a WAL, also before the metadata log names that end."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from tests.unit.broker.one_broker import batch, run, until
from tests.unit.bucket.bucket_world import world
from tests.unit.bucket.fsck.checked_bucket import checked
from tests.unit.coordinator.cluster.samples import process
from tidelog.clock import SystemClock
from tidelog.coordinator.cluster.log.metadata_log import MetadataLog
from tidelog.coordinator.cluster.membership.registration import register
from tidelog.entropy import SeededEntropy
from tidelog.identifiers import BrokerId, Slot
from tidelog.storage.object_store import Buffer, Condition
from tidelog.storage.stores.memory import MemoryStore
from tidelog.wal.format.object_format import wal_key
from tidelog.wal.recover.wal_end import seal


class LaterClock(SystemClock):
    """The store's clock, which the test moves forward."""

    later_ms = 0

    def time_ms(self) -> int:
        return super().time_ms() + self.later_ms


class HoldingStore(MemoryStore):
    """A store that never answers the put of one object."""

    held = ""
    is_holding = False

    async def put(
        self, key: str, data: Buffer | Sequence[Buffer], condition: Condition | None = None
    ) -> str:
        if key == self.held:
            self.is_holding = True
            await asyncio.Event().wait()
        return await super().put(key, data, condition)


def test_a_slot_behind_a_seal_is_no_hole_before_the_wal_is_retired() -> None:
    """The broker dies while one slot is on its way and the next one is stored. Minutes later
    another broker seals the first, and dies before it retires the WAL."""

    async def story() -> None:
        clock = LaterClock()
        store = HoldingStore(clock)
        here = world(store, wal_linger_ms=0)
        async with here.broker(politely=False) as one:
            await one.create_topic()
            await one.produce(batch(b"0"))
            dead = one.broker.membership.incarnation
            end = Slot(one.broker.writes.wal.newest_slot + 1)
            store.held = wal_key(dead, end)
            waiting = [asyncio.create_task(one.produce(batch(b"1")))]
            await until(lambda: store.is_holding)
            waiting.append(asyncio.create_task(one.produce(batch(b"2"))))
            behind = wal_key(dead, Slot(end + 1))
            await until(lambda: behind in store._objects)
        for each in waiting:
            each.cancel()
        store.held = ""
        clock.later_ms = 300_000
        entropy = SeededEntropy("successor")
        log = await MetadataLog.open(store, clock, entropy)
        await register(log, store, clock, BrokerId(0), ("b", 9), process(7), lambda _: False)
        assert (await seal(store, clock, entropy, dead, in_flight_max=4)).slot == end
        await log.close()
        assert (await checked(store)).faults == []

    run(story)
