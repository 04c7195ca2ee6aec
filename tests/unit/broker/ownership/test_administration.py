"""Kafka's administrative requests about brokers and leaders, with several brokers on one bucket."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence

from tests.unit.broker.one_broker import TOPIC, OneBroker, World, batch, run
from tests.unit.broker.ownership.test_several_brokers import (
    epoch_of,
    reassign,
    shared_topic,
    until_served,
    values,
)
from tidelog.broker.handlers.cluster.cluster import describe_cluster, unregister_broker
from tidelog.broker.handlers.cluster.elections import elect_leaders
from tidelog.broker.handlers.cluster.quorum import describe_quorum
from tidelog.broker.handlers.cluster.replicas import list_partition_reassignments
from tidelog.broker.peers.reassignments import MoveUnderWay
from tidelog.clock import SystemClock
from tidelog.coordinator.cluster.log.prefix import LOG_PREFIX
from tidelog.coordinator.cluster.membership.draining import drain_changes
from tidelog.coordinator.cluster.records.records import BrokerFenced
from tidelog.coordinator.cluster.state.state import ClusterState
from tidelog.identifiers import BrokerId, TopicPartition
from tidelog.protocol.error_codes import ErrorCode
from tidelog.protocol.schemas.cluster.metadata import (
    DescribeClusterRequest,
    DescribeClusterResponse,
    UnregisterBrokerRequest,
)
from tidelog.protocol.schemas.cluster.quorum import (
    DescribeQuorumPartition,
    DescribeQuorumRequest,
    DescribeQuorumTopic,
)
from tidelog.protocol.schemas.cluster.replicas import (
    ElectLeadersRequest,
    ElectLeadersResponse,
    ElectLeadersTopic,
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsTopics,
)
from tidelog.storage.object_store import Buffer, ByteRange, Condition, StoredObject, Suffix
from tidelog.storage.stores.memory import MemoryStore


class HeldStore(MemoryStore):
    """A store that can hold back reads of WAL slots and writes of the metadata log."""

    def __init__(self) -> None:
        super().__init__(SystemClock())
        self.readable, self.writable = asyncio.Event(), asyncio.Event()
        self.readable.set()
        self.writable.set()

    async def put(
        self, key: str, data: Buffer | Sequence[Buffer], condition: Condition | None = None
    ) -> str:
        if key.startswith(LOG_PREFIX):
            await self.writable.wait()
        return await super().put(key, data, condition)

    async def get(self, key: str, byte_range: ByteRange | Suffix | None = None) -> StoredObject:
        if key.startswith("wal/"):
            await self.readable.wait()
        return await super().get(key, byte_range)


def world(store: MemoryStore | None = None) -> World:
    """No broker balances by itself, so only requested moves happen."""
    return World(store or MemoryStore(SystemClock()), wal_linger_ms=0)


def owners(state: ClusterState) -> list[int]:
    """The broker ids that own the topic's partitions."""
    topic = state.topic_named(TOPIC)
    assert topic is not None
    return [tenures[-1].incarnation.broker_id for tenures in topic.partitions]


async def elect(
    one: OneBroker, *partitions: int, kind: int = 0, timeout_ms: int = 60_000
) -> dict[int, int]:
    """The outcomes of an election of these partitions, or of all."""
    asked = [ElectLeadersTopic(topic=TOPIC, partitions=list(partitions))] if partitions else None
    request = ElectLeadersRequest(election_type=kind, topic_partitions=asked, timeout_ms=timeout_ms)
    answer = await elect_leaders(one.broker.services.cluster, request, one.context(2))
    assert isinstance(answer, ElectLeadersResponse)
    return {
        each.partition_id: each.error_code
        for topic in answer.replica_election_results
        for each in topic.partition_result
    }


async def reassignments(one: OneBroker, *partitions: int) -> set[MoveUnderWay]:
    topics = None
    if partitions:
        topics = [ListPartitionReassignmentsTopics(name=TOPIC, partition_indexes=list(partitions))]
    answer = await list_partition_reassignments(
        one.broker.services.cluster,
        ListPartitionReassignmentsRequest(topics=topics),
        one.context(0),
    )
    assert answer.error_code == 0, answer.error_message
    found = set()
    for topic in answer.topics:
        for each in topic.partitions:
            (receiver,), (giver,) = each.adding_replicas, each.removing_replicas
            assert each.replicas == [receiver, giver]
            found.add(
                MoveUnderWay(topic.name, each.partition_index, BrokerId(giver), BrokerId(receiver))
            )
    return found


async def unregister(one: OneBroker, broker_id: int) -> tuple[int, str]:
    request = UnregisterBrokerRequest(broker_id=broker_id)
    answer = await unregister_broker(one.broker.services.cluster, request, one.context(0))
    return answer.error_code, answer.error_message or ""


async def described(one: OneBroker, *, fenced: bool = True) -> list[tuple[int, bool]]:
    request = DescribeClusterRequest(include_fenced_brokers=fenced)
    answer = await describe_cluster(one.broker.services.cluster, request, one.context(2))
    assert isinstance(answer, DescribeClusterResponse)
    return [(each.broker_id, each.is_fenced) for each in answer.brokers]


def test_a_preferred_election_moves_partitions_beyond_a_brokers_share() -> None:
    here = world()

    async def story() -> None:
        async with here.broker(1) as first, here.broker(2) as second, here.broker(3) as third:
            topic_id = await shared_topic(first, *[first] * 5, second)
            await first.produce(batch(b"x"), 0)
            # Only the leader's surplus moves. Any broker may be asked.
            needless = ErrorCode.ELECTION_NOT_NEEDED
            assert await elect(third, 0, 5) == {0: ErrorCode.NONE, 5: needless}
            assert owners(await third.broker.membership.metadata.refresh())[0] == 3
            await until_served(third, topic_id, 0)
            assert await values(third, 0) == [b"x"]
            assert set((await elect(second)).values()) == {ErrorCode.NONE}
            state = await third.broker.membership.metadata.refresh()
            assert Counter(owners(state)) == {1: 2, 2: 2, 3: 2}
            assert await elect(second) == {}
            assert await elect(first, 1) == {1: needless}
            assert await elect(first, *range(6), kind=1) == dict.fromkeys(range(6), needless)

    run(story)


def test_an_election_empties_a_draining_broker_and_begins_nothing_after_its_time() -> None:
    here = world()

    async def story() -> None:
        async with here.broker(1) as first, here.broker(2) as second:
            await shared_topic(second, *[second] * 3)
            late = await elect(first, timeout_ms=-1)
            assert set(late.values()) == {ErrorCode.REQUEST_TIMED_OUT}
            metadata = first.broker.membership.metadata
            # The drained broker may take part through its own balance.
            await metadata.append(
                epoch_of(first), lambda state: drain_changes(state, BrokerId(2), draining=True)
            )
            while owners(await metadata.refresh()) != [1, 1, 1]:
                await elect(first)

    run(story)


def test_moves_are_listed_while_they_are_under_way() -> None:
    """Any broker lists the moves: the giver's part while it gives, the receiver's until it serves
    the partition."""
    store = HeldStore()
    here = world(store)

    async def story() -> None:
        async with here.broker(1) as first, here.broker(2) as second, here.broker(3) as third:
            topic_id = await shared_topic(first, first, first)
            await first.produce(batch(b"a"))
            assert await reassignments(third) == set()
            store.readable.clear()
            store.writable.clear()
            giving = asyncio.create_task(
                first.broker.ownership.giving.give({TopicPartition(topic_id, 0): epoch_of(second)})
            )
            while not (await first.produce(batch(b"late"))).error_code:
                pass
            move = MoveUnderWay(TOPIC, 0, BrokerId(1), BrokerId(2))
            assert await first.broker.ownership.moves.under_way(passes_on=False) == {move}
            store.writable.set()
            await giving
            assert await first.broker.ownership.moves.under_way(passes_on=False) == set()
            await second.broker.membership.metadata.refresh()
            assert await reassignments(third) == {move}
            assert await reassignments(third, 1) == set()
            assert await reassignments(second, 0, 1) == {move}
            store.readable.set()
            await until_served(second, topic_id, 0)
            assert await reassignments(third) == set()

    run(story)


def test_moves_are_not_listed_in_part() -> None:
    """A broker that does not answer may take part in some moves."""
    here = world()

    async def story() -> None:
        async with here.broker(1) as first:
            async with here.broker(2, politely=False) as dead:
                await shared_topic(first, first, dead)
            request = ListPartitionReassignmentsRequest()
            answer = await list_partition_reassignments(
                first.broker.services.cluster, request, first.context(0)
            )
            assert (answer.error_code, answer.topics) == (ErrorCode.REQUEST_TIMED_OUT, [])
            assert answer.error_message

    run(story)


def test_all_live_brokers_are_the_voters_of_the_metadata() -> None:
    here = world()

    async def story() -> None:
        async with here.broker(1) as first, here.broker(2) as second:
            topics = [
                DescribeQuorumTopic(
                    topic_name="__cluster_metadata", partitions=[DescribeQuorumPartition()]
                )
            ]
            answer = await describe_quorum(
                second.broker.services.cluster,
                DescribeQuorumRequest(topics=topics),
                second.context(2),
            )
            (quorum,) = answer.topics[0].partitions
            assert quorum.leader_id == 2
            end = second.broker.membership.state().sequence + 1
            assert quorum.high_watermark == end
            told = {each.replica_id: each.log_end_offset for each in quorum.current_voters}
            assert told[2] == end
            assert 0 < told[1] <= end, "by its lease"
            nodes = {node.node_id: node.listeners[0].port for node in answer.nodes}
            assert nodes == {
                1: first.broker.membership.advertised[1],
                2: second.broker.membership.advertised[1],
            }

    run(story)


def test_a_living_broker_is_not_unregistered_and_a_dead_one_is() -> None:
    here = world()

    async def story() -> None:
        async with here.broker(1) as first:
            async with here.broker(2, politely=False) as dead:
                topic_id = await shared_topic(dead, dead)
                await dead.produce(batch(b"a"))
                code, why = await unregister(first, 2)
                assert code == ErrorCode.INVALID_REQUEST
                host, port = dead.broker.membership.advertised
                assert "broker 2 lives" in why
                assert f"{host}:{port}" in why
            metadata = first.broker.membership.metadata
            await metadata.append(
                epoch_of(first),
                lambda state: (
                    [BrokerFenced(epoch_of(dead))] if state.is_live(epoch_of(dead)) else []
                ),
            )
            assert await unregister(first, 2) == (ErrorCode.NONE, "")
            assert await described(first) == [(1, False)]
            await until_served(first, topic_id, 0)
            assert await values(first, 0) == [b"a"]
            assert await unregister(first, 2) == (ErrorCode.NONE, ""), "a repeated request"
            code, why = await unregister(first, 7)
            assert code == ErrorCode.BROKER_ID_NOT_REGISTERED
            assert why == "there is no live broker 7; these live: 1"
            assert (await reassign(first, 0, 2))[0] == ErrorCode.INVALID_REPLICA_ASSIGNMENT

    run(story)
