"""AlterReplicaLogDirs, AlterPartitionReassignments, ListPartitionReassignments, DescribeQuorum."""

from __future__ import annotations

import asyncio

import pytest

from tests.unit.broker.administered import AdministeredBroker, administer, new_broker
from tests.unit.broker.handlers.test_topics import create, topic
from tidelog.broker.handlers.cluster.quorum import describe_quorum
from tidelog.broker.handlers.cluster.replicas import (
    alter_partition_reassignments,
    alter_replica_log_dirs,
    list_partition_reassignments,
)
from tidelog.clock import SystemClock
from tidelog.protocol.error_codes import ErrorCode
from tidelog.protocol.schemas.cluster.quorum import (
    DescribeQuorumPartition,
    DescribeQuorumRequest,
    DescribeQuorumTopic,
)
from tidelog.protocol.schemas.cluster.replicas import (
    AlterPartitionReassignmentsRequest,
    AlterReplicaLogDir,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirTopic,
    ListPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from tidelog.storage.stores.memory import MemoryStore


def test_the_list_of_reassignments_is_empty() -> None:
    async def story(broker: AdministeredBroker) -> None:
        request = ListPartitionReassignmentsRequest()
        response = await broker.ask(list_partition_reassignments, request, 0)
        assert (response.error_code, response.topics) == (0, [])

    administer(story)


async def move(
    broker: AdministeredBroker, path: str, name: str, *partitions: int, version: int = 2
) -> list[int]:
    topics = [AlterReplicaLogDirTopic(name=name, partitions=list(partitions))]
    request = AlterReplicaLogDirsRequest(dirs=[AlterReplicaLogDir(path=path, topics=topics)])
    (result,) = (await broker.ask(alter_replica_log_dirs, request, version)).results
    assert result.topic_name == name
    assert [each.partition_index for each in result.partitions] == list(partitions)
    return [each.error_code for each in result.partitions]


@pytest.mark.parametrize("version", [1, 2])
def test_the_bucket_is_the_only_log_directory_to_move_to(version: int) -> None:
    async def story(broker: AdministeredBroker) -> None:
        await create(broker, topic("t"))
        found = await move(broker, broker.store.url, "t", 0, 1, version=version)
        assert found == [ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
        assert await move(broker, "/var/kafka", "t", 0) == [ErrorCode.LOG_DIR_NOT_FOUND]
        missing = await move(broker, broker.store.url, "nowhere", 0)
        assert missing == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]

    administer(story)


async def reassign(
    broker: AdministeredBroker, name: str, partition: int, replicas: list[int] | None
) -> tuple[int, str | None]:
    wanted = [ReassignablePartition(partition_index=partition, replicas=replicas)]
    request = AlterPartitionReassignmentsRequest(
        topics=[ReassignableTopic(name=name, partitions=wanted)]
    )
    answer = await broker.ask(alter_partition_reassignments, request, 0)
    assert (answer.error_code, answer.error_message) == (0, None)
    (response,) = answer.responses
    assert response.name == name
    (result,) = response.partitions
    assert result.partition_index == partition
    return result.error_code, result.error_message


def test_a_partition_may_be_assigned_to_its_owner() -> None:
    async def story(broker: AdministeredBroker) -> None:
        await create(broker, topic("t"))
        before = broker.state.sequence
        assert await reassign(broker, "t", 0, [1]) == (ErrorCode.NONE, None)
        for name, partition, replicas, code, why in (
            ("t", 0, None, ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, "no partition is being"),
            ("t", 0, [], ErrorCode.INVALID_REPLICA_ASSIGNMENT, "no brokers"),
            ("t", 0, [1, 1], ErrorCode.INVALID_REPLICA_ASSIGNMENT, "twice"),
            ("t", 0, [2], ErrorCode.INVALID_REPLICA_ASSIGNMENT, "no live broker 2"),
            ("t", 1, [1], ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "no partition t-1"),
            ("u", 0, [1], ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "no partition u-0"),
        ):
            found, message = await reassign(broker, name, partition, replicas)
            assert found == code, (name, partition, replicas)
            assert message is not None
            assert why in message
        assert broker.state.sequence == before, "nothing is written"

    administer(story)


def test_a_partition_that_cannot_be_given_away_stays() -> None:
    async def main() -> None:
        store = MemoryStore(SystemClock())
        first = await new_broker(store, 1)
        await create(first, topic("t"))
        second = await new_broker(store, 2)
        await first.metadata.refresh()
        assert await reassign(first, "t", 0, [1, 2]) == (ErrorCode.NONE, None)
        code, message = await reassign(first, "t", 0, [2])
        assert code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert message is not None
        assert "try again" in message
        assert await move(second, second.store.url, "t", 0) == [ErrorCode.REPLICA_NOT_AVAILABLE]
        for broker in (first, second):
            await broker.metadata.close()

    asyncio.run(main())


@pytest.mark.parametrize("version", range(3))
def test_the_broker_is_the_one_voter_of_the_metadata(version: int) -> None:
    async def story(broker: AdministeredBroker) -> None:
        asked = [
            DescribeQuorumTopic(topic_name=name, partitions=[DescribeQuorumPartition()])
            for name in ("__cluster_metadata", "t")
        ]
        before_ms = broker.clock.time_ms()
        answer = await broker.ask(describe_quorum, DescribeQuorumRequest(topics=asked), version)
        assert answer.error_code == 0
        quorum, other = (each.partitions[0] for each in answer.topics)
        assert (quorum.error_code, quorum.leader_id, quorum.observers) == (0, 1, [])
        assert quorum.leader_epoch == broker.incarnation.epoch
        assert quorum.high_watermark == broker.state.sequence + 1
        (voter,) = quorum.current_voters
        assert (voter.replica_id, voter.log_end_offset) == (1, quorum.high_watermark)
        assert voter.last_fetch_timestamp == -1
        if version >= 1:
            assert voter.last_caught_up_timestamp >= before_ms
        assert (other.error_code, other.leader_id) == (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1)
        assert other.current_voters == []
        if version >= 2:
            (node,) = answer.nodes
            (listener,) = node.listeners
            assert (node.node_id, listener.host, listener.port) == (1, "host1", 9093)

    administer(story)


def test_ports_above_32767_are_told() -> None:
    async def main() -> None:
        broker = await new_broker(MemoryStore(SystemClock()), 40_000)
        answer = await broker.ask(describe_quorum, DescribeQuorumRequest(), 2)
        assert answer.nodes[0].listeners[0].port == 49_092
        await broker.metadata.close()

    asyncio.run(main())
