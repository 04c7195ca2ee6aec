"""Limits of requests and of the state that clients leave behind. The answer, the log and the
metrics name the limit that was met, and clients below the limits are served."""

from __future__ import annotations

import asyncio
import logging

import pytest
from prometheus_client.registry import CollectorRegistry

from tests.unit.broker.administered import AdministeredBroker, administer
from tests.unit.broker.group_client import ask as ask_broker
from tests.unit.broker.group_client import find, join
from tests.unit.broker.handlers.test_metadata import ask, errors
from tests.unit.broker.handlers.test_topics import codes, create, topic
from tests.unit.broker.one_broker import TOPIC, OneBroker, World, batch, run
from tests.unit.broker.telemetry.test_fault_log import StandingClock
from tests.unit.broker.transactional_client import TransactionalClient
from tidelog.broker.handlers.cluster.topics import create_partitions
from tidelog.broker.handlers.groups.group_offsets import offset_commit
from tidelog.broker.handlers.groups.groups import delete_groups, join_group, leave_group
from tidelog.broker.telemetry.limits_met import LimitsMet
from tidelog.broker.topics.topic_creation import AutoCreations
from tidelog.clock import SystemClock
from tidelog.protocol.error_codes import ErrorCode
from tidelog.protocol.schemas.cluster.topics import CreatePartitionsRequest, CreatePartitionsTopic
from tidelog.protocol.schemas.group_offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from tidelog.protocol.schemas.groups import (
    DeleteGroupsRequest,
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    LeaveGroupMember,
    LeaveGroupRequest,
)
from tidelog.storage.stores.memory import MemoryStore

UNKNOWN = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
REFUSED = ErrorCode.POLICY_VIOLATION


def met(broker: AdministeredBroker) -> dict[str, float]:
    """How often each limit was met, as the metrics have it."""
    return {
        sample.labels["limit"]: sample.value
        for family in broker.metrics.registry.collect()
        for sample in family.samples
        if sample.name == "tidelog_limited_total"
    }


def metric(broker: OneBroker, name: str, limit: str) -> float | None:
    return broker.broker.metrics.registry.get_sample_value(name, {"limit": limit})


# Reports of limits that were met.


def test_each_limit_that_is_met_counts_and_is_logged_now_and_then(
    caplog: pytest.LogCaptureFixture,
) -> None:
    registry, clock = CollectorRegistry(), StandingClock()
    limits = LimitsMet(registry, clock)
    with caplog.at_level(logging.WARNING):
        for _ in range(100):
            limits.met("topics.max", "there are 7")
        limits.met("groups.max", "there are 9", 3)
        limits.met("groups.max", "there are 9", 0)
    told = [(each.limit, each.why) for each in caplog.records]  # type: ignore[attr-defined]
    assert told == [("topics.max", "there are 7"), ("groups.max", "there are 9")]
    assert registry.get_sample_value("tidelog_limited_total", {"limit": "topics.max"}) == 100
    assert registry.get_sample_value("tidelog_limited_total", {"limit": "groups.max"}) == 3
    caplog.clear()
    clock.now += 10
    limits.met("topics.max", "there are 8")
    assert [each.refused for each in caplog.records] == [101]  # type: ignore[attr-defined]


# Topics and partitions of a cluster.


def test_the_topics_of_a_cluster_are_limited() -> None:
    async def story(broker: AdministeredBroker) -> None:
        results = await create(broker, topic("a"), topic("b"), topic("c"))
        assert codes(results) == {"a": 0, "b": 0, "c": REFUSED}
        assert "topics.max" in (results[2].error_message or "")
        assert met(broker) == {"topics.max": 1}
        assert broker.state.topic_named("c") is None
        checked = await create(broker, topic("d"), check=True)
        assert codes(checked) == {"d": REFUSED}

    administer(story, topics_max=2)


def test_the_partitions_of_a_cluster_are_limited() -> None:
    async def story(broker: AdministeredBroker) -> None:
        results = await create(broker, topic("a", 6), topic("b", 5), topic("c", 4))
        assert codes(results) == {"a": 0, "b": REFUSED, "c": 0}
        grow = CreatePartitionsRequest(topics=[CreatePartitionsTopic(name="a", count=7)])
        (result,) = (await broker.ask(create_partitions, grow, 3)).results
        assert result.error_code == REFUSED
        assert "partitions.max" in (result.error_message or "")
        assert met(broker) == {"partitions.max": 2}
        assert broker.topic("a").partition_count == 6

    administer(story, partitions_max=10)


def test_the_partitions_of_one_request_are_limited() -> None:
    async def story(broker: AdministeredBroker) -> None:
        results = await create(broker, topic("a", 6), topic("b", 5))
        assert codes(results) == {"a": REFUSED, "b": REFUSED}
        assert "create.partitions.request.max" in (results[0].error_message or "")
        assert not broker.state.topics
        assert codes(await create(broker, topic("a", 6))) == {"a": 0}
        grow = CreatePartitionsRequest(topics=[CreatePartitionsTopic(name="a", count=17)])
        (result,) = (await broker.ask(create_partitions, grow, 3)).results
        assert result.error_code == REFUSED

    administer(story, create_partitions_request_max=10)


# Topics that the broker creates because a client asks for them.


def test_the_topics_that_one_metadata_request_creates_are_limited() -> None:
    async def story(broker: AdministeredBroker) -> None:
        names = [f"t{number}" for number in range(5)]
        response = await ask(broker, *names, creating=True)
        assert sorted(errors(response).values()) == [0, 0, 0, UNKNOWN, UNKNOWN]
        assert len(broker.state.topics) == 3
        assert met(broker) == {"auto.create.topics.request.max": 2}
        await ask(broker, *names, creating=True)
        assert len(broker.state.topics) == 5

    administer(story, auto_create_topics_request_max=3)


def test_the_topics_that_metadata_requests_create_in_a_minute_are_limited() -> None:
    async def story(broker: AdministeredBroker) -> None:
        for number in range(5):
            await ask(broker, f"t{number}", creating=True)
        assert len(broker.state.topics) == 3
        assert met(broker) == {"auto.create.topics.minute.max": 2}
        assert codes(await create(broker, topic("asked"))) == {"asked": 0}

    administer(story, auto_create_topics_minute_max=3)


def test_metadata_requests_create_no_more_topics_than_a_cluster_has() -> None:
    async def story(broker: AdministeredBroker) -> None:
        response = await ask(broker, "a", "b", creating=True)
        assert REFUSED in errors(response).values()
        assert len(broker.state.topics) == 1
        assert met(broker) == {"topics.max": 1}

    administer(story, topics_max=1)


def test_unused_creations_of_a_minute_do_not_carry_over() -> None:
    creations = AutoCreations()
    assert creations.take(2, 3, now=0.0) == 2
    assert creations.take(2, 3, now=59.0) == 1
    assert creations.take(1, 3, now=59.9) == 0
    assert creations.take(5, 3, now=60.0) == 3


# Groups of a whole broker.


def world(**settings: object) -> World:
    few = {"group_initial_rebalance_delay_ms": 0, "offsets_topic_num_partitions": 2}
    return World(MemoryStore(SystemClock()), **few, **settings)


def joining(group_id: str, size: int = 10) -> JoinGroupRequest:
    return JoinGroupRequest(
        group_id=group_id,
        session_timeout_ms=10_000,
        rebalance_timeout_ms=60_000,
        protocol_type="consumer",
        protocols=[JoinGroupRequestProtocol(name="range", metadata=b"m" * size)],
    )


def test_member_metadata_of_a_broker_are_limited_and_others_are_served() -> None:
    async def story() -> None:
        async with world(groups_max_bytes=1_000_000).broker() as broker:
            await find(broker)
            own = await join(broker)
            assert own.error_code == ErrorCode.NONE
            refused = 0
            for number in range(40):
                request = joining(f"flood-{number}", 100_000)
                response = await ask_broker(broker, join_group, request, 3)
                refused += response.error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
            assert 30 <= refused < 40
            assert metric(broker, "tidelog_limited_total", "groups.max.bytes") == refused
            held = metric(broker, "tidelog_limit_held", "groups.max.bytes")
            assert held is not None
            assert 500_000 < held <= 1_000_000
            assert metric(broker, "tidelog_limit", "groups.max.bytes") == 1_000_000
            assert not broker.broker.health.faults()
            again = await join(broker, own.member_id)
            assert again.error_code == ErrorCode.NONE

    run(story)


def test_a_group_that_is_gone_makes_room_for_another() -> None:
    async def story() -> None:
        async with world(groups_max=1).broker() as broker:
            await find(broker)
            first = await ask_broker(broker, join_group, joining("a"), 3)
            busy = await ask_broker(broker, join_group, joining("b"), 3)
            assert busy.error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
            left = LeaveGroupRequest(
                group_id="a", members=[LeaveGroupMember(member_id=first.member_id)]
            )
            await ask_broker(broker, leave_group, left, 3)
            deletion = DeleteGroupsRequest(groups_names=["a"])
            (deleted,) = (await ask_broker(broker, delete_groups, deletion, 2)).results
            assert deleted.error_code == ErrorCode.NONE
            found = await ask_broker(broker, join_group, joining("b"), 3)
            assert found.error_code == ErrorCode.NONE

    run(story)


def test_a_group_with_thousands_of_offsets_is_deleted_by_one_request() -> None:
    partitions = 2_500

    async def story() -> None:
        async with world().broker() as broker:
            await broker.create_topic(partitions=partitions)
            await find(broker)
            commit = OffsetCommitRequest(
                group_id="g",
                generation_id_or_member_epoch=-1,
                topics=[
                    OffsetCommitRequestTopic(
                        name=TOPIC,
                        partitions=[
                            OffsetCommitRequestPartition(partition_index=n, committed_offset=1)
                            for n in range(partitions)
                        ],
                    )
                ],
            )
            response = await ask_broker(broker, offset_commit, commit, 8)
            codes = {each.error_code for each in response.topics[0].partitions}
            assert codes == {ErrorCode.NONE}
            deletion = DeleteGroupsRequest(groups_names=["g"])
            (deleted,) = (await ask_broker(broker, delete_groups, deletion, 2)).results
            assert deleted.error_code == ErrorCode.NONE
            assert metric(broker, "tidelog_limit_held", "groups.max.bytes") == 0
            assert metric(broker, "tidelog_limit_held", "groups.max") == 0

    run(story)


# Producers of a whole broker.


def test_the_remembered_producers_of_a_broker_are_limited() -> None:
    async def story() -> None:
        store = world(producer_ids_max=3)
        async with store.broker() as broker:
            await broker.create_topic(partitions=2)
            for producer in range(3):
                sent = batch(b"v", producer_id=producer, producer_epoch=0, base_sequence=0)
                assert (await broker.produce(sent)).error_code == ErrorCode.NONE
            for partition in range(2):
                other = batch(b"v", producer_id=9, producer_epoch=0, base_sequence=0)
                refused = await broker.produce(other, partition)
                assert refused.error_code == REFUSED
                assert "producer.ids.max" in (refused.error_message or "")
            known = batch(b"w", producer_id=1, producer_epoch=0, base_sequence=1)
            assert (await broker.produce(known)).error_code == ErrorCode.NONE
            assert (await broker.produce(batch(b"plain"))).error_code == ErrorCode.NONE
            assert metric(broker, "tidelog_limited_total", "producer.ids.max") == 2
            assert metric(broker, "tidelog_limit_held", "producer.ids.max") == 3
            assert len(await broker.read_all()) == 5
        async with store.broker() as broker:
            assert metric(broker, "tidelog_limit_held", "producer.ids.max") == 3

    run(story)


def test_a_transaction_ends_where_no_producer_more_is_remembered() -> None:
    """The broker refuses the first batch in a partition, but takes the marker of an enlisted
    partition."""

    async def story() -> None:
        async with world(producer_ids_max=1).broker() as broker:
            await broker.create_topic(partitions=2)
            plain = batch(b"v", producer_id=77, producer_epoch=0, base_sequence=0)
            assert (await broker.produce(plain)).error_code == ErrorCode.NONE
            client = TransactionalClient(broker, version=0)
            assert await client.init() is ErrorCode.NONE
            assert await client.add(0) is ErrorCode.NONE
            assert await client.send(b"v", adds=False) is REFUSED
            assert await client.abort() is ErrorCode.NONE

    run(story)


def test_transactional_ids_of_a_broker_are_limited() -> None:
    async def story() -> None:
        limits = {"transactional_ids_max": 2, "transaction_max_partitions": 1}
        async with world(**limits).broker() as broker:
            await broker.create_topic(partitions=2)
            clients = [TransactionalClient(broker, f"t{number}", version=0) for number in range(3)]
            answers = [await client.init() for client in clients]
            assert answers == [ErrorCode.NONE, ErrorCode.NONE, REFUSED]
            assert metric(broker, "tidelog_limited_total", "transactional.ids.max") == 1
            assert metric(broker, "tidelog_limit_held", "transactional.ids.max") == 2
            assert await clients[0].add(0, 1) is REFUSED
            assert metric(broker, "tidelog_limited_total", "transaction.max.partitions") == 1
            assert await clients[0].add(0) is ErrorCode.NONE
            assert metric(broker, "tidelog_limit_held", "transactions.max.partitions") == 1

    run(story)


def test_a_coordinator_that_is_given_away_holds_nothing() -> None:
    async def story() -> None:
        async with world().broker() as broker:
            await find(broker)
            await ask_broker(broker, join_group, joining("a"), 3)
            assert metric(broker, "tidelog_limit_held", "groups.max") == 1
            broker.broker.coordination.coordinators.groups.stop()
            await asyncio.sleep(0)
            assert metric(broker, "tidelog_limit_held", "groups.max") == 0

    run(story)
