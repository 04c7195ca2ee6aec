"""Rolls of a partition that is given away, or that stays after a refused move."""

from __future__ import annotations

import asyncio

import pytest

from tests.unit.broker.clean.test_retention_beside_moves import LateListings
from tests.unit.broker.one_broker import batch, run, until
from tests.unit.broker.ownership.test_several_brokers import (
    epoch_of,
    shared_topic,
    until_served,
    values,
)
from tests.unit.broker.rolled import flush, hosted, offsets, open_table, settled, world
from tests.unit.storage.segments import advance, listed
from tests.unit.wal.gated_store import GatedStore
from tidelog.broker.partitions.partitions import PartitionError
from tidelog.clock import SystemClock
from tidelog.identifiers import TopicPartition
from tidelog.storage.stores.memory import MemoryStore
from tidelog.storage.table.table_log import TableCommitted


def test_a_receiver_that_has_rolled_more_is_no_fault_of_the_giver(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The giver's commit is late and is refused. The table is then ahead of the giver's log."""
    store = GatedStore(MemoryStore(SystemClock()))
    store.open()
    here = world(store)

    async def story() -> None:
        async with here.broker(1) as giver, here.broker(2) as receiver:
            topic_id = await shared_topic(giver, giver)
            place = TopicPartition(topic_id, 0)
            await giver.produce(batch(b"0"))
            store.hold("_delta_log/")
            waiting = giver.broker.topic_tables.roller.flush(hosted(giver))
            await until(lambda: store.waiting)
            (late,) = store.waiting
            store.hold("nothing else")
            assert await giver.broker.ownership.giving.give({place: epoch_of(receiver)}) == {place}
            await receiver.broker.membership.metadata.refresh()
            await until_served(receiver, topic_id, 0)
            await receiver.produce(batch(b"1"))
            await flush(receiver)
            store.release(late)
            with pytest.raises(PartitionError, match="is not here any more"):
                await waiting
            assert giver.broker.topic_tables.roller.metrics.refusals == 1
            assert giver.broker.health.faults() == []
            assert [each for each in caplog.records if each.levelname == "ERROR"] == []
            await receiver.produce(batch(b"2"))
            await flush(receiver)
            assert await offsets(store, topic_id) == [0, 1, 2]
            assert await values(receiver, 0) == [b"0", b"1", b"2"]

    run(story)


def test_a_partition_that_stays_after_a_refused_move_is_rolled_by_its_age() -> None:
    """The roller looks for due partitions while this one is withheld."""
    store = GatedStore(MemoryStore(SystemClock()))
    store.open()
    here = world(store, roll_age_ms=1000)

    async def story() -> None:
        async with here.broker(1) as giver, here.broker(2) as receiver:
            topic_id = await shared_topic(giver, giver, giver)
            for number in range(2):
                await giver.produce(batch(b"0"), number)
            store.hold("wal/1-")
            writing = asyncio.create_task(giver.produce(batch(b"1"), 1))
            await until(lambda: store.waiting)
            receivers = {TopicPartition(topic_id, 0): epoch_of(receiver)}
            gift = giver.broker.ownership.giving.give(receivers, lambda *_: False)
            giving = asyncio.create_task(gift)
            await until(lambda: giver.broker.ownership.giving.under_way)
            await flush(giver, 1)
            store.open()
            assert await giving == frozenset()
            await writing
            await settled(giver, 1)
            assert await offsets(store, topic_id) == [0]

    run(story)


def test_records_behind_a_move_back_are_rolled_though_an_old_commit_lands_late() -> None:
    """The broker has closed the table meanwhile, so the partition came back without waiting for the
    commit. The late commit knows nothing of the records since then."""
    store = GatedStore(MemoryStore(SystemClock()))
    store.open()
    here = world(store, roll_age_ms=1000)

    async def story() -> None:
        async with here.broker(1) as giver, here.broker(2) as receiver:
            topic_id = await shared_topic(giver, giver)
            place = TopicPartition(topic_id, 0)
            await giver.produce(batch(b"0"))
            store.hold("_delta_log/")
            waiting = giver.broker.topic_tables.roller.flush(hosted(giver))
            await until(lambda: store.waiting)
            (late,) = store.waiting
            store.hold("nothing else")
            tables = giver.broker.topic_tables.tables
            tables._segments_held_max = 0
            await tables.open(await giver.create_topic("another"))
            assert tables.get(topic_id) is None
            await giver.broker.ownership.giving.give({place: epoch_of(receiver)})
            await receiver.broker.membership.metadata.refresh()
            await until_served(receiver, topic_id, 0)
            await receiver.broker.ownership.giving.give({place: epoch_of(giver)})
            await giver.broker.membership.metadata.refresh()
            await until_served(giver, topic_id, 0)
            await giver.produce(batch(b"1"))
            store.release(late)
            await asyncio.wait([waiting])
            await settled(giver, 2)
            assert await offsets(store, topic_id) == [0, 1]

    run(story)


def test_a_partition_comes_back_while_a_commit_of_its_table_hangs() -> None:
    """The table log decides that commit as it decides a commit of another broker (E1)."""
    store = GatedStore(MemoryStore(SystemClock()))
    store.open()
    here = world(store)

    async def story() -> None:
        async with here.broker(1) as giver, here.broker(2) as receiver:
            topic_id = await shared_topic(giver, giver)
            place = TopicPartition(topic_id, 0)
            await giver.produce(batch(b"0"))
            store.hold("_delta_log/")
            waiting = giver.broker.topic_tables.roller.flush(hosted(giver))
            await until(lambda: store.waiting)
            (late,) = store.waiting
            store.hold("nothing else")
            await giver.broker.ownership.giving.give({place: epoch_of(receiver)})
            await receiver.broker.membership.metadata.refresh()
            await until_served(receiver, topic_id, 0)
            await receiver.produce(batch(b"1"))
            await flush(receiver)
            await receiver.broker.ownership.giving.give({place: epoch_of(giver)})
            await giver.broker.membership.metadata.refresh()
            async with asyncio.timeout(10):
                await until_served(giver, topic_id, 0)
            assert await values(giver, 0) == [b"0", b"1"]
            await giver.produce(batch(b"2"))
            store.release(late)
            await asyncio.wait([waiting])
            await flush(giver)
            assert await offsets(store, topic_id) == [0, 1, 2]
            assert giver.broker.health.faults() == []

    run(story)


def test_a_refused_commit_is_judged_by_the_present_table_even_after_a_new_opening() -> None:
    """The table was opened anew while the commit hung. Then the previous owner's commit landed."""
    store = GatedStore(MemoryStore(SystemClock()))
    store.open()
    here = world(store)

    async def story() -> None:
        async with here.broker(1) as giver, here.broker(2) as receiver:
            topic_id = await shared_topic(giver, giver, giver)
            place = TopicPartition(topic_id, 0)
            for number in range(2):
                await giver.produce(batch(b"0"), number)
            store.hold("_delta_log/")
            waiting = giver.broker.topic_tables.roller.flush(hosted(giver, 1))
            await until(lambda: store.waiting)
            (late,) = store.waiting
            store.hold("nothing else")
            await giver.broker.ownership.giving.give({place: epoch_of(receiver)})
            await receiver.broker.membership.metadata.refresh()
            await until_served(receiver, topic_id, 0)
            await receiver.broker.ownership.giving.give({place: epoch_of(giver)})
            await giver.broker.membership.metadata.refresh()
            await until_served(giver, topic_id, 0)
            previous = await open_table(store._store, topic_id)
            change = advance(1, 0, 1, listed(1, 0, 0, 99))
            assert isinstance(await previous.commit((change,)), TableCommitted)
            store.release(late)
            await waiting
            assert giver.broker.topic_tables.roller.metrics.refusals == 1
            assert giver.broker.health.faults() == []

    run(story)


def test_a_table_that_was_being_opened_when_the_partition_came_is_read_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The receiver opens the table while the giver commits for the last time. What it has read
    lacks records that the partition's log counts as rolled, and nothing is lost."""
    store = MemoryStore(SystemClock())
    here = world(store)

    async def story() -> None:
        late = LateListings(store)
        async with here.broker(1) as giver:
            here.store = late
            async with here.broker(2) as receiver:
                topic_id = await shared_topic(giver, giver, receiver)
                await giver.produce(batch(b"0"))
                await flush(giver)
                late.is_late = True
                tables = receiver.broker.topic_tables.tables
                opening = asyncio.create_task(tables.open(topic_id))
                await until(lambda: late.waiting)
                late.is_late = False
                await giver.produce(batch(b"1"))
                await flush(giver)
                await giver.produce(batch(b"2"))
                await giver.broker.writes.checkpointer.checkpoint()
                place = TopicPartition(topic_id, 0)
                await giver.broker.ownership.giving.give({place: epoch_of(receiver)})
                await receiver.broker.membership.metadata.refresh()
                # The recovery waits for the opening.
                await until(lambda: tables._entries[topic_id].lock._waiters)
                late.answer()
                await opening
                await until_served(receiver, topic_id, 0)
                await flush(receiver)
                assert await offsets(store, topic_id) == [0, 1, 2]
                assert receiver.broker.health.faults() == []
                assert [each for each in caplog.records if each.levelname == "ERROR"] == []

    run(story)
