"""Fetches and changes of topics over quotas, at whole brokers that follow the metadata log."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from tests.unit.broker.administered import AdministeredBroker, administer
from tests.unit.broker.one_broker import OneBroker, World, batch, run
from tidelog.broker.handlers.cluster.metadata import metadata
from tidelog.broker.handlers.cluster.topics import create_partitions, create_topics, delete_topics
from tidelog.broker.handlers.data.fetch import fetch
from tidelog.clock import SystemClock
from tidelog.coordinator.cluster.records.client_quotas import DEFAULT_NAME, QuotaEntity
from tidelog.coordinator.cluster.records.records import QuotasChanged
from tidelog.protocol.error_codes import ErrorCode
from tidelog.protocol.schemas.cluster.metadata import MetadataRequest, MetadataRequestTopic
from tidelog.protocol.schemas.cluster.topics import (
    CreatableTopic,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
    CreateTopicsRequest,
    DeleteTopicsRequest,
    DeleteTopicState,
)
from tidelog.protocol.schemas.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from tidelog.storage.stores.memory import MemoryStore

ANONYMOUS = QuotaEntity(user="ANONYMOUS")


class Movable(SystemClock):
    """A clock that the test moves forward; requests take no time."""

    ahead = 1000.0

    def monotonic(self) -> float:
        return self.ahead


def fetch_request(offset: int, session: int = 0, epoch: int = -1) -> FetchRequest:
    partition = FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=1 << 20)
    return FetchRequest(
        max_wait_ms=0,
        min_bytes=1,
        max_bytes=1 << 20,
        session_id=session,
        session_epoch=epoch,
        topics=[FetchTopic(topic="flights", partitions=[partition])],
    )


async def fetched(one: OneBroker, request: FetchRequest) -> FetchResponse:
    return await fetch(one.broker.services.data, request, one.context(12))


async def set_quotas(one: OneBroker, entity: QuotaEntity, quotas: Mapping[str, float]) -> None:
    """Set quotas as AlterClientQuotas does at any broker of the cluster."""
    metadata = one.broker.membership.metadata
    record = QuotasChanged(entity, quotas)
    await metadata.append(one.broker.membership.incarnation.epoch, lambda _: (record,))


def sizes(response: FetchResponse) -> list[int]:
    return [
        sum(map(len, each.records or ()))
        for topic in response.responses
        for each in topic.partitions
    ]


def test_a_fetch_over_its_quota_is_empty_and_gets_the_records_later() -> None:
    async def main() -> None:
        world = World(MemoryStore(SystemClock()))
        async with world.broker() as one:
            await one.create_topic()
            for _ in range(3):
                await one.produce(batch(b"x" * 900))
            (whole,) = sizes(await fetched(one, fetch_request(0)))
            await set_quotas(one, ANONYMOUS, {"consumer_byte_rate": whole // 10 + 1})
            answer = await fetched(one, fetch_request(0))
            assert sizes(answer) == [whole]
            assert answer.throttle_time_ms == 0
            answer = await fetched(one, fetch_request(0))
            assert answer.responses == []
            assert answer.error_code == ErrorCode.NONE
            assert answer.throttle_time_ms > 8000
            # Without the quota no client waits.
            await set_quotas(one, ANONYMOUS, {})
            assert sizes(await fetched(one, fetch_request(0))) == [whole]

    run(main)


def test_one_answer_has_no_more_than_its_quota_allows_at_all() -> None:
    async def main() -> None:
        world = World(MemoryStore(SystemClock()))
        async with world.broker() as one:
            await one.create_topic()
            for _ in range(3):
                await one.produce(batch(b"x" * 900))
            whole = sum(sizes(await fetched(one, fetch_request(0))))
            await set_quotas(one, ANONYMOUS, {"consumer_byte_rate": whole // 15})
            answer = await fetched(one, fetch_request(0))
            assert sizes(answer) == [whole // 3]
            assert answer.throttle_time_ms == 0

    run(main)


def test_a_throttled_session_goes_on_and_a_throttled_full_fetch_begins_none() -> None:
    async def main() -> None:
        world = World(MemoryStore(SystemClock()))
        async with world.broker() as one:
            sessions = one.broker.services.data.fetch_sessions
            await one.create_topic()
            await one.produce(batch(b"x" * 900))
            began = await fetched(one, fetch_request(0, epoch=0))
            assert began.session_id
            (size,) = sizes(began)
            await set_quotas(one, ANONYMOUS, {"consumer_byte_rate": size // 10 + 1})
            # The quota is used up, then the session is throttled.
            assert sizes(await fetched(one, fetch_request(0))) == [size]
            throttled = await fetched(one, fetch_request(0, began.session_id, 1))
            assert (throttled.session_id, throttled.responses) == (began.session_id, [])
            assert throttled.throttle_time_ms > 0
            full = await fetched(one, fetch_request(0, epoch=0))
            assert (full.session_id, full.responses) == (0, [])
            assert len(sessions) == 1
            await set_quotas(one, ANONYMOUS, {})
            answer = await fetched(one, fetch_request(0, began.session_id, 2))
            assert sizes(answer) == [size], "this answer has the batch that was held back"

    run(main)


def test_quotas_hold_from_the_start_of_a_broker() -> None:
    async def main() -> None:
        world = World(MemoryStore(SystemClock()))
        async with world.broker() as one:
            assert not one.broker.services.data.quotas.active
            await set_quotas(one, ANONYMOUS, {"producer_byte_rate": 5.0})
            assert one.broker.services.data.quotas.active
        async with world.broker() as one:
            client = one.broker.services.data.quotas.of("ANONYMOUS", "test")
            assert client.produced is not None
            assert client.produced.quota == 5

    run(main)


def mutating(story: Any, rate: float = 1.0) -> None:
    """Run a story with a broker whose clients may make 11 mutations at once, then `rate`."""

    async def limited(broker: AdministeredBroker) -> None:
        broker.clock = clock = Movable()
        broker.quotas.renew({QuotaEntity(user=DEFAULT_NAME): {"controller_mutation_rate": rate}})
        await story(broker, clock)

    administer(limited)


def topics(*counts: tuple[str, int]) -> CreateTopicsRequest:
    return CreateTopicsRequest(
        topics=[
            CreatableTopic(name=name, num_partitions=count, replication_factor=1)
            for name, count in counts
        ]
    )


def test_the_change_that_exhausts_the_quota_is_the_last_change() -> None:
    async def story(broker: AdministeredBroker, clock: Movable) -> None:
        answer = await broker.ask(create_topics, topics(("a", 10), ("b", 5), ("c", 1)), 7)
        codes = [each.error_code for each in answer.topics]
        assert codes == [0, 0, ErrorCode.THROTTLING_QUOTA_EXCEEDED]
        assert answer.topics[2].error_message == "The throttling quota has been exceeded."
        assert answer.throttle_time_ms == 4000
        assert {topic.name for topic in broker.state.topics.values()} == {"a", "b"}
        clock.ahead += 4
        answer = await broker.ask(create_topics, topics(("c", 1)), 7)
        assert [each.error_code for each in answer.topics] == [0]
        assert answer.throttle_time_ms == 0

    mutating(story)


def test_refused_topics_cost_nothing() -> None:
    async def story(broker: AdministeredBroker, clock: Movable) -> None:
        await broker.ask(create_topics, topics(("a", 1)), 7)
        await broker.ask(create_topics, topics(("a", 100), ("b/c", 100)), 7)
        answer = await broker.ask(create_topics, topics(("d", 10), ("e", 1)), 7)
        assert [each.error_code for each in answer.topics] == [0, 0]

    mutating(story)


@pytest.mark.parametrize(("version", "refused"), [(5, False), (6, True)])
def test_clients_that_do_not_know_the_refusal_wait_afterwards(version: int, refused: bool) -> None:
    async def story(broker: AdministeredBroker, clock: Movable) -> None:
        answer = await broker.ask(create_topics, topics(("a", 15), ("b", 1)), version)
        codes = [each.error_code for each in answer.topics]
        assert codes == [0, ErrorCode.THROTTLING_QUOTA_EXCEEDED if refused else 0]
        assert answer.throttle_time_ms == (4000 if refused else 5000)

    mutating(story)


def test_deleted_and_added_partitions_count() -> None:
    async def story(broker: AdministeredBroker, clock: Movable) -> None:
        await broker.ask(create_topics, topics(("a", 5), ("b", 1)), 7)
        more = CreatePartitionsRequest(
            topics=[CreatePartitionsTopic(name="b", count=6, assignments=None)]
        )
        assert [
            each.error_code for each in (await broker.ask(create_partitions, more, 3)).results
        ] == [0]
        # Eleven are used. The next change is still permitted, as no wait is due.
        gone = DeleteTopicsRequest(topics=[DeleteTopicState(name=name) for name in ("a", "b")])
        deleted = await broker.ask(delete_topics, gone, 6)
        of = {each.name: each.error_code for each in deleted.responses}
        assert of == {"a": 0, "b": ErrorCode.THROTTLING_QUOTA_EXCEEDED}
        assert deleted.throttle_time_ms == 5000
        more = CreatePartitionsRequest(
            topics=[CreatePartitionsTopic(name="b", count=7, assignments=None)]
        )
        answer = await broker.ask(create_partitions, more, 3)
        codes = [each.error_code for each in answer.results]
        assert (codes, answer.throttle_time_ms) == ([ErrorCode.THROTTLING_QUOTA_EXCEEDED], 5000)
        answer = await broker.ask(create_partitions, more, 2)
        assert ([each.error_code for each in answer.results], answer.throttle_time_ms) == (
            [0],
            6000,
        )
        validated = CreatePartitionsRequest(
            topics=[CreatePartitionsTopic(name="b", count=8, assignments=None)], validate_only=True
        )
        answer = await broker.ask(create_partitions, validated, 3)
        assert answer.throttle_time_ms == 6000

    mutating(story)


def test_topics_that_come_by_themselves_count_and_clients_ask_again() -> None:
    async def story(broker: AdministeredBroker, clock: Movable) -> None:
        await broker.ask(create_topics, topics(("a", 15)), 7)
        request = MetadataRequest(
            topics=[MetadataRequestTopic(name="z")], allow_auto_topic_creation=True
        )
        answer = await broker.ask(metadata, request, 8)
        assert [each.error_code for each in answer.topics] == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
        clock.ahead += 5
        answer = await broker.ask(metadata, request, 8)
        assert [each.error_code for each in answer.topics] == [0]

    mutating(story)
