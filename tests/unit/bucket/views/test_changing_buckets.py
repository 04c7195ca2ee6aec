"""A bucket that changes while it is read: views read on, look again, or name the missing object."""

from __future__ import annotations

import pytest

from tests.unit.broker.collections import hold_tenure_reports
from tests.unit.broker.one_broker import TOPIC, batch, run
from tests.unit.bucket.bucket_world import (
    WatchedStore,
    all_values,
    checkpoint,
    opened,
    roll_and_checkpoint,
    tail_values,
    world,
)
from tidelog.bucket.views.bucket import Bucket
from tidelog.bucket.views.reading import NoSuchTopic
from tidelog.clock import SystemClock
from tidelog.entropy import SeededEntropy
from tidelog.errors import CorruptObject, MissingObject
from tidelog.identifiers import Slot, TopicPartition
from tidelog.storage.object_store import StoreNotApplied
from tidelog.wal.format.object_format import wal_key
from tidelog.wal.write.checkpoint import newest_checkpoint
from tidelog.workers.offload import InlineOffload


class LateClock(SystemClock):
    """A clock as late as its test sets it."""

    late_seconds = 0.0

    def monotonic(self) -> float:
        return super().monotonic() + self.late_seconds


@pytest.mark.parametrize("table_first", [True, False])
def test_a_table_that_is_too_old_for_the_base_is_read_again(table_first: bool) -> None:
    # Between the reads of the table and of the bases, the tail is rolled, and a checkpoint drops it
    # (G1).
    here = world()

    async def story() -> None:
        async with here.broker() as broker:
            topic_id = await broker.create_topic()
            await broker.produce(batch(b"a", b"b"))
            store = WatchedStore(here.store)
            bucket = await opened(store)
            done = []

            async def interfere(_: int, key: str) -> None:
                place = "cluster/log/" if table_first else "wal/"
                if not done and key.startswith(place) and store.requests[-2:-1] != []:
                    read = [each for each in store.requests if each.startswith("topics/")]
                    if read:
                        done.append(key)
                        await roll_and_checkpoint(here.store, broker)

            store.before = interfere
            view = (await bucket.view(TOPIC)).partition(TopicPartition(topic_id, 0))
            assert done
            assert await all_values(bucket, view) == [b"a", b"b"]

    run(story)


def test_a_view_survives_any_roll_checkpoint_and_restart_between_two_of_its_requests() -> None:
    async def story(step: int) -> int:
        here = world()
        async with here.broker(politely=False) as broker:
            topic_id = await broker.create_topic()
            await broker.produce(batch(b"a", b"b"))
        store = WatchedStore(here.store)
        bucket = await opened(store)

        async def interfere(number: int, key: str) -> None:
            if number == step:
                async with here.broker() as successor:
                    await roll_and_checkpoint(here.store, successor)
                    await successor.produce(batch(b"c"))

        store.requests.clear()
        store.before = interfere
        view = (await bucket.view(TOPIC)).partition(TopicPartition(topic_id, 0))
        requests = len(store.requests)
        store.before = None
        found = await all_values(bucket, view)
        assert found in ([b"a", b"b"], [b"a", b"b", b"c"])
        return requests

    async def stories() -> None:
        step = 0
        while step < await story(step):
            step += 1
        assert step > 5

    run(stories)


def test_a_view_survives_the_deletion_of_slots_rolled_meanwhile() -> None:
    # As if the grace had passed between two requests: listed objects are gone (F4).
    async def story(step: int) -> int:
        here = world()
        async with here.broker(politely=False) as broker:
            topic_id = await broker.create_topic()
            for value in (b"a", b"b", b"c"):
                await broker.produce(batch(value))
            store = WatchedStore(here.store)
            bucket = await opened(store)

            async def interfere(number: int, _: str) -> None:
                if number == step:
                    await roll_and_checkpoint(here.store, broker)
                    floor = await newest_checkpoint(
                        here.store, broker.broker.membership.incarnation
                    )
                    for slot in range(floor or 0):
                        key = wal_key(broker.broker.membership.incarnation, Slot(slot))
                        await here.store.delete(key)

            store.requests.clear()
            store.before = interfere
            view = (await bucket.view(TOPIC)).partition(TopicPartition(topic_id, 0))
            try:
                found = await all_values(bucket, view)
            except MissingObject:
                view = (await bucket.view(TOPIC)).partition(TopicPartition(topic_id, 0))
                found = await all_values(bucket, view)
            assert found == [b"a", b"b", b"c"]
            return len(store.requests)

    async def stories() -> None:
        step = 0
        while step < await story(step):
            step += 1
        assert step > 10

    run(stories)


def test_a_missing_object_is_looked_for_again_and_then_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    hold_tenure_reports(monkeypatch)
    here = world()

    async def story() -> None:
        async with here.broker(politely=False) as broker:
            topic_id = await broker.create_topic(partitions=2)
            await broker.produce(batch(b"a"), 0)
            await checkpoint(broker)
            await broker.produce(batch(b"b"), 1)
        async with here.broker():
            pass
        [lost] = [
            meta.key async for meta in here.store.list("wal/0-1/") if meta.key.endswith("1.wal")
        ]
        await here.store.delete(lost)
        async with here.broker():
            pass
        bucket = await opened(here.store)
        found = await bucket.view(TOPIC)
        assert {each.key for each in found.failures.values()} == {lost}
        with pytest.raises(CorruptObject, match=lost):
            found.partition(TopicPartition(topic_id, 1))

    run(story)


def test_a_tail_names_its_missing_object() -> None:
    here = world()

    async def story() -> None:
        async with here.broker() as broker:
            topic_id = await broker.create_topic()
            await broker.produce(batch(b"a"))
            bucket = await opened(here.store)
            view = (await bucket.view(TOPIC)).partition(TopicPartition(topic_id, 0))
            (key,) = view.tail.keys
            data = bytearray((await here.store.get(key)).data)
            await here.store.delete(key)
            with pytest.raises(MissingObject, match=key):
                await tail_values(bucket, view)
            data[view.tail[0].position + 30] ^= 1
            await here.store.put(key, data)
            with pytest.raises(CorruptObject, match=key):
                await tail_values(bucket, view)

    run(story)


def test_a_bucket_that_was_left_alone_or_met_damage_looks_anew() -> None:
    here = world()

    async def story() -> None:
        async with here.broker() as broker:
            bucket = await opened(here.store)
            await broker.create_topic()
            key = f"cluster/log/{broker.broker.membership.metadata.state.sequence:020d}.json"
            whole = (await here.store.get(key)).data
            await here.store.put(key, b"damaged")
            with pytest.raises(CorruptObject, match=key):
                await bucket.refresh()
            assert bucket.state.topics == {}
            await here.store.put(key, whole)
            assert len((await bucket.refresh()).topics) == 1

    run(story)


def test_a_bucket_that_is_read_too_slowly_says_so_and_is_read_when_it_is_faster() -> None:
    """Answers that are later than half the grace prove nothing (A2)."""
    here, clock = world(), LateClock()

    async def story() -> None:
        async with here.broker() as broker:
            watched = WatchedStore(here.store)
            bucket = Bucket.unread(watched, clock, SeededEntropy(7), InlineOffload())

            async def be_slow(number: int, key: str) -> None:
                clock.late_seconds += 301

            for topics in range(2):
                watched.before = be_slow
                with pytest.raises(StoreNotApplied, match=r"half of log\.delete\.grace\.ms"):
                    await bucket.refresh()
                watched.before = None
                assert len((await bucket.refresh()).topics) == topics
                await broker.create_topic(f"topic-{topics}")

    run(story)


def test_a_topic_that_is_deleted_while_it_is_read_is_left_out() -> None:
    here = world()

    async def story() -> None:
        async with here.broker() as broker:
            topic_id = await broker.create_topic()
            await broker.produce(batch(b"a"))
            store = WatchedStore(here.store)
            bucket = await opened(store)

            async def delete(_: int, key: str) -> None:
                if key.startswith("topics/"):
                    store.before = None
                    await broker.delete_topic(topic_id)

            store.before = delete
            found = await bucket.view(TOPIC)
            assert not found.partitions
            assert not found.failures
            with pytest.raises(NoSuchTopic, match="deleted"):
                found.partition(TopicPartition(topic_id, 0))

    run(story)
