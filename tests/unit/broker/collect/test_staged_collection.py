"""Staged objects are deleted when no call can adopt them any more and no log refers to them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from uuid import UUID

import pytest

from tests.unit.broker.collections import (
    Collections,
    collections,
    hold_tenure_reports,
    objects,
    until_opened,
)
from tests.unit.broker.one_broker import TOPIC, OneBroker, batch, run
from tests.unit.broker.rolled import flush, hosted
from tests.unit.broker.sink_world import SINK, ShiftedClock, Sink, client_of, world
from tests.unit.broker.transactional_client import loaded, read
from tests.unit.bucket.fsck.checked_bucket import checked
from tidelog.client.groups.admin import delete_group
from tidelog.client.transactions.errors import MustAbort, ProducerFenced
from tidelog.storage.object_store import ObjectMeta
from tidelog.storage.stores.memory import MemoryStore
from tidelog.wal.log.adoption import staged_key

HOUR_MS = 3_600_000


async def staged_in(store: MemoryStore) -> set[str]:
    return set(await objects(store, "staged/"))


def keys(*ids: UUID) -> set[str]:
    return set(map(staged_key, ids))


async def checkpoint(one: OneBroker) -> None:
    await one.produce(batch(b"more"))
    await one.broker.writes.checkpointer.checkpoint()


@pytest.mark.parametrize("restarts", [False, True])
def test_staged_objects_without_references_are_deleted_by_age(
    restarts: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    opening = hold_tenure_reports(monkeypatch)
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
            # Slots of that time may be replayed, and only slots record adoptions.
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
        # The start also opens partitions without new writes, so that their older WAL is not needed.
        opening.set()
        await until_opened(one)
        await one.produce(batch(b"more"))
        await checkpoint(one)
        await collections(one, store).collect()
        left = await staged_in(store)
        assert len(before - left) == 1, "the orphan alone"
        assert [v for v in await read(one) if v not in (b"more", b"later")] == [b"a"]
        await flush(one)
        await checkpoint(one)
        await collections(one, store).collect()
        assert len(await staged_in(store)) == 1, "only the young object"
        assert [v for v in await read(one) if v not in (b"more", b"later")] == [b"a"]
        assert hosted(one).log.table_next > 0

    run(story)


async def passes(found: Collections, number: int = 1) -> None:
    for _ in range(number):
        await found.pass_once()


async def known(one: OneBroker, store: MemoryStore) -> Collections:
    """A collector that has read all staged objects, and then the groups' offsets."""
    found = collections(one, store)
    await passes(found, 3)
    return found


async def pass_by(one: OneBroker) -> None:
    """Write checkpoints until they cover all slots."""
    merger = one.broker.maintenance.merger
    await merger.maintain()
    await one.broker.writes.wal.flush()
    await checkpoint(one)
    await one.broker.writes.tenure_reports.flush()


def test_staged_objects_go_when_their_batch_is_committed() -> None:
    store = MemoryStore(ShiftedClock())
    here = world(store)

    async def story() -> None:
        sink = Sink(here)
        async with here.broker() as one:
            await loaded(one)
            topic_id = await one.create_topic()
            failed = await sink.stage(topic_id, 0, {0: [b"x"]})
            committed = await sink.stage(topic_id, 0, {0: [b"a"]})
            await sink.commit(one, 0, {0: [committed]})
            following = await sink.stage(topic_id, 1, {0: [b"b"]})
            foreign = await sink.stage(topic_id, 0, {0: [b"y"]}, sink="another")
            collector = await known(one, store)
            # Only slots record the adoptions, so the collector does not know the references yet.
            await passes(collector, 2)
            assert await staged_in(store) == keys(failed, committed, following, foreign)
            await pass_by(one)
            await passes(collector, 2)
            assert await staged_in(store) == keys(committed, following, foreign)
            await sink.commit(one, 1, {0: [following]})
            assert [v for v in await read(one) if v != b"more"] == [b"a", b"b"]
            # Adopted and rolled objects: no log refers to them any more, and their batches are
            # over.
            await flush(one)
            for _ in range(2):
                await passes(collector, 2)
                await pass_by(one)
            await passes(collector, 2)
            assert await staged_in(store) == keys(foreign)
            assert [v for v in await read(one) if v != b"more"] == [b"a", b"b"]
            assert (await checked(store)).faults == []

    run(story)


def test_staged_objects_of_a_stalled_call_go_and_it_wakes_up_fenced() -> None:
    store = MemoryStore(ShiftedClock())
    here = world(store)

    async def story() -> None:
        sink = Sink(here)
        async with here.broker() as one:
            await loaded(one)
            topic_id = await one.create_topic(partitions=2)
            adopted = await sink.stage(topic_id, 0, {0: [b"adopted by the first"]})
            late = await sink.stage(topic_id, 0, {1: [b"late"]})
            second = await sink.stage(topic_id, 0, {0: [b"a"], 1: [b"b"]})
            async with sink.producer(one) as stalled:
                await stalled.adopt(TOPIC, 0, [adopted])
                # A second call for the same batch fences the first, and commits the objects of its
                # own tasks.
                await sink.commit(one, 0, {0: [second], 1: [second]})
                collector = await known(one, store)
                await pass_by(one)
                await passes(collector, 2)
                # The first call's adopted records stay in the log, aborted, until they are rolled.
                assert await staged_in(store) == keys(adopted, second)
                with pytest.raises((ProducerFenced, MustAbort)):
                    await stalled.adopt(TOPIC, 1, [late])
                with pytest.raises((ProducerFenced, MustAbort)):
                    await stalled.commit()
            await flush(one)
            for _ in range(2):
                await passes(collector, 2)
                await pass_by(one)
            await passes(collector, 2)
            # The other partition is not rolled, and refers to the batch that counts.
            assert await staged_in(store) == keys(second)
            assert [v for v in await read(one, 0) if v != b"more"] == [b"a"]
            assert await read(one, 1) == [b"b"]

    run(story)


def test_without_the_groups_offset_objects_wait_for_their_age() -> None:
    store = MemoryStore(ShiftedClock())
    here = world(store)

    async def story() -> None:
        sink = Sink(here)
        async with here.broker() as one:
            await loaded(one)
            topic_id = await one.create_topic()
            failed = await sink.stage(topic_id, 0, {0: [b"x"]})
            await sink.commit(one, 0, {0: [await sink.stage(topic_id, 0, {0: [b"a"]})]})
            before = await staged_in(store)
            collector = await known(one, store)
            await pass_by(one)
            async with client_of(one) as client:
                await delete_group(client, SINK)
            # The offset that the collector saw no longer fences any call.
            await passes(collector, 4)
            assert await staged_in(store) == before
            # A second query has the name now. Its progress says nothing of the first query's
            # objects.
            await sink.commit(
                one, 0, {0: [await sink.stage(topic_id, 0, {0: [b"b"]})]}, query="query-2"
            )
            for _ in range(2):
                await passes(collector, 2)
                await pass_by(one)
            await passes(collector, 2)
            assert keys(failed) <= await staged_in(store)

    run(story)


def test_staged_objects_are_deleted_beside_any_number_of_slots(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("tidelog.broker.collect.collector.LISTED_MAX", 10)
    store = MemoryStore(ShiftedClock())
    here = world(store)

    async def story() -> None:
        sink = Sink(here)
        async with here.broker() as one:
            await loaded(one)
            topic_id = await one.create_topic()
            failed = await sink.stage(topic_id, 0, {0: [b"x"]})
            committed = await sink.stage(topic_id, 0, {0: [b"a"]})
            await sink.commit(one, 0, {0: [committed]})
            for number in range(30):
                await one.produce(batch(b"%d" % number))
            collector = await known(one, store)
            await pass_by(one)
            await passes(collector, 2)
            assert len(await objects(store, "wal/")) > 10
            assert await staged_in(store) == keys(committed), failed

    run(story)


HIGHEST = UUID(int=(1 << 128) - 1)


async def with_an_old_object(one: OneBroker, store: MemoryStore, clock: ShiftedClock) -> None:
    """A staged object, which later records have left behind."""
    await loaded(one)
    await store.put(staged_key(HIGHEST), b"old")
    clock.shift_ms = 3 * HOUR_MS
    await one.produce(batch(b"later"))
    await pass_by(one)


def test_staged_objects_are_looked_at_in_turn_by_age(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidelog.broker.collect.collector.LISTED_MAX", 2)
    clock = ShiftedClock()
    store = MemoryStore(clock)
    here = world(store, staged_retention_ms=HOUR_MS)

    async def story() -> None:
        async with here.broker() as one:
            await with_an_old_object(one, store, clock)
            young = {staged_key(UUID(int=number)) for number in range(1, 6)}
            for key in young:
                await store.put(key, b"young")
            collector = collections(one, store)
            await passes(collector, 3)
            # It is marked, and the passes look at others.
            await passes(collector, 3)
            assert await staged_in(store) == young
            assert collector.metrics.objects["staged"] == 1

    run(story)


def test_marks_of_staged_objects_leave_room_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """The marks of all ranges stay for a whole turn, and for the grace."""
    monkeypatch.setattr("tidelog.broker.collect.collector.LISTED_MAX", 2)
    monkeypatch.setattr("tidelog.broker.collect.marks.MARKED_MAX", 4)
    monkeypatch.setattr("tidelog.broker.collect.collector.STAGED_MARKED_MAX", 2, raising=False)
    clock = ShiftedClock()
    store = MemoryStore(clock)
    here = world(store, staged_retention_ms=HOUR_MS)

    async def story() -> None:
        async with here.broker() as one:
            await loaded(one)
            for number in range(6):
                await store.put(staged_key(UUID(int=number)), b"old")
            clock.shift_ms = 3 * HOUR_MS
            await one.produce(batch(b"later"))
            await pass_by(one)
            collector = collections(one, store, grace_seconds=1000.0)
            await passes(collector, 3)
            await store.put("probe/left", b"")
            await passes(collector, 1)
            assert "probe/left" in collector.marks.objects.ages(0.0)

    run(story)


class StoreWithForeignFile(MemoryStore):
    """Somebody else has put an object there by a name that Tidelog's stores do not take."""

    async def list(self, prefix: str = "", start_after: str = "") -> AsyncIterator[ObjectMeta]:
        async for meta in super().list(prefix, start_after):
            yield meta
        if prefix == "staged/" and start_after < FOREIGN:
            yield ObjectMeta(FOREIGN, 1, "etag", 0)


FOREIGN = "staged/z\\z"


def test_a_staged_object_by_a_foreign_name_stays_and_ends_no_broker() -> None:
    clock = ShiftedClock()
    store = StoreWithForeignFile(clock)
    here = world(store, staged_retention_ms=HOUR_MS)

    async def story() -> None:
        async with here.broker() as one:
            await with_an_old_object(one, store, clock)
            collector = collections(one, store)
            await passes(collector, 3)
            assert await staged_in(store) == {FOREIGN}
            assert collector.metrics.objects["staged"] == 1

    run(story)


def test_foreign_objects_beside_staged_ones_and_images_stay_at_any_age() -> None:
    clock = ShiftedClock()
    store = MemoryStore(clock)
    here = world(store, staged_retention_ms=HOUR_MS)
    foreign = ["handover/notes.txt", "staged/notes.txt"]

    async def story() -> None:
        async with here.broker() as one:
            for key in foreign:
                await store.put(key, b"an operator's")
            await with_an_old_object(one, store, clock)
            collector = collections(one, store)
            await passes(collector, 3)
            assert await objects(store, "handover/") + await objects(store, "staged/") == foreign

    run(story)


def test_staged_objects_are_looked_at_in_turn_by_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidelog.broker.collect.collector.LISTED_MAX", 2)
    store = MemoryStore(ShiftedClock())
    here = world(store)

    async def story() -> None:
        sink = Sink(here)
        async with here.broker() as one:
            await loaded(one)
            topic_id = await one.create_topic()
            over = {await sink.stage(topic_id, 0, {0: [b"x"]}) for _ in range(5)}
            waiting = {await sink.stage(topic_id, 0, {0: [b"y"]}, sink="another") for _ in range(5)}
            await sink.commit(one, 0, {0: [await sink.stage(topic_id, 0, {0: [b"a"]})]})
            await flush(one)
            await pass_by(one)
            collector = collections(one, store)
            for _ in range(4):
                await passes(collector, 6)
                await pass_by(one)
            left = await staged_in(store)
            assert keys(*waiting) <= left
            assert not keys(*over) & left
            assert [v for v in await read(one) if v != b"more"] == [b"a"]

    run(story)
