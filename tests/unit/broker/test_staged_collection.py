"""Staged objects go when nobody can adopt them any more and nothing refers to them."""

from __future__ import annotations

from uuid import UUID

import pytest

from tests.unit.broker.collections import collections, objects
from tests.unit.broker.one_broker import TOPIC, OneBroker, batch, run
from tests.unit.broker.rolled import flush, hosted
from tests.unit.broker.sink_world import ShiftedClock, Sink, world
from tests.unit.broker.transactional_client import loaded, read
from tidelog.storage.memory import MemoryStore
from tidelog.wal.adoption import staged_key

HOUR_MS = 3_600_000


async def staged_in(store: MemoryStore) -> set[str]:
    return set(await objects(store, "staged/"))


def keys(*ids: UUID) -> set[str]:
    return set(map(staged_key, ids))


async def checkpoint(one: OneBroker) -> None:
    await one.produce(batch(b"more"))
    await one.broker._checkpointer.checkpoint()


@pytest.mark.parametrize("restarts", [False, True])
def test_staged_objects_go_by_age_when_nothing_refers_to_them(restarts: bool) -> None:
    clock = ShiftedClock()
    store = MemoryStore(clock)
    here = world(store, staged_retention_ms=HOUR_MS)

    async def story() -> None:
        sink = Sink(here)
        async with here.broker(politely=False) as one:
            await loaded(one)
            topic_id = await one.create_topic()
            orphan = await sink.stage(topic_id, 0, {0: [b"x"]})
            committed = await sink.stage(topic_id, 0, {0: [b"a"]})
            aborted = await sink.stage(topic_id, 1, {0: [b"b"]})
            await sink.commit(one, 0, {0: [committed]})
            async with sink.producer(one) as producer:
                await producer.adopt(TOPIC, 0, [aborted])
                await producer.abort()
            old = keys(orphan, committed, aborted)
            clock.shift_ms = 3 * HOUR_MS
            young = await sink.stage(topic_id, 2, {0: [b"c"]})
            await one.produce(batch(b"later"))
            # Slots of that time may be replayed, and only they say what was adopted.
            await collections(one, store).collect()
            assert await staged_in(store) == old | keys(young)
            if not restarts:
                await goes_on(one)
                return
        async with here.broker(politely=False) as two:
            await loaded(two)
            await collections(two, store).collect()
            assert await staged_in(store) == old | keys(young)
            await goes_on(two)

    async def goes_on(one: OneBroker) -> None:
        before = await staged_in(store)
        # What was not written to since the start is opened, so that no older WAL is needed.
        merger = one.broker.upkeep.merger
        merger._open_from = 0.0
        await merger.maintain()
        await one.broker.wal.flush()
        await checkpoint(one)
        await one.broker._openings.flush()
        await collections(one, store).collect()
        left = await staged_in(store)
        assert len(before - left) == 1, "the orphan alone"
        assert [v for v in await read(one) if v not in (b"more", b"later")] == [b"a"]
        await flush(one)
        await checkpoint(one)
        await collections(one, store).collect()
        assert len(await staged_in(store)) == 1, "the young one alone"
        assert [v for v in await read(one) if v not in (b"more", b"later")] == [b"a"]
        assert hosted(one).log.table_next > 0

    run(story)
