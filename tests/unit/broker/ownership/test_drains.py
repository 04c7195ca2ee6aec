"""Drains that operators ask for, and balancing on request, with several brokers on one bucket."""

from __future__ import annotations

import asyncio

import pytest

from tests.unit.broker.one_broker import OneBroker, World, batch, run
from tests.unit.broker.ownership.test_several_brokers import (
    HeldOpenings,
    epoch_of,
    reassign,
    shared_topic,
    take_over,
    until_served,
    values,
)
from tidelog.broker.handlers.cluster.spreading import drain_brokers, rebalance_brokers
from tidelog.broker.handlers.cluster.topics import create_topics
from tidelog.clock import SystemClock
from tidelog.coordinator.cluster.membership.assignment import spread
from tidelog.coordinator.cluster.membership.takeover import take_over_fenced
from tidelog.coordinator.cluster.records.records import BrokerFenced
from tidelog.coordinator.cluster.state.state import ClusterState
from tidelog.errors import CorruptObject
from tidelog.identifiers import Epoch, TopicPartition
from tidelog.protocol.error_codes import ErrorCode
from tidelog.protocol.schemas.cluster.topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreateTopicsRequest,
)
from tidelog.protocol.schemas.own.drains import BrokerDrain, DrainBrokersRequest
from tidelog.protocol.schemas.own.rebalance import RebalanceBrokersRequest
from tidelog.storage.stores.memory import MemoryStore


def world(**settings: object) -> World:
    """No broker balances by itself, so only requested moves happen."""
    return World(
        MemoryStore(SystemClock()), wal_linger_ms=0, broker_heartbeat_interval_ms=50, **settings
    )


async def ask_drain(one: OneBroker, broker_id: int, *, draining: bool = True) -> tuple[int, str]:
    request = DrainBrokersRequest(brokers=[BrokerDrain(broker_id=broker_id, draining=draining)])
    answer = await drain_brokers(one.broker.services.cluster, request, one.context(0))
    (result,) = answer.brokers
    return result.error_code, result.error_message or ""


async def drained(one: OneBroker) -> tuple[int, ...]:
    request = DrainBrokersRequest(brokers=[])
    answer = await drain_brokers(one.broker.services.cluster, request, one.context(0))
    return tuple(answer.draining)


async def rebalanced(one: OneBroker) -> dict[int, tuple[int, int]]:
    answer = await rebalance_brokers(
        one.broker.services.cluster, RebalanceBrokersRequest(), one.context(0)
    )
    return {each.broker_id: (each.error_code, each.given) for each in answer.brokers}


async def until(one: OneBroker, epoch: Epoch, count: int) -> ClusterState:
    """Wait until an incarnation owns this many partitions by a broker's view."""
    metadata = one.broker.membership.metadata
    changed = asyncio.Event()
    metadata.subscribe(lambda _, __: changed.set())
    while len(metadata.state.owned_by(epoch)) != count:
        await changed.wait()
        changed.clear()
    return metadata.state


def test_a_drained_broker_gives_all_away_and_runs_on_until_the_drain_is_undone() -> None:
    here = world()

    async def story() -> None:
        async with here.broker(1) as first, here.broker(2) as second, here.broker(3) as third:
            topic_id = await shared_topic(second, *[second] * 6)
            for number in range(6):
                await second.produce(batch(b"%d" % number), number)
            # The request goes to a broker that the drain does not concern.
            assert await ask_drain(first, 2) == (ErrorCode.NONE, "")
            state = await until(first, epoch_of(second), 0)
            assert await drained(third) == (2,)
            await third.broker.membership.metadata.refresh()
            for owner in (first, third):
                owned = [place.partition for place in state.owned_by(epoch_of(owner))]
                assert len(owned) == 3
                await until_served(owner, topic_id, *owned)
                for number in owned:
                    assert await values(owner, number) == [b"%d" % number]
            assert not second.run.done()
            # The drained broker gets no new partitions.
            code, why = await reassign(first, 0, 2)
            assert code == ErrorCode.INVALID_REPLICA_ASSIGNMENT
            assert "`tidelog cluster drain 2 --undo`" in str(why)
            wanted = CreateTopicsRequest(
                timeout_ms=5000,
                topics=[
                    CreatableTopic(name="spread", num_partitions=6, replication_factor=-1),
                    CreatableTopic(
                        name="there",
                        num_partitions=-1,
                        replication_factor=-1,
                        assignments=[CreatableReplicaAssignment(partition_index=0, broker_ids=[2])],
                    ),
                ],
            )
            created = await create_topics(second.broker.services.cluster, wanted, first.context(5))
            assert [each.error_code for each in created.topics] == [
                ErrorCode.NONE,
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            ]
            assert second.broker.membership.state().owned_by(epoch_of(second)) == ()
            assert await ask_drain(third, 2, draining=False) == (ErrorCode.NONE, "")
            assert await drained(first) == ()
            assert (await reassign(first, 0, 2))[0] == ErrorCode.NONE

    run(story)


def test_the_partitions_of_a_dead_broker_pass_a_drained_one_by() -> None:
    here = world()

    async def story() -> None:
        async with here.broker(1) as first, here.broker(2):
            async with here.broker(3, politely=False) as dead:
                topic_id = await shared_topic(dead, dead, dead)
                await dead.produce(batch(b"a"))
                assert await ask_drain(first, 2) == (ErrorCode.NONE, "")
            fence = BrokerFenced(epoch_of(dead))
            broker = first.broker
            await broker.membership.metadata.append(epoch_of(first), lambda _: (fence,))
            await take_over_fenced(
                broker.membership.metadata,
                broker.environment.store,
                broker.environment.clock,
                broker.environment.entropy,
                broker.membership.incarnation,
                64,
                spread,
            )
            await until_served(first, topic_id, 0, 1)
            assert await values(first, 0) == [b"a"]

    run(story)


def test_a_drain_survives_the_asked_broker_and_ends_with_the_drained_broker() -> None:
    here = world()

    async def story() -> None:
        async with here.broker(1) as first:
            async with here.broker(2) as second:
                async with here.broker(3) as asked:
                    await shared_topic(second, *[second] * 3)
                    assert await ask_drain(asked, 2) == (ErrorCode.NONE, "")
                await until(first, epoch_of(second), 0)
                assert await drained(first) == (2,)
            async with here.broker(2) as again:
                assert await drained(again) == ()

    run(story)


def test_wrong_drains_are_refused_and_repeated_ones_are_not() -> None:
    here = world()

    async def story() -> None:
        async with here.broker(1) as first:
            assert await ask_drain(first, 7) == (
                ErrorCode.BROKER_ID_NOT_REGISTERED,
                "there is no live broker 7; these live: 1",
            )
            code, why = await ask_drain(first, 1)
            assert code == ErrorCode.INVALID_REQUEST
            assert why.endswith("start another broker first")
            async with here.broker(2) as second:
                for _ in range(2):
                    assert await ask_drain(second, 1) == (ErrorCode.NONE, "")
                code, why = await ask_drain(first, 2)
                assert code == ErrorCode.INVALID_REQUEST
                assert why.endswith("undo the drain of another one: 1")
            # The last other broker has ended, so the drained broker serves again.
            topic_id = await first.create_topic()
            await until_served(first, topic_id, 0)
            assert (await first.produce(batch(b"a"))).error_code == 0

    run(story)


def test_a_drain_gives_intact_partitions_beside_many_damaged_partitions() -> None:
    """There are more damaged partitions than a plan has moves. They do not take the places of
    intact ones."""
    here = world()

    async def story() -> None:
        async with here.broker(1) as first, here.broker(2) as second:
            topic_id = await shared_topic(second, *[second] * 103)
            partitions = second.broker.writes.partitions
            for number in range(100):
                damaged = partitions.find(TopicPartition(topic_id, number))
                partitions.condemn(damaged, CorruptObject("wal/1", "a flipped bit"))
            assert await ask_drain(first, 2) == (ErrorCode.NONE, "")
            state = await until(first, epoch_of(second), 100)
            given = [place.partition for place in state.owned_by(epoch_of(first))]
            assert given == [100, 101, 102]

    run(story)


def test_a_rebalance_gives_open_partitions_while_others_are_being_opened(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    here = world()
    openings = HeldOpenings(monkeypatch)

    async def story() -> None:
        async with here.broker(1) as heir, here.broker(3) as other:
            async with here.broker(2, politely=False) as dead:
                topic_id = await shared_topic(dead, dead, dead, heir, heir)
                await dead.produce(batch(b"x"))
            await heir.broker.membership.metadata.refresh()
            openings.hold()
            await take_over(heir, dead, dict.fromkeys(range(2), epoch_of(heir)))
            await openings.begun.wait()
            assert await rebalanced(other) == {1: (0, 2), 3: (0, 0)}
            state = await other.broker.membership.metadata.refresh()
            given = {place.partition for place in state.owned_by(epoch_of(other))}
            assert given == {2, 3}
            openings.may_end.set()
            await until_served(heir, topic_id, 0, 1)
            assert await values(heir, 0) == [b"x"]

    run(story)


def test_a_rebalance_ignores_the_interval_and_the_tolerance() -> None:
    here = world(leader_imbalance_per_broker_percentage=100)

    async def story() -> None:
        async with here.broker(1) as first, here.broker(2) as second, here.broker(3) as third:
            topic_id = await shared_topic(first, *[first] * 5, *[second] * 4)
            await second.produce(batch(b"x"), 8)
            # Each broker gives its own surplus, although the request went to one.
            assert await rebalanced(third) == {1: (0, 2), 2: (0, 1), 3: (0, 0)}
            state = await third.broker.membership.metadata.refresh()
            owned = [len(state.owned_by(epoch_of(each))) for each in (first, second, third)]
            assert owned == [3, 3, 3]
            assert await rebalanced(first) == {1: (0, 0), 2: (0, 0), 3: (0, 0)}
            leader = state.leader(TopicPartition(topic_id, 8))
            assert leader is not None
            owner = next(
                each for each in (second, third) if epoch_of(each) == leader.incarnation.epoch
            )
            await until_served(owner, topic_id, 8)
            assert await values(owner, 8) == [b"x"]

    run(story)
