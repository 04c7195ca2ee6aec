"""Several brokers on one bucket: each serves its partitions, and takes over those of the dead."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from tests.unit.broker.one_broker import TOPIC, OneBroker, World, batch, run
from tidelog.clock import SystemClock
from tidelog.coordinator.cluster.membership.takeover import take_over_fenced
from tidelog.coordinator.cluster.records.records import BrokerFenced, TopicCreated
from tidelog.coordinator.cluster.state.state import ClusterState
from tidelog.identifiers import Epoch, TopicId, TopicPartition
from tidelog.protocol.error_codes import ErrorCode
from tidelog.storage.stores.memory import MemoryStore


def epoch_of(one: OneBroker) -> Epoch:
    return one.broker.membership.incarnation.epoch


async def shared_topic(one: OneBroker, *owners: OneBroker) -> TopicId:
    """A topic with a partition for each of these brokers, which all of them know."""
    topic_id = one.broker.environment.entropy.uuid()
    record = TopicCreated(topic_id, TOPIC, tuple(epoch_of(each) for each in owners))
    await one.broker.membership.metadata.append(epoch_of(one), lambda _: (record,))
    for each in owners:
        await each.broker.membership.metadata.refresh()
    return topic_id


async def until_served(one: OneBroker, topic_id: TopicId, *partitions: int) -> None:
    """Wait until the broker has listed these partitions."""
    listed = asyncio.Event()
    one.broker.recovery.subscribe(lambda _: listed.set())
    hosted = one.broker.writes.partitions
    while any(hosted.get(TopicPartition(topic_id, number)) is None for number in partitions):
        listed.clear()
        await listed.wait()


async def take_over(one: OneBroker, dead: OneBroker, owners: Mapping[int, Epoch]) -> None:
    """Fence a broker and divide its partitions, as a broker does that has judged it dead."""
    broker = one.broker
    metadata, mine = broker.membership.metadata, broker.membership.incarnation
    await metadata.append(mine.epoch, lambda _: (BrokerFenced(epoch_of(dead)),))

    def assign(state: ClusterState, ended: Epoch) -> Mapping[TopicPartition, Epoch]:
        return {place: owners[place.partition] for place in state.owned_by(ended)}

    await take_over_fenced(
        metadata,
        broker.environment.store,
        broker.environment.clock,
        broker.environment.entropy,
        mine,
        64,
        assign,
    )


async def values(one: OneBroker, partition: int) -> list[bytes | None]:
    return [record.value for record in await one.read_all(partition)]


def test_each_broker_serves_its_partitions_alone() -> None:
    here = World(MemoryStore(SystemClock()), wal_linger_ms=0)

    async def story() -> None:
        async with here.broker(1) as first, here.broker(2) as second:
            await shared_topic(first, first, second)
            for number, (owner, other) in enumerate([(first, second), (second, first)]):
                assert (await owner.produce(batch(b"x"), number)).error_code == 0
                refused = await other.produce(batch(b"x"), number)
                assert refused.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
                assert await values(owner, number) == [b"x"]

    run(story)


def test_running_brokers_divide_the_partitions_of_a_dead_one() -> None:
    """Acknowledged records are there, and appends go on behind them; a later start finds both."""
    here = World(MemoryStore(SystemClock()), wal_linger_ms=0)

    async def story() -> None:
        async with here.broker(1) as first, here.broker(2) as second:
            async with here.broker(3, politely=False) as dead:
                topic_id = await shared_topic(dead, dead, dead, dead)
                for number in range(3):
                    await dead.produce(batch(b"%d" % number), number)
            await take_over(
                first, dead, {0: epoch_of(first), 1: epoch_of(second), 2: epoch_of(second)}
            )
            await second.broker.membership.metadata.refresh()
            await until_served(first, topic_id, 0)
            await until_served(second, topic_id, 1, 2)
            for number, owner in enumerate([first, second, second]):
                answer = await owner.produce(batch(b"more"), number)
                assert (answer.error_code, answer.base_offset) == (0, 1)
                assert await values(owner, number) == [b"%d" % number, b"more"]
        async with here.broker(4) as successor:
            for number in range(3):
                assert await values(successor, number) == [b"%d" % number, b"more"]

    run(story)


def test_a_broker_that_does_not_know_a_topic_yet_learns_of_it_when_it_is_asked() -> None:
    here = World(MemoryStore(SystemClock()), broker_heartbeat_interval_ms=60_000)

    async def story() -> None:
        async with here.broker(1) as first, here.broker(2) as second:
            await first.broker.membership.metadata.refresh()
            record = TopicCreated(
                first.broker.environment.entropy.uuid(), TOPIC, (epoch_of(second),)
            )
            await first.broker.membership.metadata.append(epoch_of(first), lambda _: (record,))
            refused = await second.produce(batch(b"x"))
            assert refused.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            await second.broker.membership.renewal.renewed()
            assert (await second.produce(batch(b"x"))).error_code == 0

    run(story)
