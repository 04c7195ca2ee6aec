"""Metadata and DescribeTopicPartitions."""

from __future__ import annotations

import asyncio
from typing import Any
from uuid import UUID

import pytest

from tests.unit.broker.administered import AdministeredBroker, administer, new_broker
from tests.unit.broker.handlers.test_topics import create, topic
from tidelog.broker.handlers.cluster.metadata import describe_topic_partitions, metadata
from tidelog.broker.handlers.groups.coordinator import find_coordinator
from tidelog.clock import SystemClock
from tidelog.coordinator.cluster.membership import departures
from tidelog.protocol.error_codes import ErrorCode
from tidelog.protocol.schemas.cluster.metadata import (
    Cursor,
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    DescribeTopicPartitionsTopic,
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
)
from tidelog.protocol.schemas.coordinators import FindCoordinatorRequest
from tidelog.storage.stores.memory import MemoryStore

NEWEST = 13
ALL_TOPIC_OPERATIONS = 0b110111111000
NO_ID = UUID(int=0)


async def ask(
    broker: AdministeredBroker,
    *names: str,
    version: int = NEWEST,
    creating: bool = False,
    ids: tuple[UUID, ...] = (),
) -> MetadataResponse:
    topics = [MetadataRequestTopic(name=name) for name in names]
    topics += [MetadataRequestTopic(name=None, topic_id=topic_id) for topic_id in ids]
    request = MetadataRequest(topics=topics, allow_auto_topic_creation=creating or version < 4)
    return await broker.ask(metadata, request, version)


def errors(response: MetadataResponse) -> dict[str | None, int]:
    return {each.name: each.error_code for each in response.topics}


@pytest.mark.parametrize("version", range(14))
def test_brokers_and_topics_are_described_in_every_version(version: int) -> None:
    async def story(broker: AdministeredBroker) -> None:
        await create(broker, topic("t", 2))
        response = await ask(broker, "t", version=version)
        (node,) = response.brokers
        assert (node.node_id, node.host, node.port, node.rack) == (1, "host1", 9093, None)
        assert response.controller_id == (1 if version >= 1 else -1)
        assert response.cluster_id == (broker.state.cluster_id if version >= 2 else None)
        (described,) = response.topics
        assert (described.name, described.error_code) == ("t", 0)
        assert described.topic_id == (broker.topic("t").topic_id if version >= 10 else NO_ID)
        assert [each.partition_index for each in described.partitions] == [0, 1]
        for partition in described.partitions:
            assert (partition.error_code, partition.leader_id) == (0, 1)
            assert (partition.replica_nodes, partition.isr_nodes) == ([1], [1])
            assert partition.offline_replicas == []
            assert partition.leader_epoch == (0 if version >= 7 else -1)

    administer(story)


def test_all_topics_or_none() -> None:
    async def story(broker: AdministeredBroker) -> None:
        await create(broker, topic("a"), topic("b"))
        everything = await broker.ask(metadata, MetadataRequest(topics=None), 1)
        assert errors(everything) == {"a": 0, "b": 0}
        assert errors(await broker.ask(metadata, MetadataRequest(topics=[]), 0)) == errors(
            everything
        )
        nothing = await broker.ask(metadata, MetadataRequest(topics=[]), 1)
        assert nothing.topics == []
        assert len(nothing.brokers) == 1

    administer(story)


def test_missing_topics_are_named_with_the_reason() -> None:
    async def story(broker: AdministeredBroker) -> None:
        response = await ask(broker, "missing", "not valid", "", "missing")
        assert errors(response) == {
            "missing": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            "not valid": ErrorCode.INVALID_TOPIC_EXCEPTION,
            "": ErrorCode.INVALID_TOPIC_EXCEPTION,
        }
        assert len(response.topics) == 3
        assert broker.state.topics == {}

    administer(story)


def test_topics_by_id() -> None:
    async def story(broker: AdministeredBroker) -> None:
        await create(broker, topic("t"))
        known, unknown = broker.topic("t").topic_id, UUID(int=7)
        response = await ask(broker, ids=(known, unknown), creating=True)
        assert [(each.name, each.topic_id, each.error_code) for each in response.topics] == [
            ("t", known, 0),
            (None, unknown, ErrorCode.UNKNOWN_TOPIC_ID),
        ]
        early = await broker.ask(
            metadata, MetadataRequest(topics=[MetadataRequestTopic(name="t", topic_id=known)]), 10
        )
        assert errors(early) == {"t": ErrorCode.INVALID_REQUEST}

    administer(story)


@pytest.mark.parametrize("version", [0, 3, 4, NEWEST])
def test_a_missing_topic_is_created_at_first_sight(version: int) -> None:
    async def story(broker: AdministeredBroker) -> None:
        response = await ask(broker, "new", version=version, creating=True)
        (described,) = response.topics
        assert described.error_code == 0
        assert [each.leader_id for each in described.partitions] == [1, 1, 1]
        again = await ask(broker, "new", version=version, creating=True)
        assert again.topics == response.topics

    administer(story, num_partitions=3)


@pytest.mark.parametrize(("allowed", "wanted"), [(False, True), (True, False)])
def test_a_topic_is_created_only_if_broker_and_client_permit_the_creation(
    allowed: bool, wanted: bool
) -> None:
    async def story(broker: AdministeredBroker) -> None:
        response = await ask(broker, "new", creating=wanted)
        assert errors(response) == {"new": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}

    administer(story, auto_create_topics_enable=allowed)


def test_some_names_are_never_created() -> None:
    async def story(broker: AdministeredBroker) -> None:
        await create(broker, topic("a.b"))
        response = await ask(
            broker, "not valid", "__consumer_offsets", "a_b", "c.d", "c_d", creating=True
        )
        assert errors(response) == {
            "not valid": ErrorCode.INVALID_TOPIC_EXCEPTION,
            "__consumer_offsets": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            "a_b": ErrorCode.INVALID_TOPIC_EXCEPTION,
            "c.d": 0,
            "c_d": ErrorCode.INVALID_TOPIC_EXCEPTION,
        }

    administer(story)


def test_two_brokers_that_create_a_topic_at_once_agree() -> None:
    async def main() -> None:
        store = MemoryStore(SystemClock())
        brokers = [await new_broker(store, 1), await new_broker(store, 2)]
        answers = await asyncio.gather(*(ask(each, "t", creating=True) for each in brokers))
        assert answers[0].topics == answers[1].topics
        assert errors(answers[0]) == {"t": 0}
        for broker in brokers:
            await broker.metadata.close()

    asyncio.run(main())


def test_a_broker_that_cannot_create_asks_to_be_asked_again() -> None:
    async def story(broker: AdministeredBroker) -> None:
        await broker.end()
        response = await ask(broker, "new", creating=True)
        assert errors(response) == {"new": ErrorCode.LEADER_NOT_AVAILABLE}

    administer(story)


def test_a_partition_of_a_fenced_broker_has_no_leader() -> None:
    async def main() -> None:
        store = MemoryStore(SystemClock())
        first, second = await new_broker(store, 1), await new_broker(store, 2)
        await create(second, topic("t", 2))
        await first.metadata.refresh()
        await first.end()
        await second.metadata.refresh()
        response = await ask(second, "t")
        assert [node.node_id for node in response.brokers] == [2]
        by_index = {each.partition_index: each for each in response.topics[0].partitions}
        (orphan,) = [each for each in by_index.values() if each.error_code]
        (led,) = [each for each in by_index.values() if not each.error_code]
        assert (orphan.error_code, orphan.leader_id) == (ErrorCode.LEADER_NOT_AVAILABLE, -1)
        assert (orphan.replica_nodes, orphan.isr_nodes) == ([1], [])
        assert orphan.offline_replicas == [1]
        assert (led.leader_id, led.isr_nodes) == (2, [2])
        for broker in (first, second):
            await broker.metadata.close()

    asyncio.run(main())


@pytest.mark.parametrize(
    ("handler", "request_"),
    [
        (metadata, MetadataRequest(topics=[MetadataRequestTopic(name="t")])),
        (find_coordinator, FindCoordinatorRequest(coordinator_keys=["g"])),
    ],
    ids=["metadata", "coordinator"],
)
def test_an_answer_about_leaders_waits_while_one_may_be_dead(
    monkeypatch: pytest.MonkeyPatch, handler: Any, request_: Any
) -> None:
    monkeypatch.setattr(departures, "WAIT_SECONDS_MAX", 3600.0)

    async def main() -> None:
        store = MemoryStore(SystemClock())
        first, second = await new_broker(store, 1), await new_broker(store, 2)
        await create(second, topic("t", 2))
        await second.ask(find_coordinator, FindCoordinatorRequest(coordinator_keys=["g"]), 6)
        second.departures.connection_broke(first.incarnation.epoch)
        answer = asyncio.create_task(
            second.ask(handler, request_, 6 if handler is find_coordinator else NEWEST)
        )
        for _ in range(100):
            await asyncio.sleep(0)
        assert not answer.done()
        second.departures.connected(first.incarnation.epoch)
        await answer
        for broker in (first, second):
            await broker.metadata.close()

    asyncio.run(main())


def test_a_dead_broker_is_listed_as_the_leader_of_nothing() -> None:
    async def main() -> None:
        store = MemoryStore(SystemClock())
        first, second = await new_broker(store, 1), await new_broker(store, 2)
        await create(second, topic("t", 2))
        second.departures.connection_broke(first.incarnation.epoch)
        await first.metadata.refresh()
        await first.end()
        await second.metadata.refresh()
        await second.take_over(first.incarnation)
        response = await ask(second, "t")
        assert sorted(node.node_id for node in response.brokers) == [1, 2]
        assert {each.leader_id for each in response.topics[0].partitions} == {2}
        for broker in (first, second):
            await broker.metadata.close()

    asyncio.run(main())


def test_authorized_operations_are_given_where_asked_for() -> None:
    async def story(broker: AdministeredBroker) -> None:
        await create(broker, topic("t"))
        topics = [MetadataRequestTopic(name="t")]
        request = MetadataRequest(
            topics=topics,
            include_topic_authorized_operations=True,
            include_cluster_authorized_operations=True,
        )
        response = await broker.ask(metadata, request, 10)
        assert response.topics[0].topic_authorized_operations == ALL_TOPIC_OPERATIONS
        assert response.cluster_authorized_operations == 8096
        silent = await broker.ask(metadata, MetadataRequest(topics=topics), 10)
        assert silent.topics[0].topic_authorized_operations == -(2**31)
        assert silent.cluster_authorized_operations == -(2**31)

    administer(story)


# --- page by page ---


async def page(
    broker: AdministeredBroker, *names: str, limit: int = 2000, cursor: Cursor | None = None
) -> DescribeTopicPartitionsResponse:
    request = DescribeTopicPartitionsRequest(
        topics=[DescribeTopicPartitionsTopic(name=name) for name in names],
        response_partition_limit=limit,
        cursor=cursor,
    )
    return await broker.ask(describe_topic_partitions, request, 0)


def places(response: DescribeTopicPartitionsResponse) -> list[tuple[str | None, int]]:
    return [
        (each.name, partition.partition_index)
        for each in response.topics
        for partition in each.partitions
    ]


@pytest.mark.parametrize("limit", [1, 2, 3, 4, 100])
@pytest.mark.parametrize("setting", [2000, 2])
def test_pages_together_are_everything_once(limit: int, setting: int) -> None:
    async def story(broker: AdministeredBroker) -> None:
        await create(broker, topic("c", 2), topic("a", 3), topic("b"))
        seen: list[tuple[str | None, int]] = []
        cursor: Cursor | None = None
        while True:
            response = await page(broker, limit=limit, cursor=cursor)
            found = places(response)
            assert 0 < len(found) <= min(limit, setting)
            seen += found
            cursor = response.next_cursor
            if cursor is None:
                break
        assert seen == [("a", 0), ("a", 1), ("a", 2), ("b", 0), ("c", 0), ("c", 1)]

    administer(story, max_request_partition_size_limit=setting)


def test_a_page_describes_partitions_as_metadata_does() -> None:
    async def story(broker: AdministeredBroker) -> None:
        await create(broker, topic("t"))
        response = await page(broker, "t", "missing", "not valid")
        assert {each.name: each.error_code for each in response.topics} == {
            "t": 0,
            "missing": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            "not valid": ErrorCode.INVALID_TOPIC_EXCEPTION,
        }
        (described,) = [each for each in response.topics if each.name == "t"]
        assert described.topic_id == broker.topic("t").topic_id
        assert described.topic_authorized_operations == ALL_TOPIC_OPERATIONS
        (partition,) = described.partitions
        assert (partition.leader_id, partition.leader_epoch) == (1, 0)
        assert (partition.replica_nodes, partition.isr_nodes) == ([1], [1])
        assert (partition.eligible_leader_replicas, partition.last_known_elr) == ([], [])

    administer(story)


@pytest.mark.parametrize(
    "cursor",
    [Cursor(topic_name="b", partition_index=0), Cursor(topic_name="a", partition_index=-1)],
)
def test_a_cursor_that_makes_no_sense_is_refused(cursor: Cursor) -> None:
    async def story(broker: AdministeredBroker) -> None:
        await create(broker, topic("a"))
        response = await page(broker, "a", cursor=cursor)
        assert [each.error_code for each in response.topics] == [ErrorCode.INVALID_REQUEST]

    administer(story)


def test_a_cursor_into_a_deleted_topic_goes_on_behind_that_topic() -> None:
    async def story(broker: AdministeredBroker) -> None:
        await create(broker, topic("a"), topic("c"))
        response = await page(broker, cursor=Cursor(topic_name="b", partition_index=5))
        assert places(response) == [("c", 0)]

    administer(story)


@pytest.mark.parametrize(
    ("version", "code"),
    [(5, ErrorCode.LEADER_NOT_AVAILABLE), (6, ErrorCode.LISTENER_NOT_FOUND)],
)
def test_leaders_that_the_client_cannot_reach_are_not_named(version: int, code: ErrorCode) -> None:
    async def story(broker: AdministeredBroker) -> None:
        await create(broker, topic("t"))
        response = await broker.ask(metadata, MetadataRequest(topics=None), version, "OUTSIDE")
        assert response.brokers == []
        (partition,) = response.topics[0].partitions
        assert (partition.error_code, partition.leader_id) == (code, -1)

    administer(story)
