"""When the roller rolls a partition, how rolls share commits, and their order."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

import pytest

from tests.unit.broker.one_broker import batch, run, until
from tests.unit.broker.rolled import (
    ShakyStore,
    flush_all,
    hosted,
    offsets,
    settled,
    table_state,
    world,
)
from tidelog.clock import SystemClock
from tidelog.storage.object_store import Buffer, Condition
from tidelog.storage.stores.memory import MemoryStore


def test_partitions_of_a_topic_go_on_in_one_commit() -> None:
    here = world(roll_age_ms=50)

    async def story() -> None:
        async with here.broker() as one:
            topic_id = await one.create_topic(partitions=10)
            await asyncio.gather(*(one.produce(batch(b"%d" % n), n) for n in range(10)))
            for number in range(10):
                await settled(one, 1, number)
            assert (await table_state(here.store, topic_id)).version < 3
            for number in range(10):
                assert await offsets(here.store, topic_id, number) == [0]

    run(story)


@pytest.mark.parametrize(
    "settings", [{"roll_bytes": 1}, {"roll_age_ms": 1}, {"roll_wal_max_bytes": 0}]
)
def test_size_age_and_pressure_bring_it_about(settings: dict[str, int]) -> None:
    here = world(**{"roll_min_bytes": 1, **settings})

    async def story() -> None:
        async with here.broker() as one:
            topic_id = await one.create_topic()
            await one.produce(batch(b"a"))
            await settled(one, 1)
            await one.produce(batch(b"b"))
            await settled(one, 2)
            assert await offsets(here.store, topic_id) == [0, 1]

    run(story)


def test_a_topics_own_settings_count_if_they_are_less() -> None:
    here = world(roll_age_ms=3_600_000)

    async def story() -> None:
        async with here.broker() as one:
            await one.create_topic(segment_ms="1")
            await one.create_topic("slow")
            await one.produce(batch(b"a"), topic="slow")
            await one.produce(batch(b"a"))
            await settled(one, 1)
            assert hosted(one, topic="slow").log.table_next == 0

    run(story)


class RestlessStore(MemoryStore):
    """Runs a change before each segment is put."""

    def __init__(self) -> None:
        super().__init__(SystemClock())
        self.before: Callable[[], Awaitable[None]] | None = None
        self.segments = 0

    async def put(
        self, key: str, data: Buffer | Sequence[Buffer], condition: Condition | None = None
    ) -> str:
        if "/partition=" in key:
            self.segments += 1
            if self.before is not None:
                await self.before()
        return await super().put(key, data, condition)


@pytest.mark.parametrize("is_asked_for", [True, False])
def test_no_roll_starves_behind_repeated_requests(is_asked_for: bool) -> None:
    """While a busy topic is rolled, a client asks for its next roll each time. Less urgent rolls
    happen nevertheless, if a client has asked for them or if they are due."""
    store = RestlessStore()
    here = world(store, roll_bytes=500, roll_min_bytes=0, wal_linger_ms=0)

    async def story() -> None:
        async with here.broker() as one:

            async def ask_again() -> None:
                if hosted(one).log.table_next == 0:
                    await one.produce(batch(b"x" * 1000), topic="busy")
                    one.broker.topic_tables.roller.flush(hosted(one, topic="busy"))

            await one.create_topic("busy")
            await one.create_topic()
            store.before = ask_again
            await one.produce(batch(b"x" * 1000), topic="busy")
            await until(lambda: store.segments)
            await one.produce(batch(b"a" if is_asked_for else b"a" * 600))
            if is_asked_for:
                one.broker.topic_tables.roller.flush(hosted(one))
            await until(lambda: hosted(one).log.table_next or store.segments > 20)
            assert store.segments < 20
            store.before = None

    run(story)


@pytest.mark.parametrize("partitions", [2, 5])
def test_segments_that_grow_too_old_beside_others_do_not_stop_their_rolls(partitions: int) -> None:
    """Each segment takes so long that the earlier ones become too old for a common commit. The
    youngest is committed alone, so the rolls come to an end."""
    store = RestlessStore()
    here = world(store)

    async def story() -> None:
        async with here.broker() as one:
            ages = one.broker.topic_tables.segment_ages

            async def grow_old() -> None:
                *before, _ = ages._begun
                ages._begun.update(dict.fromkeys(before, float("-inf")))

            await one.create_topic(partitions=partitions)
            for number in range(partitions):
                await one.produce(batch(b"a"), number)
            store.before = grow_old
            await flush_all(one, partitions)
            assert one.broker.topic_tables.roller.metrics.failures == 0

    run(story)


def test_a_partition_due_by_age_stays_due_without_a_commit() -> None:
    """The partition is due at once, and not only after it has waited for its age once more."""
    store = RestlessStore()
    here = world(store, roll_age_ms=3_600_000)

    async def story() -> None:
        async with here.broker() as one:
            queue, clock = one.broker.topic_tables.roller._queue, one.broker.environment.clock

            async def grow_old() -> None:
                ages = one.broker.topic_tables.segment_ages
                *before, _ = ages._begun
                ages._begun.update(dict.fromkeys(before, float("-inf")))

            await one.create_topic(partitions=3)
            for number in range(3):
                await one.produce(batch(b"a"), number)
                queue.set_waiting_since(hosted(one, number).log.partition, clock.monotonic() - 7200)
            store.before = grow_old
            queue.news.set()
            for number in range(3):
                await settled(one, 1, number)
            assert store.segments > 3

    run(story)


def test_old_segments_are_committed_before_more_are_built(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("tidelog.broker.roll.roller.COMMIT_GRACE_SHARE_MAX", 0.0)
    here = world()

    async def story() -> None:
        async with here.broker() as one:
            await one.create_topic(partitions=3)
            for number in range(3):
                await one.produce(batch(b"a"), number)
            await flush_all(one, 3)
            assert one.broker.topic_tables.roller.metrics.commits == 3

    run(story)


def test_a_cancelled_waiter_is_forgotten() -> None:
    store = ShakyStore()
    here = world(store)

    async def story() -> None:
        async with here.broker() as one:
            await one.create_topic()
            await one.produce(batch(b"a"))
            store.refusals = {"/partition=": 1_000_000}
            for _ in range(50):
                one.broker.topic_tables.roller.flush(hosted(one)).cancel()
            waiting = one.broker.topic_tables.roller._queue._waiting
            assert sum(map(len, waiting.values())) == 1

    run(story)
