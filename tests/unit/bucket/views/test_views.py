"""What the bucket alone shows of partitions, beside a running broker and after its death."""

from __future__ import annotations

import pickle
from uuid import UUID

import pytest

from tests.unit.broker.collections import hold_openings
from tests.unit.broker.one_broker import TOPIC, OneBroker, batch, run
from tests.unit.broker.transactional_client import TransactionalClient
from tests.unit.bucket.bucket_world import (
    WatchedStore,
    all_values,
    checkpoint,
    opened,
    roll,
    roll_and_checkpoint,
    tail_values,
    values_in,
    world,
)
from tidelog.bucket.views.bucket import Bucket
from tidelog.bucket.views.reading import NoSuchTopic
from tidelog.clock import SystemClock
from tidelog.entropy import SeededEntropy
from tidelog.errors import CorruptObject, InvalidConfiguration, MissingObject
from tidelog.identifiers import Slot, TopicPartition
from tidelog.offload import InlineOffload
from tidelog.protocol.error_codes import ErrorCode
from tidelog.records.batch import iterate_batches
from tidelog.records.records import decode_batch
from tidelog.storage.object_store import ObjectStore, StoreNotApplied
from tidelog.storage.stores.fsspec_store import FsspecStore
from tidelog.storage.stores.memory import MemoryStore
from tidelog.storage.table.table_state import NO_VERSION
from tidelog.wal.format.object_format import wal_key
from tidelog.wal.write.checkpoint import newest_checkpoint

OK = ErrorCode.NONE


class LateClock(SystemClock):
    """As late as it is made."""

    late_seconds = 0.0

    def monotonic(self) -> float:
        return super().monotonic() + self.late_seconds


async def some_history(broker: OneBroker) -> UUID:
    """Plain, committed, aborted and open; the last stable offset is below the end."""
    topic_id = await broker.create_topic()
    await broker.produce(batch(b"plain 1", b"plain 2"))
    committed = TransactionalClient(broker, "committed")
    aborted = TransactionalClient(broker, "aborted")
    opening = TransactionalClient(broker, "open")
    for client in (committed, aborted, opening):
        assert await client.init() is OK
    assert await committed.send(b"committed 1") is OK
    assert await aborted.send(b"aborted 1") is OK
    await broker.produce(batch(b"plain 3"))
    assert await committed.send(b"committed 2") is OK
    assert await committed.commit() is OK
    assert await aborted.abort() is OK
    assert await opening.send(b"open 1") is OK
    await broker.produce(batch(b"above"))
    return topic_id


COMMITTED = [b"plain 1", b"plain 2", b"committed 1", b"plain 3", b"committed 2"]


async def fetched_committed(broker: OneBroker) -> list[bytes]:
    """What a read_committed consumer makes of the broker's answer."""
    answer = await broker.fetch(0, committed=True)
    begins = sorted(
        (each.first_offset, each.producer_id) for each in answer.aborted_transactions or []
    )
    data = b"".join(map(bytes, answer.records or []))
    aborting: set[int] = set()
    found: list[bytes | None] = []
    for position, header in iterate_batches(data):
        while begins and begins[0][0] <= header.base_offset:
            aborting.add(begins.pop(0)[1])
        if header.is_control:
            aborting.discard(header.producer_id)
        elif not (header.is_transactional and header.producer_id in aborting):
            found += [record.value for record in decode_batch(data, position, header)]
    return [each for each in found if each is not None]


def test_a_view_beside_a_broker_and_after_its_death_says_what_the_broker_said() -> None:
    here = world()

    async def story() -> None:
        async with here.broker(politely=False) as broker:
            topic_id = await some_history(broker)
            log = broker.broker.writes.partitions.named(TOPIC, 0).log
            expected = (log.log_start, log.last_stable_offset, log.high_watermark)
            aborted = log.aborted_between(0, log.high_watermark)
            assert await fetched_committed(broker) == COMMITTED
            bucket = await opened(WatchedStore(here.store))
            for _ in range(2):
                found = await bucket.view(TOPIC)
                view = found.partition(TopicPartition(topic_id, 0))
                assert (view.log_start, view.last_stable_offset, view.high_watermark) == expected
                assert [each[:3] for each in aborted] == view.aborted
                assert list(view.open_transactions.values()) == [view.last_stable_offset]
                assert await tail_values(bucket, view) == COMMITTED
                assert await tail_values(bucket, view, committed=False) == [
                    *(b"plain 1", b"plain 2", b"committed 1", b"aborted 1", b"plain 3"),
                    *(b"committed 2", b"open 1", b"above"),
                ]
                await checkpoint(broker)
        found = await bucket.view(TOPIC)
        view = found.partition(TopicPartition(topic_id, 0))
        assert (view.log_start, view.last_stable_offset, view.high_watermark) == expected
        assert await tail_values(bucket, view) == COMMITTED
        assert (view.table_version, view.table_next, view.segments) == (NO_VERSION, 0, ())
        async with here.broker() as successor:
            assert await fetched_committed(successor) == COMMITTED

    run(story)


def test_rows_have_the_columns_of_segments_and_the_transactions_ordinal() -> None:
    here = world()

    async def story() -> None:
        async with here.broker() as broker:
            topic_id = await some_history(broker)
            bucket = await opened(here.store)
            view = (await bucket.view(TOPIC)).partition(TopicPartition(topic_id, 0))
            rows = [each async for each in bucket.tails.rows(view)]
            found = [row for each in rows for row in each.to_pylist()]
            assert [(row["offset"], row["transaction"]) for row in found] == [
                (0, None),
                (1, None),
                (2, 1),
                (4, None),
                (5, 1),
            ]
            assert found[0]["key"] == b"k0"
            assert found[0]["producer_id"] is None
            names = ["offset", "value"]
            few = [each async for each in bucket.tails.rows(view, 2, 5, columns=names)]
            assert [each.schema.names for each in few] == [names] * len(few)
            assert [row["offset"] for each in few for row in each.to_pylist()] == [2, 4]

    run(story)


def test_without_the_ordinals_a_tail_costs_one_read_an_object() -> None:
    here = world()

    async def story() -> None:
        async with here.broker() as broker:
            topic_id = await some_history(broker)
            store = WatchedStore(here.store)
            bucket = await opened(store)
            view = (await bucket.view(TOPIC)).partition(TopicPartition(topic_id, 0))
            objects = len({each.key for each in view.tail if each.base_offset < 5})
            store.requests.clear()
            found = [each async for each in bucket.tails.rows(view, 0, 5, columns=["value"])]
            assert found
            assert len(store.requests) == objects > 1

    run(story)


def test_what_was_rolled_comes_from_the_table_and_the_rest_from_the_tail() -> None:
    here = world()

    async def story() -> None:
        async with here.broker() as broker:
            topic_id = await some_history(broker)
            bucket = await opened(here.store)
            await roll(here.store)
            view = (await bucket.view(TOPIC)).partition(TopicPartition(topic_id, 0))
            assert view.table_next == view.last_stable_offset
            assert view.segments[0].segment.row_count == len(COMMITTED)
            assert await all_values(bucket, view) == COMMITTED
            await broker.produce(batch(b"later"))
            view = (await bucket.view(TOPIC)).partition(TopicPartition(topic_id, 0))
            assert await all_values(bucket, view) == COMMITTED
            assert view.table_next < view.high_watermark

    run(story)


def test_a_range_of_rows_and_few_columns_are_read_across_segments_and_tail() -> None:
    here = world()

    async def story() -> None:
        async with here.broker() as broker:
            topic_id = await broker.create_topic()
            for number in range(3):
                await broker.produce(batch(b"%d" % number, b"%d!" % number))
                if number < 2:
                    await roll(here.store)
            bucket = await opened(here.store)
            view = (await bucket.view(TOPIC)).partition(TopicPartition(topic_id, 0))
            assert len(view.segments) == 2
            found = [each async for each in bucket.rows(view, 1, 5, columns=["value"])]
            assert {each.schema.names[0] for each in found} == {"value"}
            assert values_in(found) == [b"0!", b"1", b"1!", b"2"]
            offsets = [each async for each in bucket.rows(view, 3, columns=["offset"])]
            assert [row for each in offsets for row in each.column(0).to_pylist()] == [3, 4, 5]
            assert [each async for each in bucket.rows(view, 6)] == []
            await here.store.delete(view.segments[0].segment.key(topic_id))
            with pytest.raises(MissingObject, match="partition=0"):
                await all_values(bucket, view)

    run(story)


@pytest.mark.parametrize("table_first", [True, False])
def test_a_table_that_is_too_old_for_the_base_is_read_again(table_first: bool) -> None:
    # Between the table and the bases, the tail is rolled and a checkpoint forgets it (G1).
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


def test_a_view_survives_the_deletion_of_what_was_rolled_meanwhile() -> None:
    # As if the grace had passed between two requests: what was listed is gone (F4).
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
    hold_openings(monkeypatch)
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


def test_a_tail_whose_object_is_gone_says_so() -> None:
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


def test_a_prefix_without_a_cluster_and_an_unknown_topic_are_refused() -> None:
    here = world()

    async def story() -> None:
        with pytest.raises(InvalidConfiguration, match="holds no cluster"):
            await opened(here.store)
        async with here.broker():
            bucket = await opened(here.store)
            with pytest.raises(NoSuchTopic, match="has no topic flights"):
                await bucket.view(TOPIC)

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
    """From answers that come later than half the grace nothing can be told (A2)."""
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


def test_many_topics_are_read_with_few_requests_a_topic() -> None:
    here = world()

    async def requests(topics: int) -> int:
        async with here.broker() as broker:
            names = [f"t{number}" for number in range(topics)]
            for name in names:
                if broker.broker.membership.metadata.state.topic_named(name) is None:
                    await broker.create_topic(name, partitions=4)
                await broker.produce(batch(b"x"), topic=name)
            store = WatchedStore(here.store)
            bucket = await opened(store)
            store.requests.clear()
            found = await bucket.view(*names)
            assert len(found.partitions) == 4 * topics
            return len([each for each in store.requests if each.startswith("topics/")])

    async def story() -> None:
        few, many = await requests(2), await requests(20)
        # The hint, the first commit and a listing for each table, which has none yet.
        assert (few, many) == (3 * 2, 3 * 20)

    run(story)


def test_a_view_can_be_sent_to_another_process() -> None:
    here = world()

    async def story() -> None:
        async with here.broker() as broker:
            topic_id = await some_history(broker)
            await roll(here.store)
            bucket = await opened(here.store)
            view = (await bucket.view(TOPIC)).partition(TopicPartition(topic_id, 0))
            received = pickle.loads(pickle.dumps(view))
            assert received == view
            assert await all_values(bucket, received) == COMMITTED

    run(story)


def test_a_bucket_is_read_through_fsspec() -> None:
    here = world()

    async def story() -> None:
        async with here.broker() as broker:
            topic_id = await some_history(broker)
        store: ObjectStore = await _copied(here.store)
        bucket = await opened(store)
        view = (await bucket.view(TOPIC)).partition(TopicPartition(topic_id, 0))
        assert await tail_values(bucket, view) == COMMITTED
        await store.close()

    run(story)


async def _copied(store: ObjectStore) -> FsspecStore:
    copy = FsspecStore("memory://view")
    assert isinstance(store, MemoryStore)
    async for meta in store.list():
        data = bytes((await store.get(meta.key)).data)
        copy._filesystem.pipe_file(copy._path(meta.key), data)
    return copy
