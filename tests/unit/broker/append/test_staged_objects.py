"""Staged objects on a whole broker: which are adopted or refused, and the logs of their records."""

from __future__ import annotations

import asyncio
from uuid import UUID

import pytest

from tests.unit.broker.one_broker import TOPIC, batch, run, until
from tests.unit.broker.rolled import flush, hosted, rows
from tests.unit.broker.sink_world import NOW, SINK, ShiftedClock, Sink, world
from tests.unit.broker.transactional_client import SECOND, loaded, read
from tests.unit.bucket.bucket_world import atomic_values, checkpoint, opened, tail_values
from tests.unit.bucket.fsck.checked_bucket import checked
from tests.unit.wal.gated_store import GatedStore
from tidelog.broker.coordinate.transaction_admission import Wanted
from tidelog.bucket.views.atomic import atomic_view
from tidelog.client.transactions.errors import MustAbort
from tidelog.clock import SystemClock
from tidelog.coordinator.transaction.commands import Identity
from tidelog.errors import CorruptObject
from tidelog.identifiers import TopicPartition
from tidelog.protocol.error_codes import ErrorCode
from tidelog.records.compression import Compression
from tidelog.storage.stores.memory import MemoryStore
from tidelog.wal.log.adoption import staged_key


def places(topic_id: UUID, partitions: int) -> list[TopicPartition]:
    return [TopicPartition(topic_id, number) for number in range(partitions)]


def test_a_staged_object_that_is_too_old_is_refused() -> None:
    old = ShiftedClock(-3_000)
    here = world(MemoryStore(old), staged_retention_ms=2_000)

    async def story() -> None:
        async with here.broker() as one:
            await loaded(one)
            topic_id = await one.create_topic()
            sink = Sink(here)
            staged = await sink.stage(topic_id, 0, {0: [b"a"]})
            with pytest.raises(MustAbort, match=r"longer than staged\.retention\.ms"):
                await sink.commit(one, 0, {0: [staged]})
            old.shift_ms = 0
            again = await sink.stage(topic_id, 0, {0: [b"a"]})
            assert await sink.commit(one, 0, {0: [again]}) is NOW
            assert await read(one, committed=False) == [b"a"]

    run(story)


def test_a_damaged_missing_or_foreign_staged_object_is_refused_and_named() -> None:
    here = world()

    async def story() -> None:
        async with here.broker() as one:
            await loaded(one)
            topic_id = await one.create_topic(partitions=2)
            sink = Sink(here)
            good = await sink.stage(topic_id, 0, {0: [b"a"]})
            spoilt = []
            whole = bytearray((await here.store.get(staged_key(good))).data)
            for position in (9, 40, 60, 130, 170, len(whole) - 100, len(whole) - 20):
                staged = await sink.stage(topic_id, 0, {0: [b"a"]})
                data = bytearray((await here.store.get(staged_key(staged))).data)
                data[position] ^= 1
                await here.store.put(staged_key(staged), bytes(data))
                spoilt.append(staged)
            cut = await sink.stage(topic_id, 0, {0: [b"a"]})
            await here.store.put(staged_key(cut), bytes(whole[:-7]))
            gone = await sink.stage(topic_id, 0, {0: [b"a"]})
            await here.store.delete(staged_key(gone))
            elsewhere = await sink.stage(topic_id, 0, {1: [b"a"]})
            foreign = await sink.stage(topic_id, 0, {0: [b"a"]}, sink="other")
            for bad in (*spoilt, cut, gone, elsewhere, foreign):
                with pytest.raises(MustAbort, match=str(bad)):
                    await sink.commit(one, 0, {0: [good, bad]})
            with pytest.raises(MustAbort, match="or one twice"):
                await sink.commit(one, 0, {0: [good, good]})
            log = hosted(one).log
            assert await read(one, committed=False) == []
            assert not list(log.extents.adopted())
            assert await sink.commit(one, 0, {0: [good]}) is NOW

    run(story)


def test_a_topic_with_its_own_times_keys_or_small_batches_refuses_staged_objects() -> None:
    here = world()

    async def story() -> None:
        async with here.broker() as one:
            await loaded(one)
            sink = Sink(here)
            topic_id = await one.create_topic(message_timestamp_type="LogAppendTime")
            staged = await sink.stage(topic_id, 0, {0: [b"a"]})
            with pytest.raises(MustAbort, match="uses log append time"):
                await sink.commit(one, 0, {0: [staged]})
            await one.delete_topic(topic_id)
            topic_id = await one.create_topic(max_message_bytes="100")
            staged = await sink.stage(topic_id, 0, {0: [b"a" * 200]}, compression=Compression.NONE)
            with pytest.raises(MustAbort, match="MESSAGE_TOO_LARGE"):
                await sink.commit(one, 0, {0: [staged]})

    run(story)


def test_adopted_records_are_rolled_with_their_transaction_and_read_again_from_the_table() -> None:
    here = world()

    async def story() -> None:
        sink = Sink(here)
        async with here.broker(politely=False) as one:
            await loaded(one)
            topic_id = await one.create_topic(retention_ms="-1")
            await one.produce(batch(b"before"))
            first = await sink.stage(topic_id, 0, {0: [b"a", b"b"]}, batch_bytes=1)
            assert await sink.commit(one, 0, {0: [first]}) is NOW
            aborted = await sink.stage(topic_id, 1, {0: [b"x"]})
            async with sink.producer(one) as producer:
                await producer.adopt(TOPIC, 0, [aborted])
                await producer.abort()
            second = await sink.stage(topic_id, 1, {0: [b"c"]})
            assert await sink.commit(one, 1, {0: [second]}) is NOW
            await flush(one)
            found = await rows(here.store, topic_id)
            assert [row["value"] for row in found] == [b"before", b"a", b"b", b"c"]
            ordinals = [row["transaction"] for row in found]
            assert ordinals[0] is None
            assert ordinals[1] == ordinals[2] < ordinals[3]
            assert len({row["producer_id"] for row in found[1:]}) == 1
            assert await read(one) == [b"before", b"a", b"b", b"c"]
        for each in (first, second, aborted):
            await here.store.delete(staged_key(each))
        async with here.broker() as two:
            await loaded(two)
            assert await read(two) == [b"before", b"a", b"b", b"c"]

    run(story)


def test_a_bucket_shows_adopted_records_without_a_broker_and_fsck_finds_it_sound() -> None:
    here = world()

    async def story() -> None:
        sink = Sink(here)
        async with here.broker() as one:
            await loaded(one)
            topic_id = await one.create_topic(partitions=2)
            staged = await sink.stage(topic_id, 0, {0: [b"a", b"b"], 1: [b"c"]}, batch_bytes=1)
            bucket = await opened(here.store)
            async with sink.producer(one) as producer:
                await producer.adopt(TOPIC, 0, [staged])
                view = await bucket.view(TOPIC)
                assert await tail_values(bucket, view.of_topic(topic_id)[0]) == []
                atomic = await atomic_view(bucket, TOPIC)
                assert await atomic_values(bucket, atomic, places(topic_id, 2)[0]) == []
                await producer.adopt(TOPIC, 1, [staged])
                await producer.commit()
            for after in (None, checkpoint):
                if after is not None:
                    await after(one)
                bucket = await opened(here.store)
                view = await bucket.view(TOPIC)
                zero, other = view.of_topic(topic_id)
                assert await tail_values(bucket, zero) == [b"a", b"b"]
                assert await tail_values(bucket, other) == [b"c"]
                found = [each async for each in bucket.tails.rows(zero)]
                (ordinal,) = {n for r in found for n in r.column("transaction").to_pylist()}
                assert ordinal is not None
                atomic = await atomic_view(bucket, TOPIC)
                values = [
                    await atomic_values(bucket, atomic, place) for place in places(topic_id, 2)
                ]
                assert values == [[b"a", b"b"], [b"c"]]
                assert (await checked(here.store)).faults == []
            key = staged_key(staged)
            data = bytearray((await here.store.get(key)).data)
            data[60] ^= 1
            await here.store.put(key, bytes(data))
            assert key in str((await checked(here.store)).faults)
            assert (await one.fetch()).error_code in (0, ErrorCode.KAFKA_STORAGE_ERROR)
            await here.store.delete(key)
            assert key in str((await checked(here.store)).faults)

    run(story)


def test_a_staged_object_that_is_lost_stops_the_roll_of_its_partition_and_is_named(
    caplog: pytest.LogCaptureFixture,
) -> None:
    here = world()

    async def story() -> None:
        sink = Sink(here)
        async with here.broker(politely=False) as one:
            await loaded(one)
            topic_id = await one.create_topic(partitions=2)
            staged = await sink.stage(topic_id, 0, {0: [b"a"]})
            assert await sink.commit(one, 0, {0: [staged]}) is NOW
            await one.produce(batch(b"other"), 1)
        async with here.broker(politely=False) as two:
            await loaded(two)
            # An adopted batch has the age of its staged object.
            assert "age is unknown" not in caplog.text
            await here.store.delete(staged_key(staged))
            with pytest.raises(CorruptObject, match=staged_key(staged)):
                await flush(two)
            found = await two.fetch()
            assert found.error_code == ErrorCode.KAFKA_STORAGE_ERROR
            await flush(two, 1)
            assert await read(two, 1) == [b"other"]

    run(story)


def test_an_adopt_that_never_became_durable_is_gone_with_its_broker() -> None:
    store = GatedStore(MemoryStore(SystemClock()))
    store.open()
    here = world(store)

    async def story() -> None:
        sink = Sink(here)
        async with here.broker(politely=False) as one:
            await loaded(one)
            topic_id = await one.create_topic()
            staged = await sink.stage(topic_id, 0, {0: [b"a", b"b"]}, batch_bytes=1)
            async with sink.producer(one) as producer:
                wanted = Wanted(SINK, Identity(*producer.identity), SECOND)
                store.hold("wal/")
                adopt = asyncio.create_task(
                    one.broker.coordination.adopter.adopt(hosted(one), wanted, [staged])
                )
                await until(lambda: hosted(one).log.next_offset == 2)
        await asyncio.gather(adopt, return_exceptions=True)
        store.open()
        async with here.broker() as two:
            await loaded(two)
            assert hosted(two).log.next_offset == 0
            assert await sink.commit(two, 0, {0: [staged]}) is NOW
            assert await read(two) == [b"a", b"b"]

    run(story)
