"""CreateTopics, DeleteTopics, CreatePartitions, and the brokers that get the partitions."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from uuid import UUID

import pytest

from tests.unit.broker.administered import AdministeredBroker, administer, new_broker
from tidelog.broker.handlers.cluster.topics import create_partitions, create_topics, delete_topics
from tidelog.clock import SystemClock
from tidelog.coordinator.cluster.membership.assignment import NoLiveBroker, Placement
from tidelog.coordinator.cluster.state.state import ClusterState
from tidelog.protocol.error_codes import ErrorCode
from tidelog.protocol.schemas.cluster.topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreatableTopicResult,
    CreatePartitionsAssignment,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
    CreatePartitionsTopicResult,
    CreateTopicsRequest,
    DeleteTopicsRequest,
    DeleteTopicState,
)
from tidelog.storage.object_store import (
    AccessDenied,
    Buffer,
    Condition,
    StoreError,
    StoreMisconfigured,
)
from tidelog.storage.stores.memory import MemoryStore

NEWEST = 7
NO_ID = UUID(int=0)


def topic(name: str, partitions: int = 1, replicas: int = 1, **configs: str) -> CreatableTopic:
    return CreatableTopic(
        name=name,
        num_partitions=partitions,
        replication_factor=replicas,
        configs=[
            CreatableTopicConfig(name=key.replace("_", "."), value=value)
            for key, value in configs.items()
        ],
    )


def assigned(name: str, *partitions: tuple[int, list[int]]) -> CreatableTopic:
    return CreatableTopic(
        name=name,
        num_partitions=-1,
        replication_factor=-1,
        assignments=[
            CreatableReplicaAssignment(partition_index=index, broker_ids=ids)
            for index, ids in partitions
        ],
    )


async def create(
    broker: AdministeredBroker, *topics: CreatableTopic, version: int = NEWEST, check: bool = False
) -> list[CreatableTopicResult]:
    request = CreateTopicsRequest(topics=list(topics), validate_only=check)
    return (await broker.ask(create_topics, request, version)).topics


def codes(results: list[CreatableTopicResult]) -> dict[str, int]:
    return {result.name: result.error_code for result in results}


@pytest.mark.parametrize("version", range(2, 8))
def test_a_topic_is_created_with_the_requested_partitions_and_settings(version: int) -> None:
    async def story(broker: AdministeredBroker) -> None:
        (result,) = await create(broker, topic("t", 3, retention_ms="5"), version=version)
        assert result.error_code == 0
        created = broker.topic("t")
        assert created.partition_count == 3
        assert created.configs == {"retention.ms": "5"}
        if version >= 5:
            assert (result.num_partitions, result.replication_factor) == (3, 1)
            assert result.configs is not None
            configs = {each.name: (each.value, each.config_source) for each in result.configs}
            assert configs["retention.ms"] == ("5", 1)
            assert configs["max.message.bytes"] == ("1048588", 5)
        if version >= 7:
            assert result.topic_id == created.topic_id

    administer(story)


@pytest.mark.parametrize(
    ("wanted", "code"),
    [
        (topic(""), ErrorCode.INVALID_TOPIC_EXCEPTION),
        (topic("."), ErrorCode.INVALID_TOPIC_EXCEPTION),
        (topic("a b"), ErrorCode.INVALID_TOPIC_EXCEPTION),
        (topic("ä"), ErrorCode.INVALID_TOPIC_EXCEPTION),
        (topic("x" * 250), ErrorCode.INVALID_TOPIC_EXCEPTION),
        (topic("__consumer_offsets"), ErrorCode.INVALID_TOPIC_EXCEPTION),
        (topic("there"), ErrorCode.TOPIC_ALREADY_EXISTS),
        (topic("with_dots"), ErrorCode.INVALID_TOPIC_EXCEPTION),
        (topic("t", 0), ErrorCode.INVALID_PARTITIONS),
        (topic("t", -2), ErrorCode.INVALID_PARTITIONS),
        (topic("t", 1, 0), ErrorCode.INVALID_REPLICATION_FACTOR),
        (topic("t", 1, -2), ErrorCode.INVALID_REPLICATION_FACTOR),
        (topic("t", no_such="1"), ErrorCode.INVALID_CONFIG),
        (topic("t", retention_ms="soon"), ErrorCode.INVALID_CONFIG),
        (
            CreatableTopic(
                name="t",
                num_partitions=1,
                replication_factor=1,
                configs=[CreatableTopicConfig(name="retention.ms", value=None)],
            ),
            ErrorCode.INVALID_CONFIG,
        ),
        (assigned("t", (0, [9])), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (assigned("t", (0, [])), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (assigned("t", (0, [1, 1])), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (assigned("t", (0, [1]), (2, [1])), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (assigned("t", (0, [1]), (0, [1])), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (
            CreatableTopic(
                name="t",
                num_partitions=1,
                replication_factor=-1,
                assignments=[CreatableReplicaAssignment(partition_index=0, broker_ids=[1])],
            ),
            ErrorCode.INVALID_REQUEST,
        ),
    ],
)
def test_a_topic_that_cannot_be_is_refused_and_the_others_are_created(
    wanted: CreatableTopic, code: ErrorCode
) -> None:
    async def story(broker: AdministeredBroker) -> None:
        await create(broker, topic("there"), topic("with.dots"))
        results = await create(broker, topic("good"), wanted, topic("also.good"))
        assert codes(results)["good"] == codes(results)["also.good"] == 0
        (refused,) = [each for each in results if each.name == wanted.name]
        assert (refused.error_code, refused.topic_id) == (code, NO_ID)
        assert refused.error_message
        names = {each.name for each in broker.state.topics.values()}
        assert names == {"there", "with.dots", "good", "also.good"}

    administer(story)


@pytest.mark.parametrize("replicas", [-1, 1, 3, 30_000])
def test_any_replication_factor_is_accepted_and_one_replica_reported(replicas: int) -> None:
    async def story(broker: AdministeredBroker) -> None:
        (result,) = await create(broker, topic("t", -1, replicas))
        assert (result.error_code, result.num_partitions, result.replication_factor) == (0, 4, 1)

    administer(story, num_partitions=4)


def test_a_name_twice_in_a_request_is_created_not_even_once() -> None:
    async def story(broker: AdministeredBroker) -> None:
        results = await create(broker, topic("a"), topic("b"), topic("a", 2))
        assert codes(results) == {"a": ErrorCode.INVALID_REQUEST, "b": 0}
        assert len(results) == 2
        assert broker.state.topic_named("a") is None

    administer(story)


def test_names_of_one_request_that_collide() -> None:
    async def story(broker: AdministeredBroker) -> None:
        results = await create(broker, topic("a.b"), topic("a_b"))
        assert codes(results) == {"a.b": 0, "a_b": ErrorCode.INVALID_TOPIC_EXCEPTION}

    administer(story)


def test_checking_only_creates_nothing() -> None:
    async def story(broker: AdministeredBroker) -> None:
        before = broker.state.sequence
        results = await create(broker, topic("a", 3), topic("b", 0), check=True)
        assert codes(results) == {"a": 0, "b": ErrorCode.INVALID_PARTITIONS}
        assert (results[0].num_partitions, results[0].topic_id) == (3, NO_ID)
        assert broker.state.sequence == before

    administer(story)


def test_of_two_creations_at_once_one_wins_and_the_other_is_told() -> None:
    """Two brokers share one bucket. The loser looks again before it answers."""

    async def main() -> None:
        store = MemoryStore(SystemClock())
        first, second = await new_broker(store, 1), await new_broker(store, 2)
        answers = await asyncio.gather(
            *(
                create(broker, topic("t"), topic(f"own{broker.incarnation.broker_id}"))
                for broker in (first, second)
            )
        )
        outcome = sorted(result.error_code for results in answers for result in results)
        assert outcome == [0, 0, 0, ErrorCode.TOPIC_ALREADY_EXISTS]
        await first.metadata.refresh()
        await second.metadata.refresh()
        assert first.topic("t") == second.topic("t")
        for broker in (first, second):
            await broker.metadata.close()

    asyncio.run(main())


class FailingStore(MemoryStore):
    """A store that refuses puts when `error` is set."""

    error: type[StoreError] | None = None

    async def put(
        self, key: str, data: Buffer | Sequence[Buffer], condition: Condition | None = None
    ) -> str:
        if self.error is not None:
            raise self.error(key, "the store fails")
        return await super().put(key, data, condition)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (AccessDenied, ErrorCode.UNKNOWN_SERVER_ERROR),
        (StoreMisconfigured, ErrorCode.UNKNOWN_SERVER_ERROR),
    ],
)
def test_a_store_that_fails_refuses_the_creation_and_nothing_is_claimed(
    error: type[StoreError], code: ErrorCode
) -> None:
    async def main() -> None:
        store = FailingStore(SystemClock())
        broker = await new_broker(store)
        store.error = error
        (result, bad) = await create(broker, topic("t"), topic("b", 0))
        assert result.error_code == code
        assert "the store fails" in (result.error_message or "")
        assert bad.error_code == ErrorCode.INVALID_PARTITIONS
        assert broker.state.topic_named("t") is None
        await broker.metadata.close()

    asyncio.run(main())


def test_a_fenced_broker_sends_clients_away() -> None:
    async def story(broker: AdministeredBroker) -> None:
        await broker.end()
        (result,) = await create(broker, topic("t"))
        assert result.error_code == ErrorCode.NOT_CONTROLLER
        response = await broker.ask(delete_topics, DeleteTopicsRequest(topic_names=["t"]), 4)
        assert response.responses[0].error_code == ErrorCode.NOT_CONTROLLER

    administer(story)


# --- placement ---


def test_partitions_go_to_the_broker_that_has_fewest() -> None:
    async def main() -> None:
        store = MemoryStore(SystemClock())
        brokers = [await new_broker(store, 1)]
        await create(brokers[0], topic("old", 4))
        brokers += [await new_broker(store, broker_id) for broker_id in (2, 3)]
        await brokers[1].metadata.refresh()
        await create(brokers[1], topic("new", 5))
        assert brokers[1].owners("old") == [1, 1, 1, 1]
        assert sorted(brokers[1].owners("new")) == [2, 2, 2, 3, 3]
        await brokers[2].end()
        await brokers[1].metadata.refresh()
        await create(brokers[1], topic("last", 4))
        assert sorted(brokers[1].owners("last")) == [1, 1, 2, 2]
        for broker in brokers:
            await broker.metadata.close()

    asyncio.run(main())


def test_without_a_live_broker_nothing_is_assigned() -> None:
    with pytest.raises(NoLiveBroker):
        Placement(ClusterState())


def test_the_first_broker_of_an_assignment_leads() -> None:
    async def main() -> None:
        store = MemoryStore(SystemClock())
        first, second = await new_broker(store, 1), await new_broker(store, 2)
        wanted = assigned("t", (1, [2, 1]), (0, [1, 2]), (2, [2, 1]))
        (result,) = await create(second, wanted)
        assert (result.error_code, result.num_partitions) == (0, 3)
        assert second.owners("t") == [1, 2, 2]
        (uneven,) = await create(second, assigned("u", (0, [1, 2]), (1, [1])))
        assert uneven.error_code == ErrorCode.INVALID_REPLICA_ASSIGNMENT
        for broker in (first, second):
            await broker.metadata.close()

    asyncio.run(main())


# --- deletion ---


@pytest.mark.parametrize("version", range(1, 7))
def test_topics_are_deleted(version: int) -> None:
    async def story(broker: AdministeredBroker) -> None:
        await create(broker, topic("a"), topic("b"))
        b_id = broker.topic("b").topic_id
        if version >= 6:
            request = DeleteTopicsRequest(
                topics=[
                    DeleteTopicState(name="a"),
                    DeleteTopicState(name=None, topic_id=b_id),
                    DeleteTopicState(name="c"),
                    DeleteTopicState(name=None, topic_id=UUID(int=5)),
                    DeleteTopicState(name=None),
                    DeleteTopicState(name="a", topic_id=b_id),
                ]
            )
            expected = [
                ("a", 0),
                ("b", 0),
                ("c", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
                (None, ErrorCode.UNKNOWN_TOPIC_ID),
                (None, ErrorCode.INVALID_REQUEST),
                ("a", ErrorCode.INVALID_REQUEST),
            ]
        else:
            request = DeleteTopicsRequest(topic_names=["a", "b", "c"])
            expected = [("a", 0), ("b", 0), ("c", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)]
        response = await broker.ask(delete_topics, request, version)
        assert [(each.name, each.error_code) for each in response.responses] == expected
        assert broker.state.topics == {}

    administer(story)


def test_a_topic_named_twice_is_deleted_at_most_once() -> None:
    async def story(broker: AdministeredBroker) -> None:
        await create(broker, topic("a"), topic("b"))
        b_id = broker.topic("b").topic_id
        names = [DeleteTopicState(name="a"), DeleteTopicState(name="a")]
        both = [DeleteTopicState(name="b"), DeleteTopicState(name=None, topic_id=b_id)]
        request = DeleteTopicsRequest(topics=names + both)
        response = await broker.ask(delete_topics, request, 6)
        assert [each.error_code for each in response.responses] == [
            ErrorCode.INVALID_REQUEST,
            0,
            ErrorCode.INVALID_REQUEST,
        ]
        assert [each.name for each in broker.state.topics.values()] == ["a"]

    administer(story)


@pytest.mark.parametrize(
    ("version", "code"),
    [(1, ErrorCode.INVALID_REQUEST), (6, ErrorCode.TOPIC_DELETION_DISABLED)],
)
def test_deletion_can_be_forbidden(version: int, code: ErrorCode) -> None:
    async def story(broker: AdministeredBroker) -> None:
        await create(broker, topic("a"))
        request = DeleteTopicsRequest(topics=[DeleteTopicState(name="a")], topic_names=["a"])
        if version < 6:
            request.topics = []
        else:
            request.topic_names = []
        response = await broker.ask(delete_topics, request, version)
        assert [each.error_code for each in response.responses] == [code]
        assert broker.topic("a")

    administer(story, delete_topic_enable=False)


# --- more partitions ---


async def extend(
    broker: AdministeredBroker,
    *topics: CreatePartitionsTopic,
    version: int = 3,
    check: bool = False,
) -> list[CreatePartitionsTopicResult]:
    request = CreatePartitionsRequest(topics=list(topics), validate_only=check)
    return (await broker.ask(create_partitions, request, version)).results


def more(name: str, count: int, *assignments: list[int]) -> CreatePartitionsTopic:
    return CreatePartitionsTopic(
        name=name,
        count=count,
        assignments=[CreatePartitionsAssignment(broker_ids=ids) for ids in assignments] or None,
    )


@pytest.mark.parametrize("version", range(4))
def test_partitions_are_added(version: int) -> None:
    async def story(broker: AdministeredBroker) -> None:
        await create(broker, topic("t", 2), topic("u"))
        results = await extend(broker, more("t", 5), more("u", 2, [1]), version=version)
        assert [each.error_code for each in results] == [0, 0]
        assert broker.topic("t").partition_count == 5
        assert broker.topic("u").partition_count == 2

    administer(story)


@pytest.mark.parametrize(
    ("wanted", "code"),
    [
        (more("no", 2), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (more("t", 2), ErrorCode.INVALID_PARTITIONS),
        (more("t", 1), ErrorCode.INVALID_PARTITIONS),
        (more("t", -1), ErrorCode.INVALID_PARTITIONS),
        (more("t", 4, [1]), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (more("t", 3, [9]), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (more("t", 3, [1, 2]), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
    ],
)
def test_partitions_that_cannot_be_added(wanted: CreatePartitionsTopic, code: ErrorCode) -> None:
    async def story(broker: AdministeredBroker) -> None:
        await create(broker, topic("t", 2), topic("u"))
        results = await extend(broker, wanted, more("u", 2))
        assert {each.name: each.error_code for each in results} == {wanted.name: code, "u": 0}
        assert broker.topic("t").partition_count == 2
        assert broker.topic("u").partition_count == 2

    administer(story)


def test_a_topic_named_twice_is_not_extended_and_checking_only_extends_nothing() -> None:
    async def story(broker: AdministeredBroker) -> None:
        await create(broker, topic("t"))
        (twice,) = await extend(broker, more("t", 2), more("t", 3))
        assert twice.error_code == ErrorCode.INVALID_REQUEST
        (checked,) = await extend(broker, more("t", 2), check=True)
        assert checked.error_code == 0
        assert broker.topic("t").partition_count == 1

    administer(story)
