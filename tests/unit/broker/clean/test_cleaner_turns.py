"""The cleaner's turns: a log whose rounds fail or take long keeps no other log waiting."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

import pytest

from tests.unit.broker.clean.test_log_cleaner import COMPACTED, clean, keyed, roll
from tests.unit.broker.clean.test_retention import HOUR_MS, dated
from tests.unit.broker.one_broker import OneBroker, World, run
from tests.unit.broker.rolled import offsets
from tidelog.clock import SystemClock
from tidelog.coordinator.cluster.records.records import ConfigsChanged, ConfigScope
from tidelog.identifiers import TopicId
from tidelog.storage.clean import compaction
from tidelog.storage.object_store import (
    Buffer,
    ByteRange,
    Condition,
    StoredObject,
    StoreNotApplied,
    Suffix,
)
from tidelog.storage.stores.memory import MemoryStore

ROUND_SECONDS = 20.0
"""Longer than the pause after a failed round."""


class SkippingClock(SystemClock):
    """A clock that is set forward instead of the sleep of one task."""

    def __init__(self) -> None:
        self.skipped = 0.0
        self.skips_for: asyncio.Task[None] | None = None

    def monotonic(self) -> float:
        return super().monotonic() + self.skipped

    async def sleep(self, seconds: float) -> None:
        if asyncio.current_task() is self.skips_for:
            self.skipped += seconds
            seconds = 0
        await super().sleep(seconds)


class HardToRead(MemoryStore):
    """A store that fails to read segments of some topics, after a while."""

    def __init__(self, clock: SkippingClock) -> None:
        super().__init__(clock)
        self.unreadable: set[TopicId] = set()
        self.failures = 0
        self._skipping = clock

    async def get(self, key: str, byte_range: ByteRange | Suffix | None = None) -> StoredObject:
        if key.endswith(".parquet") and any(str(each) in key for each in self.unreadable):
            self.failures += 1
            self._skipping.skipped += ROUND_SECONDS
            raise StoreNotApplied(key, "not now")
        return await super().get(key, byte_range)


def new_world(store: HardToRead | MemoryStore, clock: SkippingClock, **settings: object) -> World:
    world = World(store, **settings)
    world.clocks[0] = clock
    return world


async def dirty_topic(one: OneBroker, name: str) -> TopicId:
    topic_id = await one.create_topic(name, **COMPACTED)
    await roll(one, keyed((b"a", b"1")), keyed((b"a", b"2")), topic=name)
    return topic_id


def test_logs_whose_rounds_fail_late_keep_no_other_log_waiting() -> None:
    """When the second one has failed, the pause of the first is over."""
    clock = SkippingClock()
    store = HardToRead(clock)

    async def story() -> None:
        async with new_world(store, clock).broker() as one:
            failing = [await dirty_topic(one, name) for name in ("first", "second")]
            fine = await dirty_topic(one, "third")
            store.unreadable.update(failing)
            for _ in range(3):
                assert await one.broker.topic_tables.cleaner.clean_one()
            assert store.failures == 2
            assert await offsets(store, fine) == [1]
            # Both logs have their turns again, one after the other.
            for _ in range(4):
                assert await one.broker.topic_tables.cleaner.clean_one()
            assert store.failures == 6
            store.unreadable.clear()
            clock.skipped += ROUND_SECONDS
            assert await clean(one) == 2
            for topic_id in failing:
                assert await offsets(store, topic_id) == [1]

    run(story)


def test_merges_that_fail_late_keep_no_other_merge_waiting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(compaction, "MERGED_SEGMENTS_MIN", 2)
    clock = SkippingClock()
    store = HardToRead(clock)

    async def story() -> None:
        async with new_world(store, clock).broker() as one:
            for name in ("first", "second", "third"):
                topic_id = await one.create_topic(name)
                await roll(one, keyed((b"a", b"1")), keyed((b"a", b"2")), topic=name)
                if name != "third":
                    store.unreadable.add(topic_id)
            for _ in range(3):
                assert await one.broker.topic_tables.cleaner.clean_one()
            assert one.broker.topic_tables.cleaner.metrics.merges == 1

    run(story)


def test_a_round_below_a_low_rate_ends() -> None:
    """The cleaner waits for its rate when a segment is committed, and not while the segment ages:
    the table refuses one that is older than half of the grace."""
    clock = SkippingClock()
    store = MemoryStore(clock)

    async def story() -> None:
        settings = {"log_cleaner_io_max_bytes_per_second": 1.0, "log_delete_grace_ms": 600_000}
        async with new_world(store, clock, **settings).broker() as one:
            topic_id = await dirty_topic(one, "slow")
            clock.skips_for = asyncio.current_task()
            assert await one.broker.topic_tables.cleaner.clean_one()
            assert one.broker.topic_tables.cleaner.metrics.failures == 0
            assert await offsets(store, topic_id) == [1]
            assert clock.skipped > 300

    run(story)


class AlteringClock(SkippingClock):
    """Runs something during the first long sleep that it skips."""

    def __init__(self) -> None:
        super().__init__()
        self.alter: Callable[[], Awaitable[object]] | None = None

    async def sleep(self, seconds: float) -> None:
        is_long = seconds >= 1 and asyncio.current_task() is self.skips_for
        if is_long and self.alter is not None:
            alter, self.alter = self.alter, None
            await alter()
        await super().sleep(seconds)


def test_a_higher_rate_counts_for_the_wait_that_has_begun() -> None:
    clock = AlteringClock()
    store = MemoryStore(clock)

    async def story() -> None:
        settings = {"log_cleaner_io_max_bytes_per_second": 1.0}
        async with new_world(store, clock, **settings).broker() as one:
            await dirty_topic(one, "slow")
            membership = one.broker.membership
            faster = {"log.cleaner.io.max.bytes.per.second": "1000000"}
            change = ConfigsChanged(ConfigScope.CLUSTER, "", faster)
            clock.alter = lambda: membership.metadata.append(
                membership.incarnation.epoch, lambda _: (change,)
            )
            clock.skips_for = asyncio.current_task()
            cleaner = one.broker.topic_tables.cleaner
            assert await cleaner.clean_one()
            assert cleaner.metrics.compactions == 1
            assert clock.alter is None
            assert clock.skipped < 5

    run(story)


class WatchedPuts(MemoryStore):
    """Calls `seen` before each put of a segment."""

    def __init__(self, clock: SkippingClock) -> None:
        super().__init__(clock)
        self.seen: Callable[[], None] = lambda: None

    async def put(
        self, key: str, data: Buffer | Sequence[Buffer], condition: Condition | None = None
    ) -> str:
        if key.endswith(".parquet"):
            self.seen()
        return await super().put(key, data, condition)


def test_retention_comes_in_time_while_the_keys_of_a_log_are_read() -> None:
    clock = SkippingClock()
    store = WatchedPuts(clock)
    expired: list[int] = []

    async def story() -> None:
        world = new_world(store, clock, log_cleaner_io_max_bytes_per_second=1.0)
        async with world.broker() as one:
            await one.create_topic(retention_ms=str(HOUR_MS))
            await roll(one, dated(2 * HOUR_MS))
            await dirty_topic(one, "slow")
            cleaner = one.broker.topic_tables.cleaner
            clock.skips_for = asyncio.current_task()
            store.seen = lambda: expired.append(cleaner.metrics.segments_expired)
            assert await cleaner.clean_one()
            assert expired == [1]
            assert cleaner.metrics.compactions == 1

    run(story)
