"""The exactly-once sink (H7 to H9) on a whole broker: commits that are repeated, run twice, die
anywhere or wake up too late, and staged objects that cannot be adopted."""

from __future__ import annotations

import asyncio
from functools import partial
from uuid import UUID

import pytest

from tests.unit.broker.one_broker import TOPIC, batch, run
from tests.unit.broker.roll.test_roller import until
from tests.unit.broker.rolled import KillAt, Killed, flush, hosted, rows
from tests.unit.broker.sink_world import SINK, ShiftedClock, Sink, client_of, world
from tests.unit.broker.transactional_client import SECOND, loaded, read
from tests.unit.bucket.bucket_world import atomic_values, checkpoint, opened, tail_values
from tests.unit.bucket.fsck.test_fsck import checked
from tests.unit.wal.gated_store import GatedStore
from tidelog.broker.append.adopter import Adopted, AdoptFailed
from tidelog.broker.coordinate.transaction_admission import Wanted
from tidelog.bucket.views.atomic import atomic_view
from tidelog.client.groups.admin import Place
from tidelog.client.transactions.calls import TransactionCalls
from tidelog.client.transactions.errors import MustAbort, ProducerFenced
from tidelog.client.transactions.settings import TransactionVersion
from tidelog.client.transactions.sink import PROGRESS, ForeignQuery, SinkCommitted
from tidelog.clock import SystemClock
from tidelog.coordinator.transaction.commands import Identity
from tidelog.crash_points import CrashPoint
from tidelog.errors import CorruptObject
from tidelog.identifiers import TopicPartition
from tidelog.protocol.error_codes import ErrorCode
from tidelog.records.batch import iterate_batches
from tidelog.records.compression import Compression
from tidelog.storage.stores.memory import MemoryStore
from tidelog.wal.log.adoption import staged_key

NOW, BEFORE = SinkCommitted.NOW, SinkCommitted.BEFORE


def test_a_batch_is_seen_all_at_once_and_only_when_it_is_committed() -> None:
    here = world()

    async def story() -> None:
        async with here.broker() as one:
            await loaded(one)
            topic_id = await one.create_topic(partitions=2)
            sink = Sink(here)
            first = await sink.stage(topic_id, 0, {0: [b"a", b"b"], 1: [b"c"]})
            second = await sink.stage(topic_id, 0, {0: [b"d"]})
            async with sink.producer(one) as producer:
                assert await producer.adopt(TOPIC, 0, [first, second]) == 3
                assert await producer.adopt(TOPIC, 1, [first]) == 1
                assert await read(one, 0) == await read(one, 1) == []
                assert await read(one, 0, committed=False) == [b"a", b"b", b"d"]
                await producer.send_offsets(SINK, {PROGRESS: 0}, metadata="query-1")
                await producer.commit()
            assert await read(one, 0) == [b"a", b"b", b"d"]
            assert await read(one, 1) == [b"c"]
            found = await one.fetch()
            headers = [header for _, header in iterate_batches(b"".join(found.records))]
            assert [each.base_offset for each in headers] == [0, 2, 3]
            assert {each.leader_epoch for each in headers} == {0}
            assert [each.is_transactional for each in headers] == [True] * 3
            assert {each.base_sequence for each in headers[:2]} == {-1}
            assert len({each.producer_id for each in headers}) == 1
            # A time is found in them too.
            assert (await one.offsets(1001)).offset == 1

    run(story)


def test_a_commit_that_is_repeated_changes_nothing() -> None:
    here = world()

    async def story() -> None:
        async with here.broker() as one:
            await loaded(one)
            topic_id = await one.create_topic()
            sink = Sink(here)
            staged = await sink.stage(topic_id, 0, {0: [b"a"]})
            again = await sink.stage(topic_id, 0, {0: [b"a"]})
            assert await sink.commit(one, 0, {0: [staged]}) is NOW
            assert await sink.commit(one, 0, {0: [staged]}) is BEFORE
            # Another attempt of the batch has staged it anew.
            assert await sink.commit(one, 0, {0: [again]}) is BEFORE
            following = await sink.stage(topic_id, 1, {0: [b"b"]})
            assert await sink.commit(one, 1, {0: [following]}) is NOW
            # A driver that is behind.
            assert await sink.commit(one, 0, {0: [again]}) is BEFORE
            assert await read(one) == [b"a", b"b"]

    run(story)


def test_a_batch_without_rows_is_committed_too() -> None:
    here = world()

    async def story() -> None:
        async with here.broker() as one:
            await loaded(one)
            assert await Sink(here).commit(one, 5, {}) is NOW
            assert await Sink(here).commit(one, 5, {}) is BEFORE

    run(story)


def test_of_commit_calls_at_once_one_takes_effect() -> None:
    here = world()

    async def story() -> None:
        async with here.broker() as one:
            await loaded(one)
            topic_id = await one.create_topic(partitions=2)
            sinks = [Sink(here, seed) for seed in range(4)]
            staged = [await s.stage(topic_id, 0, {0: [b"a"], 1: [b"b"]}) for s in sinks]
            found = await asyncio.gather(
                *(
                    sink.commit(one, 0, {0: [each], 1: [each]})
                    for sink, each in zip(sinks, staged, strict=True)
                ),
                return_exceptions=True,
            )
            assert found.count(NOW) <= 1
            assert all(
                each in (NOW, BEFORE) or isinstance(each, ProducerFenced | MustAbort)
                for each in found
            ), found
            await sinks[0].commit(one, 0, {0: [staged[0]], 1: [staged[0]]})
            assert (await read(one, 0), await read(one, 1)) == ([b"a"], [b"b"])

    run(story)


def test_a_call_that_wakes_up_in_the_next_batch_adds_nothing() -> None:
    here = world()

    async def story() -> None:
        async with here.broker() as one:
            await loaded(one)
            topic_id = await one.create_topic()
            sink = Sink(here)
            staged = await sink.stage(topic_id, 0, {0: [b"a"]})
            following = await sink.stage(topic_id, 1, {0: [b"b"]})
            async with sink.producer(one) as zombie:
                await zombie.adopt(TOPIC, 0, [staged])
                assert await sink.commit(one, 0, {0: [staged]}) is NOW
                async with sink.producer(one) as present:
                    await present.adopt(TOPIC, 0, [following])
                    with pytest.raises((ProducerFenced, MustAbort)):
                        await zombie.adopt(TOPIC, 0, [staged])
                    with pytest.raises((ProducerFenced, MustAbort)):
                        await zombie.send_offsets(SINK, {PROGRESS: 0}, metadata="query-1")
                    with pytest.raises((ProducerFenced, MustAbort)):
                        await zombie.commit()
                    await present.send_offsets(SINK, {PROGRESS: 1}, metadata="query-1")
                    await present.commit()
            assert await read(one) == [b"a", b"b"]

    run(story)


def test_an_adopt_behind_the_end_of_its_own_transaction_begins_no_other() -> None:
    here = world()

    async def story() -> None:
        async with here.broker() as one:
            await loaded(one)
            topic_id = await one.create_topic()
            sink = Sink(here)
            staged = await sink.stage(topic_id, 0, {0: [b"a"]})
            async with sink.producer(one) as producer:
                spent = producer.identity
                await producer.adopt(TOPIC, 0, [staged])
                await producer.commit()
                assert producer.identity != spent
                with pytest.raises(Exception, match=r"EPOCH|FENCED"):
                    await producer._calls.adopt(spent, Place(TOPIC, 0), [staged])
            assert await read(one, committed=False) == [b"a"]

    run(story)


@pytest.mark.parametrize("politely", [False, True])
@pytest.mark.parametrize("steps", range(4))
def test_a_broker_and_a_call_that_die_at_any_step_leave_a_batch_that_can_be_committed(
    steps: int, politely: bool
) -> None:
    here = world()

    async def story() -> None:
        sink = Sink(here)
        async with here.broker(politely=politely) as one:
            await loaded(one)
            topic_id = await one.create_topic(partitions=2)
            staged = await sink.stage(topic_id, 0, {0: [b"a", b"b"], 1: [b"c"]}, batch_bytes=1)
            async with sink.producer(one) as producer:
                if steps > 0:
                    await producer.adopt(TOPIC, 0, [staged])
                if steps > 1:
                    await producer.adopt(TOPIC, 1, [staged])
                if steps > 2:
                    await producer.send_offsets(SINK, {PROGRESS: 0}, metadata="query-1")
        async with here.broker(politely=politely) as two:
            await loaded(two)
            assert await read(two, 0) == await read(two, 1) == []
            assert await sink.commit(two, 0, {0: [staged], 1: [staged]}) is NOW
            assert (await read(two, 0), await read(two, 1)) == ([b"a", b"b"], [b"c"])
        async with here.broker() as three:
            await loaded(three)
            assert await sink.commit(three, 0, {0: [staged], 1: [staged]}) is BEFORE
            assert (await read(three, 0), await read(three, 1)) == ([b"a", b"b"], [b"c"])

    run(story)


@pytest.mark.parametrize(
    "point",
    [
        CrashPoint.SINK_FENCED,
        CrashPoint.SINK_ADOPTED,
        CrashPoint.SINK_NUMBERED,
        CrashPoint.SINK_COMMITTED,
        CrashPoint.SINK_FOUND,
    ],
)
def test_a_call_that_dies_between_any_two_steps_leaves_a_batch_that_is_committed_once(
    point: CrashPoint,
) -> None:
    here = world()
    is_done = point in (CrashPoint.SINK_COMMITTED, CrashPoint.SINK_FOUND)

    async def story() -> None:
        async with here.broker() as one:
            await loaded(one)
            topic_id = await one.create_topic(partitions=2)
            sink = Sink(here)
            staged = await sink.stage(topic_id, 0, {0: [b"a"], 1: [b"b"]})
            commit = partial(sink.commit, one, 0, {0: [staged], 1: [staged]})
            if point is CrashPoint.SINK_FOUND:
                assert await commit() is NOW
            with pytest.raises(Killed):
                await commit(crash_points=KillAt(point))
            seen = ([b"a"], [b"b"]) if is_done else ([], [])
            assert (await read(one, 0), await read(one, 1)) == seen
            assert await commit() is (BEFORE if is_done else NOW)
            assert (await read(one, 0), await read(one, 1)) == ([b"a"], [b"b"])

    run(story)


def test_an_adopt_whose_answer_is_lost_is_recognised_also_by_a_successor() -> None:
    here = world()

    async def story() -> None:
        sink = Sink(here)
        async with here.broker(politely=False) as one:
            await loaded(one)
            topic_id = await one.create_topic()
            staged = await sink.stage(topic_id, 0, {0: [b"a", b"b"]}, batch_bytes=1)
            more = await sink.stage(topic_id, 0, {0: [b"c"]})
            async with sink.producer(one) as producer:
                assert await producer.adopt(TOPIC, 0, [staged]) == 2
                assert await producer.adopt(TOPIC, 0, [staged]) == 0
                identity = producer.identity
        async with here.broker() as two, client_of(two) as client:
            await loaded(two)
            calls = TransactionCalls(client, SINK, 60_000)
            calls.version = TransactionVersion.V2
            assert await calls.adopt(identity, Place(TOPIC, 0), [staged]) == 0
            assert await calls.adopt(identity, Place(TOPIC, 0), [staged, more]) == 1
            assert (await calls.end(identity, committed=True)).error_code == ErrorCode.NONE
            assert await read(two) == [b"a", b"b", b"c"]

    run(story)


def test_an_adopt_that_is_cut_off_is_waited_for_before_the_next_is_served() -> None:
    """The slot with it is on its way: it is neither lost nor made twice."""
    store = GatedStore(MemoryStore(SystemClock()))
    store.open()
    here = world(store)

    async def story() -> None:
        async with here.broker() as one:
            await loaded(one)
            topic_id = await one.create_topic()
            sink = Sink(here)
            staged = await sink.stage(topic_id, 0, {0: [b"a"]})
            async with sink.producer(one) as producer:
                wanted = Wanted(SINK, Identity(*producer.identity), SECOND)
                adopt = partial(
                    one.broker.coordination.adopter.adopt, hosted(one), wanted, [staged]
                )
                store.hold("wal/")
                first = asyncio.create_task(adopt())
                await until(lambda: hosted(one).log.next_offset == 1)
                first.cancel()
                await asyncio.gather(first, return_exceptions=True)
                found = await adopt()
                assert isinstance(found, AdoptFailed)
                assert found.code is ErrorCode.CONCURRENT_TRANSACTIONS
                store.open()
                await until(lambda: hosted(one).log.high_watermark == 1)
                await asyncio.sleep(0)
                assert await adopt() == Adopted(-1, 0)
                await producer.adopt(TOPIC, 0, [staged])
                await producer.commit()
            assert await read(one) == [b"a"]

    run(story)


def test_another_query_may_not_use_the_transactional_id() -> None:
    here = world()

    async def story() -> None:
        async with here.broker() as one:
            await loaded(one)
            topic_id = await one.create_topic()
            sink = Sink(here)
            staged = await sink.stage(topic_id, 3, {0: [b"a"]})
            assert await sink.commit(one, 3, {0: [staged]}) is NOW
            with pytest.raises(ForeignQuery, match="belongs to query query-1, which has committed"):
                await sink.commit(one, 4, {0: [staged]}, query="query-2")

    run(story)


def places(topic_id: UUID, partitions: int) -> list[TopicPartition]:
    return [TopicPartition(topic_id, number) for number in range(partitions)]


def test_what_was_staged_too_long_ago_is_refused() -> None:
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


def test_what_is_damaged_or_missing_or_of_others_is_refused_whole_and_named() -> None:
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


def test_a_topic_that_dates_its_records_itself_or_wants_keys_or_small_batches_says_so() -> None:
    here = world()

    async def story() -> None:
        async with here.broker() as one:
            await loaded(one)
            sink = Sink(here)
            topic_id = await one.create_topic(message_timestamp_type="LogAppendTime")
            staged = await sink.stage(topic_id, 0, {0: [b"a"]})
            with pytest.raises(MustAbort, match="dates its records itself"):
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
            topic_id = await one.create_topic()
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
            # The age of what was adopted is that of the staged object.
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
