"""The exactly-once sink (H7 to H9) on a whole broker: commits that are repeated, run twice, die
anywhere or wake up too late."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from functools import partial

import pytest

from tests.unit.broker.one_broker import TOPIC, run, until
from tests.unit.broker.rolled import KillAt, Killed, hosted
from tests.unit.broker.sink_world import BEFORE, NOW, SINK, Sink, client_of, world
from tests.unit.broker.transactional_client import SECOND, loaded, read
from tests.unit.wal.gated_store import GatedStore
from tidelog.broker.append.adopter import Adopted, AdoptFailed
from tidelog.broker.coordinate.transaction_admission import Admission, Wanted
from tidelog.broker.partitions.partitions import Partition
from tidelog.client.groups.admin import Place
from tidelog.client.transactions.calls import TransactionCalls
from tidelog.client.transactions.errors import MustAbort, ProducerFenced
from tidelog.client.transactions.settings import TransactionVersion
from tidelog.client.transactions.sink import PROGRESS, ForeignQuery
from tidelog.clock import SystemClock
from tidelog.coordinator.transaction.commands import Identity
from tidelog.crash_points import CrashPoint
from tidelog.identifiers import ProducerEpoch
from tidelog.protocol.error_codes import ErrorCode
from tidelog.records.batch import iterate_batches
from tidelog.storage.stores.memory import MemoryStore


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
            # Look-ups by time find the records too.
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
            # A second attempt at the batch has staged another object.
            assert await sink.commit(one, 0, {0: [again]}) is BEFORE
            following = await sink.stage(topic_id, 1, {0: [b"b"]})
            assert await sink.commit(one, 1, {0: [following]}) is NOW
            # A driver that is behind commits an earlier batch.
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


def test_one_of_several_simultaneous_commit_calls_takes_effect() -> None:
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
    """The slot of the batch is on its way: the batch is neither lost nor appended twice."""
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


class _Admitting:
    """A coordinator elsewhere that admits the producer's next transaction."""

    async def admit(
        self, wanted: Wanted, partitions: Sequence[Partition]
    ) -> Mapping[Partition, Admission]:
        return dict.fromkeys(partitions, Admission(ErrorCode.NONE, ordinal=2))


def test_a_superseded_leader_takes_no_adoption_of_an_aborted_transaction_for_one_of_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It has not seen the abort. A commit call that is repeated adopts the same objects again, and
    would commit without their rows."""
    here = world()

    async def story() -> None:
        async with here.broker(politely=False) as one:
            staged, first, _ = await Sink(here).adoptable(one)
            adopter = one.broker.coordination.adopter
            found = await adopter.adopt(hosted(one), first, [staged])
            assert isinstance(found, Adopted)
            assert found.record_count == 1
            assert await adopter.adopt(hosted(one), first, [staged]) == Adopted(-1, 0)
            monkeypatch.setattr(adopter, "_admissions", _Admitting())
            epoch = ProducerEpoch(first.identity.epoch + 1)
            following = first._replace(identity=first.identity._replace(epoch=epoch))
            refused = await adopter.adopt(hosted(one), following, [staged])
            assert isinstance(refused, AdoptFailed)
            assert refused.code is ErrorCode.INVALID_TXN_STATE
            assert hosted(one).log.next_offset == 1

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
