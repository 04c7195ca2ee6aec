"""Views of partitions from the bucket alone, beside a running broker and after its death."""

from __future__ import annotations

import pickle
from uuid import UUID

import pytest

from tests.unit.broker.one_broker import TOPIC, OneBroker, batch, run
from tests.unit.broker.transactional_client import TransactionalClient
from tests.unit.bucket.bucket_world import (
    WatchedStore,
    all_values,
    checkpoint,
    opened,
    roll,
    tail_values,
    values_in,
    world,
)
from tidelog.bucket.views.reading import NoSuchTopic
from tidelog.errors import InvalidConfiguration, MissingObject
from tidelog.identifiers import TopicPartition
from tidelog.protocol.error_codes import ErrorCode
from tidelog.records.batch import iterate_batches
from tidelog.records.compression import Compression
from tidelog.records.records import NewRecord, decode_batch, encode_batch
from tidelog.storage.object_store import ObjectStore
from tidelog.storage.stores.fsspec_store import FsspecStore
from tidelog.storage.stores.memory import MemoryStore
from tidelog.storage.table.table_state import NO_VERSION

OK = ErrorCode.NONE


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
    """The values that a read_committed consumer takes from the broker's answer."""
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


def test_a_view_agrees_with_a_broker_beside_it_and_after_its_death() -> None:
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


def test_rolled_records_come_from_the_table_and_the_others_from_the_tail() -> None:
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


def test_a_tail_has_every_batch_that_a_broker_accepts() -> None:
    here = world()

    async def story() -> None:
        async with here.broker() as broker:
            topic_id = await broker.create_topic()
            records = [NewRecord(b"x" * 1_000_000) for _ in range(80)]
            answer = await broker.produce(encode_batch(records, compression=Compression.ZSTD))
            assert answer.error_code == OK
            bucket = await opened(here.store)
            view = (await bucket.view(TOPIC)).partition(TopicPartition(topic_id, 0))
            assert list(map(len, await tail_values(bucket, view))) == [1_000_000] * 80

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
        # For each table, which does not exist yet: the hint, the first commit and a listing.
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
