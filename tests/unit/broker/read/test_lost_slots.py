"""A WAL object that is lost behind a dead broker is damage, not the log's end (rule C10)."""

from __future__ import annotations

import pytest

from tests.unit.broker.one_broker import TOPIC, OneBroker, World, batch, run
from tests.unit.bucket.bucket_world import all_values, opened
from tests.unit.bucket.fsck.checked_bucket import checked
from tidelog.bucket.fsck.faults import FaultKind
from tidelog.clock import SystemClock
from tidelog.errors import CorruptObject
from tidelog.identifiers import Incarnation, Slot, TopicPartition
from tidelog.protocol.error_codes import ErrorCode
from tidelog.storage.stores.memory import MemoryStore
from tidelog.wal.format.object_format import wal_key

RECORDS = 30
STORAGE = ErrorCode.KAFKA_STORAGE_ERROR


def world() -> World:
    return World(MemoryStore(SystemClock()), wal_linger_ms=0)


async def written(here: World, *, renewed: bool) -> Incarnation:
    """A broker that acknowledged thirty records of one partition in thirty slots and one of another
    in between, and died."""
    async with here.broker(politely=False) as one:
        await one.create_topic(partitions=2)
        for number in range(RECORDS):
            if number == RECORDS // 2:
                await one.produce(batch(b"other"), 1)
            assert (await one.produce(batch(b"%d" % number))).base_offset == number
        assert one.broker.writes.wal.durable_end == RECORDS + 1
        if renewed:
            await one.broker.membership.lease.renew()
        return one.broker.membership.incarnation


async def values(one: OneBroker, partition: int) -> list[bytes | None]:
    return [record.value for record in await one.read_all(partition)]


@pytest.mark.parametrize("from_end", [1, 5, 6, 20, RECORDS + 1])
def test_the_partitions_in_a_lost_slot_answer_an_error_and_all_others_go_on(from_end: int) -> None:
    here = world()

    async def story() -> None:
        dead = await written(here, renewed=True)
        lost = wal_key(dead, Slot(RECORDS + 1 - from_end))
        await here.store.delete(lost)
        async with here.broker() as one:
            answer = await one.fetch(0, 0)
            assert answer.error_code == STORAGE
            assert (await one.produce(batch(b"more"))).error_code == STORAGE
            assert f"{TOPIC}-0" in " ".join(one.broker.health.faults())
            assert lost in " ".join(one.broker.health.faults())
            assert not one.broker.health.obstacles()
            if from_end > 1:
                assert await values(one, 1) == [b"other"]
                assert (await one.produce(batch(b"goes on"), 1)).base_offset == 1
            else:
                # No slot follows the lost one, so nothing names the partitions of its records.
                assert (await one.fetch(0, 1)).error_code == STORAGE
        found = await checked(here.store)
        assert lost in {fault.key for fault in found.faults if fault.kind is FaultKind.MISSING}

    run(story)


def test_a_lost_slot_stays_lost_for_every_later_reader() -> None:
    """The end that the metadata log names is final, and so is the loss of slots below it."""
    here = world()

    async def story() -> None:
        dead = await written(here, renewed=True)
        lost = wal_key(dead, Slot(10))
        await here.store.delete(lost)
        for _ in range(3):
            async with here.broker(politely=False) as one:
                assert (await one.fetch(0, 0)).error_code == STORAGE
                (damaged,) = one.broker.membership.metadata.state.retired[dead.epoch].damaged
                assert (damaged.first, damaged.last) == (10, 10)
                assert await values(one, 1) == [b"other"]

    run(story)


def test_the_log_names_the_slot_when_the_dead_broker_is_taken_over(
    caplog: pytest.LogCaptureFixture,
) -> None:
    here = world()

    async def story() -> None:
        dead = await written(here, renewed=True)
        lost = [wal_key(dead, Slot(slot)) for slot in (10, 11, 20)]
        for key in lost:
            await here.store.delete(key)
        async with here.broker() as one:
            assert lost[0] in " ".join(one.broker.health.faults())
        (told,) = [each for each in caplog.records if "were durable" in each.message]
        assert (told.levelname, told.__dict__["keys"]) == ("ERROR", lost)

    run(story)


def test_a_slot_that_is_restored_is_served_again() -> None:
    here = world()

    async def story() -> None:
        dead = await written(here, renewed=True)
        lost = wal_key(dead, Slot(10))
        data = (await here.store.get(lost)).data
        await here.store.delete(lost)
        async with here.broker() as one:
            assert (await one.fetch(0, 0)).error_code == STORAGE
        await here.store.put(lost, data)
        async with here.broker() as one:
            assert await values(one, 0) == [b"%d" % number for number in range(RECORDS)]
        assert (await checked(here.store)).faults == []

    run(story)


def test_readers_of_the_bucket_name_the_slot_while_the_broker_is_dead() -> None:
    here = world()

    async def story() -> None:
        dead = await written(here, renewed=True)
        lost = wal_key(dead, Slot(10))
        await here.store.delete(lost)
        bucket = await opened(here.store)
        view = await bucket.view(TOPIC)
        topic_id = bucket.topic(TOPIC).topic_id
        with pytest.raises(CorruptObject, match=lost):
            view.partition(TopicPartition(topic_id, 0))
        other = view.partition(TopicPartition(topic_id, 1))
        assert await all_values(bucket, other) == [b"other"]

    run(story)


def test_the_last_slot_is_lost_unseen_if_no_lease_was_written_since() -> None:
    """The window that the documents describe."""
    here = world()

    async def story() -> None:
        dead = await written(here, renewed=False)
        await here.store.delete(wal_key(dead, Slot(RECORDS)))
        async with here.broker() as one:
            assert await values(one, 0) == [b"%d" % number for number in range(RECORDS - 1)]
        assert (await checked(here.store)).faults == []

    run(story)


def test_a_put_that_hangs_while_later_ones_finish_stays_an_ordinary_end() -> None:
    """The broker acknowledged neither that slot nor any slot behind it."""
    here = world()

    async def story() -> None:
        dead = await written(here, renewed=True)
        last = wal_key(dead, Slot(RECORDS))
        data = (await here.store.get(last)).data
        # The next slot never arrives. The slot behind it did: it was laid out before the next one
        # was confirmed.
        await here.store.put(wal_key(dead, Slot(RECORDS + 2)), data)
        async with here.broker() as one:
            assert one.broker.health.faults() == []
            assert await values(one, 0) == [b"%d" % number for number in range(RECORDS)]

    run(story)
