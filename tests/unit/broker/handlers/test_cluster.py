"""DescribeCluster, DescribeLogDirs, ElectLeaders, FindCoordinator."""

from __future__ import annotations

import asyncio

import pytest

from tests.unit.broker.administered import AdministeredBroker, administer, new_broker
from tests.unit.broker.handlers.test_topics import create, topic
from tidelog.broker.handlers.cluster.cluster import (
    describe_cluster,
    describe_log_dirs,
    unregister_broker,
)
from tidelog.broker.handlers.cluster.elections import elect_leaders
from tidelog.broker.handlers.groups.coordinator import find_coordinator
from tidelog.clock import SystemClock
from tidelog.protocol.error_codes import ErrorCode
from tidelog.protocol.schemas.cluster.metadata import (
    DescribeClusterRequest,
    UnregisterBrokerRequest,
)
from tidelog.protocol.schemas.cluster.replicas import (
    DescribableLogDirTopic,
    DescribeLogDirsRequest,
    ElectLeadersRequest,
    ElectLeadersTopic,
)
from tidelog.protocol.schemas.coordinators import FindCoordinatorRequest
from tidelog.storage.stores.memory import MemoryStore


@pytest.mark.parametrize("version", range(3))
def test_the_cluster_is_described(version: int) -> None:
    async def story(broker: AdministeredBroker) -> None:
        request = DescribeClusterRequest(include_cluster_authorized_operations=True)
        response = await broker.ask(describe_cluster, request, version)
        assert (response.error_code, response.controller_id) == (0, 1)
        assert response.cluster_id == broker.state.cluster_id
        (node,) = response.brokers
        assert (node.broker_id, node.host, node.port) == (1, "host1", 9093)
        assert response.cluster_authorized_operations == 8096

    administer(story)


def test_fenced_brokers_are_described_where_asked_for() -> None:
    async def main() -> None:
        store = MemoryStore(SystemClock())
        first, second = await new_broker(store, 1), await new_broker(store, 2)
        await first.end()
        await second.metadata.refresh()
        for wanted, expected in ((False, [(2, False)]), (True, [(2, False), (1, True)])):
            request = DescribeClusterRequest(include_fenced_brokers=wanted)
            response = await second.ask(describe_cluster, request, 2)
            assert [(each.broker_id, each.is_fenced) for each in response.brokers] == expected
        for broker in (first, second):
            await broker.metadata.close()

    asyncio.run(main())


def test_a_fenced_broker_is_listed_until_it_is_unregistered() -> None:
    async def main() -> None:
        store = MemoryStore(SystemClock())
        first, second = await new_broker(store, 1), await new_broker(store, 2)
        await create(first, topic("t"))
        await first.end()
        for fenced, listed in ((True, [2, 1]), (False, [2])):
            request = DescribeClusterRequest(include_fenced_brokers=fenced)
            response = await second.ask(describe_cluster, request, 2)
            assert [each.broker_id for each in response.brokers] == listed
        for _ in range(2):
            answer = await second.ask(unregister_broker, UnregisterBrokerRequest(broker_id=1), 0)
            assert (answer.error_code, answer.error_message) == (0, None)
            everything = DescribeClusterRequest(include_fenced_brokers=True)
            response = await second.ask(describe_cluster, everything, 2)
            assert [each.broker_id for each in response.brokers] == [2]
        assert second.owners("t") == [2]
        for broker in (first, second):
            await broker.metadata.close()

    asyncio.run(main())


@pytest.mark.parametrize(
    ("endpoint_type", "code"),
    [(2, ErrorCode.MISMATCHED_ENDPOINT_TYPE), (3, ErrorCode.UNSUPPORTED_ENDPOINT_TYPE)],
)
def test_describe_cluster_refuses_to_describe_controllers(
    endpoint_type: int, code: ErrorCode
) -> None:
    async def story(broker: AdministeredBroker) -> None:
        request = DescribeClusterRequest(endpoint_type=endpoint_type)
        response = await broker.ask(describe_cluster, request, 1)
        assert (response.error_code, response.brokers) == (code, [])

    administer(story)


@pytest.mark.parametrize("version", range(1, 5))
def test_the_bucket_is_the_log_directory(version: int) -> None:
    async def story(broker: AdministeredBroker) -> None:
        await create(broker, topic("b", 2), topic("a"))
        response = await broker.ask(describe_log_dirs, DescribeLogDirsRequest(topics=None), version)
        (result,) = response.results
        assert (result.error_code, result.log_dir) == (0, "memory://")
        sizes = {
            (each.name, partition.partition_index): partition.partition_size
            for each in result.topics
            for partition in each.partitions
        }
        assert sizes == {("a", 0): 1000, ("b", 0): 1000, ("b", 1): 1501}
        some = [DescribableLogDirTopic(topic="b", partitions=[1, 7])]
        response = await broker.ask(describe_log_dirs, DescribeLogDirsRequest(topics=some), version)
        (only,) = response.results[0].topics
        assert [each.partition_index for each in only.partitions] == [1]
        nothing = DescribeLogDirsRequest(topics=[])
        response = await broker.ask(describe_log_dirs, nothing, version)
        assert response.results[0].topics == []

    administer(story)


@pytest.mark.parametrize("version", range(3))
def test_no_election_is_needed(version: int) -> None:
    async def story(broker: AdministeredBroker) -> None:
        await create(broker, topic("t"))
        asked = [
            ElectLeadersTopic(topic="t", partitions=[0, 3]),
            ElectLeadersTopic(topic="u", partitions=[0]),
        ]
        response = await broker.ask(
            elect_leaders, ElectLeadersRequest(topic_partitions=asked), version
        )
        outcome = {
            (each.topic, partition.partition_id): partition.error_code
            for each in response.replica_election_results
            for partition in each.partition_result
        }
        assert outcome == {
            ("t", 0): ErrorCode.ELECTION_NOT_NEEDED,
            ("t", 3): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            ("u", 0): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        }
        everything = ElectLeadersRequest(topic_partitions=None)
        response = await broker.ask(elect_leaders, everything, version)
        assert (response.error_code, response.replica_election_results) == (0, [])

    administer(story)


@pytest.mark.parametrize(
    ("election_type", "code"),
    [
        (0, ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE),
        (1, ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE),
    ],
)
def test_an_owner_that_is_fenced_cannot_be_elected(election_type: int, code: ErrorCode) -> None:
    async def main() -> None:
        store = MemoryStore(SystemClock())
        first = await new_broker(store, 1)
        await create(first, topic("t"))
        second = await new_broker(store, 2)
        await first.metadata.refresh()
        await first.end()
        await second.metadata.refresh()
        asked = [ElectLeadersTopic(topic="t", partitions=[0])]
        request = ElectLeadersRequest(election_type=election_type, topic_partitions=asked)
        response = await second.ask(elect_leaders, request, 2)
        (result,) = response.replica_election_results[0].partition_result
        assert result.error_code == code
        for broker in (first, second):
            await broker.metadata.close()

    asyncio.run(main())


def test_an_unknown_kind_of_election_is_refused() -> None:
    async def story(broker: AdministeredBroker) -> None:
        request = ElectLeadersRequest(election_type=5, topic_partitions=None)
        response = await broker.ask(elect_leaders, request, 2)
        assert response.error_code == ErrorCode.INVALID_REQUEST

    administer(story)


@pytest.mark.parametrize(
    ("key_type", "topic_name", "version"),
    [(0, "__consumer_offsets", version) for version in range(7)]
    + [(1, "__transaction_state", version) for version in range(1, 7)],
)
def test_the_coordinator_is_the_leader_of_the_keys_partition(
    key_type: int, topic_name: str, version: int
) -> None:
    """The first request creates the internal topic. Later requests find it."""

    async def story(broker: AdministeredBroker) -> None:
        request = FindCoordinatorRequest(key_type=key_type)
        if version >= 4:
            request.coordinator_keys = ["a", "b"]
        else:
            request.key = "a"
        assert broker.state.topic_named(topic_name) is None
        for _ in range(2):
            response = await broker.ask(find_coordinator, request, version)
            found = [response]
            if version >= 4:
                assert [each.key for each in response.coordinators] == ["a", "b"]
                found = response.coordinators
            me = (broker.incarnation.broker_id, "host1", 9093, ErrorCode.NONE)
            told = [(each.node_id, each.host, each.port, each.error_code) for each in found]
            assert told == [me] * len(found)
        topic = broker.topic(topic_name)
        assert topic.internal
        assert topic.partition_count == 50
        assert topic.configs["cleanup.policy"] == "compact"

    administer(story)


def test_share_groups_have_no_coordinator_at_all() -> None:
    async def story(broker: AdministeredBroker) -> None:
        request = FindCoordinatorRequest(key_type=2, coordinator_keys=["g:t:0"])
        response = await broker.ask(find_coordinator, request, 6)
        assert response.coordinators[0].error_code == ErrorCode.INVALID_REQUEST

    administer(story)
