"""The metadata log forgets deleted topics and retired incarnations when the bucket has no trace of
them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from uuid import UUID

import pytest

from tests.unit.broker.collections import checkpoint, collections, objects
from tests.unit.broker.one_broker import OneBroker, batch, run
from tests.unit.broker.one_broker import World as BrokerWorld
from tests.unit.coordinator.cluster.world import Broker, World, simulate, within
from tidelog.broker.collect.forgetting import Forgetting
from tidelog.broker.collect.marks import Marks
from tidelog.clock import SystemClock
from tidelog.coordinator.cluster.membership.takeover import take_over_fenced
from tidelog.coordinator.cluster.membership.tenure_reports import opened_record
from tidelog.coordinator.cluster.records.records import (
    IncarnationsForgotten,
    Record,
    TenuresOpened,
    TopicCreated,
    TopicDeleted,
    TopicsForgotten,
)
from tidelog.coordinator.cluster.records.topics import TopicFate, new_topic_id
from tidelog.coordinator.cluster.state.state_snapshot import encode_snapshot
from tidelog.identifiers import Epoch, Incarnation, Slot, TopicId, TopicPartition
from tidelog.storage.segment.segment import table_prefix
from tidelog.storage.stores.memory import MemoryStore
from tidelog.wal.format.object_format import merged_key, wal_key, wal_prefix
from tidelog.wal.write.checkpoint import checkpoint_key

GRACE = 600.0
INTERVAL = 1800.0


def forgetting(broker: Broker, grace_seconds: float = GRACE) -> Forgetting:
    return Forgetting(
        broker.store,
        broker.process.clock,
        broker.log,
        broker.registered.incarnation,
        INTERVAL,
        Marks(grace_seconds),
    )


async def look(broker: Broker, each: Forgetting, *, then: float = GRACE + 100) -> None:
    """Run one pass, then wait for the grace."""
    await within(broker.process, each.look())
    await broker.process.clock.sleep(then)


async def append(broker: Broker, *records: Record) -> None:
    await within(broker.process, broker.log.append(broker.epoch, lambda _: records))


async def deleted_topics(broker: Broker, count: int = 1) -> list[TopicId]:
    """Topics that were created and deleted again."""
    first = broker.log.state.sequence + 1
    ids = [new_topic_id(first, UUID(int=number)) for number in range(count)]
    created = [TopicCreated(each, f"t{n}", (broker.epoch,)) for n, each in enumerate(ids)]
    await append(broker, *created)
    await append(broker, *map(TopicDeleted, ids))
    return ids


async def successor(world: World) -> tuple[Incarnation, Broker]:
    """A broker that wrote no records and died, and its successor, which has opened the
    partitions."""
    first = await world.broker(7, world.process("a", host="harbour"))
    await first.create("flights", 3)
    first.process.kill()
    second = await world.broker(7, world.process("b", host="harbour"))
    await within(
        second.process,
        take_over_fenced(
            second.log,
            second.store,
            second.process.clock,
            second.process.entropy,
            second.registered.incarnation,
            4,
        ),
    )
    dead = first.registered.incarnation
    # The collector deletes these objects.
    for key in world.keys(wal_prefix(dead)):
        if key != wal_key(dead, Slot(0)):
            world.remove(key)
    return dead, second


async def open_all(broker: Broker) -> None:
    state = broker.log.state
    record = opened_record(state, broker.epoch, dict(state.unopened(broker.epoch)))
    assert isinstance(record, TenuresOpened)
    await append(broker, record)


def test_a_deleted_topic_is_forgotten_when_looks_a_grace_apart_find_no_object() -> None:
    async def story(world: World) -> None:
        broker = await world.broker(1, world.process("a"))
        (topic_id,) = await deleted_topics(broker)
        each = forgetting(broker)
        await look(broker, each, then=GRACE - 1)
        await look(broker, each, then=2)
        assert broker.log.state.deleted.keys() == {topic_id}
        await look(broker, each)
        assert broker.log.state.deleted == {}
        assert broker.log.state.fate_of(topic_id) is TopicFate.FORGOTTEN
        assert world.entries()[-1].records == (TopicsForgotten((topic_id,)),)

    simulate(story)


def test_a_topic_is_remembered_as_long_as_anything_lies_in_its_folder() -> None:
    async def story(world: World) -> None:
        broker = await world.broker(1, world.process("a"))
        (topic_id,) = await deleted_topics(broker)
        key = f"{table_prefix(topic_id)}anything"
        each = forgetting(broker)
        world.place(key, b"left")
        for _ in range(4):
            await look(broker, each)
        world.remove(key)
        await look(broker, each)
        assert broker.log.state.deleted.keys() == {topic_id}, "one pass saw the topic empty"
        await look(broker, each)
        assert broker.log.state.deleted == {}

    simulate(story)


def test_an_object_that_comes_between_two_looks_begins_the_grace_anew() -> None:
    """A segment that was on its way when the topic was deleted."""

    async def story(world: World) -> None:
        broker = await world.broker(1, world.process("a"))
        (topic_id,) = await deleted_topics(broker)
        key = f"{table_prefix(topic_id)}late"
        each = forgetting(broker)
        await look(broker, each)
        world.place(key, b"late")
        await look(broker, each, then=1)
        world.remove(key)
        await look(broker, each, then=GRACE - 1)
        await look(broker, each)
        assert broker.log.state.deleted.keys() == {topic_id}
        await look(broker, each)
        assert broker.log.state.deleted == {}

    simulate(story)


def test_an_incarnation_is_forgotten_when_only_its_seal_is_left() -> None:
    async def story(world: World) -> None:
        dead, broker = await successor(world)
        await open_all(broker)
        each = forgetting(broker)
        seal = wal_key(dead, Slot(0))
        await look(broker, each)
        assert broker.log.state.retired.keys() == {dead.epoch}
        await look(broker, each)
        assert broker.log.state.retired == {}
        assert broker.log.state.is_retired(dead)
        assert world.entries()[-1].records == (IncarnationsForgotten((dead.epoch,)),)
        assert world.keys(wal_prefix(dead)) == [seal], "a late put must meet the seal (F3)"

    simulate(story)


@pytest.mark.parametrize(
    "left",
    [
        lambda dead: wal_key(dead, Slot(4)),
        lambda dead: f"{wal_prefix(dead)}anything",
        lambda dead: merged_key(dead, 0),
        lambda dead: checkpoint_key(dead, Slot(0)),
    ],
    ids=["slot or barrier seal", "anything", "merged object", "checkpoint"],
)
def test_an_incarnation_is_remembered_as_long_as_more_than_its_seal_is_there(
    left: Callable[[Incarnation], str],
) -> None:
    async def story(world: World) -> None:
        dead, broker = await successor(world)
        await open_all(broker)
        world.place(left(dead), b"left")
        each = forgetting(broker)
        for _ in range(4):
            await look(broker, each)
        assert broker.log.state.retired.keys() == {dead.epoch}
        world.remove(left(dead))
        await look(broker, each)
        await look(broker, each)
        assert broker.log.state.retired == {}

    simulate(story)


def test_an_incarnation_is_remembered_as_long_as_a_tenure_names_the_incarnation() -> None:
    async def story(world: World) -> None:
        dead, broker = await successor(world)
        each = forgetting(broker)
        for _ in range(4):
            await look(broker, each)
        assert broker.log.state.retired.keys() == {dead.epoch}
        await open_all(broker)
        await look(broker, each)
        assert broker.log.state.retired.keys() == {dead.epoch}, "the grace begins with the opening"
        await look(broker, each)
        assert broker.log.state.retired == {}

    simulate(story)


def test_a_neighbours_folder_is_not_taken_for_its_own() -> None:
    """Incarnation 7-1 has no objects, and 7-10 has many."""

    async def story(world: World) -> None:
        dead, broker = await successor(world)
        await open_all(broker)
        neighbour = dead._replace(epoch=Epoch(dead.epoch * 10))
        for slot in range(3):
            world.place(wal_key(neighbour, Slot(slot)), b"its own")
        each = forgetting(broker)
        await look(broker, each)
        await look(broker, each)
        assert broker.log.state.retired == {}

    simulate(story)


def test_only_the_broker_with_the_lowest_id_looks() -> None:
    async def story(world: World) -> None:
        low = await world.broker(1, world.process("a"))
        high = await world.broker(2, world.process("b"))
        (topic_id,) = await deleted_topics(low)
        await within(high.process, high.log.refresh())
        each = forgetting(high)
        for _ in range(3):
            await look(high, each)
        await within(low.process, low.log.refresh())
        assert low.log.state.deleted.keys() == {topic_id}

    simulate(story)


def test_two_simultaneous_looks_forget_a_topic_once() -> None:
    """For a while each broker may take itself for the lowest."""

    async def story(world: World) -> None:
        broker = await world.broker(1, world.process("a"))
        ids = await deleted_topics(broker, 2)
        both = [forgetting(broker), forgetting(broker)]
        for each in both:
            await look(broker, each)
        before = broker.log.state.sequence
        await asyncio.gather(*(within(broker.process, each.look()) for each in both))
        assert broker.log.state.deleted == {}
        found = [r for entry in world.entries()[before + 1 :] for r in entry.records]
        assert found == [TopicsForgotten(tuple(ids))]

    simulate(story)


def test_ids_forgotten_meanwhile_are_left_out() -> None:
    async def story(world: World) -> None:
        broker = await world.broker(1, world.process("a"))
        one, other = await deleted_topics(broker, 2)
        each = forgetting(broker)
        await look(broker, each)
        looking = within(broker.process, each.look())
        await append(broker, TopicsForgotten((one,)))
        await looking
        assert broker.log.state.deleted == {}
        assert world.entries()[-1].records == (TopicsForgotten((other,)),)

    simulate(story)


def test_a_process_that_starts_again_waits_for_the_grace_once_more() -> None:
    async def story(world: World) -> None:
        broker = await world.broker(1, world.process("a"))
        (topic_id,) = await deleted_topics(broker)
        await look(broker, forgetting(broker))
        again = forgetting(broker)
        await look(broker, again)
        assert broker.log.state.deleted.keys() == {topic_id}
        await look(broker, again)
        assert broker.log.state.deleted == {}

    simulate(story)


def test_thousands_are_forgotten_in_one_pass() -> None:
    """If a pass looked at few topics, it would fall behind clients that delete topics all day."""

    async def story(world: World) -> None:
        broker = await world.broker(1, world.process("a"))
        await deleted_topics(broker, 2000)
        each = forgetting(broker)
        await look(broker, each)
        await look(broker, each)
        assert broker.log.state.deleted == {}

    simulate(story)


def test_the_task_looks_at_intervals_and_survives_a_store_that_fails() -> None:
    async def story(world: World) -> None:
        broker = await world.broker(1, world.process("a"))
        await deleted_topics(broker)
        task = within(broker.process, forgetting(broker).run())
        await broker.process.clock.sleep(INTERVAL / 2)
        world.store.settings.refused_probability = 1.0
        await broker.process.clock.sleep(INTERVAL)
        world.store.settings.refused_probability = 0.0
        await broker.process.clock.sleep(3 * INTERVAL)
        assert broker.log.state.deleted == {}
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    simulate(story, seconds_max=6 * INTERVAL)


def test_processes_that_live_for_half_an_interval_forget_too() -> None:
    """The first looks happen soon after the start."""

    async def story(world: World) -> None:
        broker = await world.broker(1, world.process("a"))
        await deleted_topics(broker)
        for _ in range(2):
            task = within(broker.process, forgetting(broker).run())
            await broker.process.clock.sleep(INTERVAL / 2)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        assert broker.log.state.deleted == {}

    simulate(story)


async def live_and_leave(one: OneBroker, topic_id: UUID) -> None:
    """Produce records, all of which are rolled, opened and in a checkpoint at the end."""
    await one.produce(batch(b"record"))
    hosted = one.broker.writes.partitions.find(TopicPartition(topic_id, 0))
    hosted.log.advance_table(hosted.log.next_offset)
    await checkpoint(one)
    await one.broker.writes.tenure_reports.flush()
    await collections(one, one.broker.environment.store).collect()


def test_the_log_does_not_grow_with_restarts_and_deleted_topics() -> None:
    """Each restart leaves one seal in the bucket, and nothing in the metadata log."""
    here = BrokerWorld(MemoryStore(SystemClock()), wal_linger_ms=0)
    sizes: list[int] = []

    async def life(number: int, topics: list[UUID]) -> Sequence[str]:
        async with here.broker(politely=False) as one:
            broker = one.broker
            if not topics:
                topics.append(await one.create_topic(retention_ms="-1"))
            doomed = await one.create_topic(f"doomed-{number}")
            await live_and_leave(one, topics[0])
            await one.delete_topic(doomed)
            each = Forgetting(
                here.store,
                broker.environment.clock,
                broker.membership.metadata,
                broker.membership.incarnation,
                1.0,
                Marks(0.0),
            )
            for _ in range(2):
                await each.look()
            assert broker.membership.metadata.state.retired == {}
            assert broker.membership.metadata.state.deleted == {}
            sizes.append(len(encode_snapshot(broker.membership.metadata.state, 0)))
            return await objects(here.store, "wal/")

    async def story() -> None:
        topics: list[UUID] = []
        for number in range(12):
            left = await life(number, topics)
        assert len(left) == 11, "one seal for each life before the last"
        assert max(sizes[1:]) - min(sizes[1:]) < 20, sizes

    run(story)
