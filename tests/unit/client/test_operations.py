"""Writing, reading, looking up and administering through the client, as callers see it."""

from __future__ import annotations

import pytest

from tests.unit.client.scripted_broker import Answer
from tests.unit.client.scripted_cluster import FLIGHTS, ScriptedCluster
from tests.unit.client.simulated import World, play
from tidelog.client.admin.administration import (
    NewTopic,
    create_topics,
    delete_topics,
    describe_cluster,
    describe_topics,
    list_topics,
    topic_configs,
)
from tidelog.client.errors import ReadRefused, RequestOutcome, RequestRefused
from tidelog.client.metadata import TopicMetadata
from tidelog.client.operations import (
    ACKS_NONE,
    EARLIEST,
    LATEST,
    IsolationLevel,
    ProducerIdentity,
    fetch,
    init_producer_id,
    list_offsets,
    produce,
)
from tidelog.protocol.api import ApiKey
from tidelog.protocol.error_codes import ErrorCode
from tidelog.protocol.schemas.cluster.configs import (
    DescribeConfigsRequest,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
)
from tidelog.protocol.schemas.cluster.metadata import (
    DescribeClusterBroker,
    DescribeClusterRequest,
    DescribeClusterResponse,
)
from tidelog.protocol.schemas.cluster.topics import (
    CreatableTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeletableTopicResult,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
)
from tidelog.protocol.schemas.fetch import AbortedTransaction, FetchRequest
from tidelog.protocol.schemas.produce import (
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceResponse,
)
from tidelog.protocol.schemas.transactions import (
    InitProducerIdRequest,
    InitProducerIdResponse,
)


def test_produced_records_are_fetched() -> None:
    async def story(world: World) -> None:
        cluster = await ScriptedCluster.start(world)
        async with world.client(cluster.brokers[0].address) as client:
            assert await produce(client, "flights", 1, b"one" * 1000) == 0
            assert await produce(client, "flights", 1, memoryview(b"two")) == 1
            assert await produce(client, "flights", 1, b"three", acks=ACKS_NONE) == -1
            fetched = await fetch(client, "flights", 1, 1, isolation=IsolationLevel.READ_COMMITTED)
            assert b"".join(fetched.records) == b"twothree"
            assert fetched.high_watermark == 3
            assert fetched.last_stable_offset == 2
            assert fetched.log_start_offset == 0
            assert fetched.aborted == [AbortedTransaction(producer_id=5, first_offset=0)]
            at_the_end = await fetch(client, "flights", 1, 3, max_wait_ms=10)
            assert at_the_end.records == []
            assert at_the_end.aborted == []
        (request, _) = cluster.brokers[1].seen(FetchRequest)
        assert request.isolation_level == 1
        assert request.topics[0].partitions[0].partition_max_bytes == request.max_bytes

    play(story)


def test_fetches_of_older_brokers_name_the_topic() -> None:
    async def story(world: World) -> None:
        cluster = await ScriptedCluster.start(world)
        broker = cluster.brokers[0]
        broker.versions[ApiKey.FETCH] = (4, 11)
        seen: list[str] = []

        def answer(request: FetchRequest) -> Answer:
            seen.append(request.topics[0].topic)
            request.topics[0].topic_id = FLIGHTS
            return cluster.fetched(0, request)

        broker.on(FetchRequest, answer)
        async with world.client(broker.address) as client:
            await fetch(client, "flights", 0, 0)
        assert seen == ["flights"]

    play(story)


def test_a_fetch_beyond_the_end_is_refused() -> None:
    async def story(world: World) -> None:
        cluster = await ScriptedCluster.start(world)
        async with world.client(cluster.brokers[0].address) as client:
            with pytest.raises(ReadRefused, match="flights-0 at 7: OFFSET_OUT_OF_RANGE") as caught:
                await fetch(client, "flights", 0, 7)
            assert not caught.value.retriable
            assert "applied" not in str(caught.value)

    play(story)


@pytest.mark.parametrize(
    ("code", "outcome"),
    [
        (ErrorCode.REQUEST_TIMED_OUT, RequestOutcome.UNKNOWN),
        (ErrorCode.KAFKA_STORAGE_ERROR, RequestOutcome.UNKNOWN),
        (ErrorCode.INVALID_PRODUCER_EPOCH, RequestOutcome.NOT_APPLIED),
        (ErrorCode.CORRUPT_MESSAGE, RequestOutcome.NOT_APPLIED),
        (9999, RequestOutcome.NOT_APPLIED),
    ],
)
def test_a_refused_produce_tells_its_outcome(code: int, outcome: RequestOutcome) -> None:
    async def story(world: World) -> None:
        cluster = await ScriptedCluster.start(world)
        result = PartitionProduceResponse(error_code=code, error_message="because")
        answer = ProduceResponse(
            responses=[TopicProduceResponse(name="flights", partition_responses=[result])]
        )
        cluster.brokers[0].on(ProduceRequest, lambda request: answer)
        async with world.client(cluster.brokers[0].address) as client:
            with pytest.raises(RequestRefused, match=f"because.*{outcome.value}") as caught:
                await produce(client, "flights", 0, b"x")
        assert caught.value.outcome is outcome
        assert caught.value.code == code

    play(story)


def test_offsets_are_looked_up() -> None:
    async def story(world: World) -> None:
        cluster = await ScriptedCluster.start(world)
        async with world.client(cluster.brokers[0].address) as client:
            for _ in range(3):
                await produce(client, "flights", 0, b"x")
            assert (await list_offsets(client, "flights", 0, LATEST)).offset == 3
            assert (await list_offsets(client, "flights", 0, EARLIEST)).offset == 0
            assert await list_offsets(client, "flights", 0, 12345) == (-1, -1, 3)

    play(story)


def test_producer_identities() -> None:
    async def story(world: World) -> None:
        cluster = await ScriptedCluster.start(world)
        broker = cluster.brokers[0]
        answer = InitProducerIdResponse(producer_id=4, producer_epoch=1)
        broker.on(InitProducerIdRequest, lambda request: answer)
        async with world.client(broker.address) as client:
            assert await init_producer_id(client) == ProducerIdentity(4, 1)
            await init_producer_id(client, current=ProducerIdentity(4, 1))
            answer.error_code = int(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
            with pytest.raises(RequestRefused, match="identity of a producer"):
                await init_producer_id(client)
        first, second, _ = broker.seen(InitProducerIdRequest)
        assert (first.producer_id, first.producer_epoch) == (-1, -1)
        assert (second.producer_id, second.producer_epoch) == (4, 1)

    play(story)


def test_topics_are_created_and_deleted_each_with_its_own_result() -> None:
    async def story(world: World) -> None:
        cluster = await ScriptedCluster.start(world)
        broker = cluster.brokers[0]
        exists = int(ErrorCode.TOPIC_ALREADY_EXISTS)
        broker.on(
            CreateTopicsRequest,
            lambda request: CreateTopicsResponse(
                topics=[
                    CreatableTopicResult(name="a"),
                    CreatableTopicResult(name="b", error_code=exists, error_message="old"),
                ]
            ),
        )
        broker.on(
            DeleteTopicsRequest,
            lambda request: DeleteTopicsResponse(
                responses=[
                    DeletableTopicResult(name="a"),
                    DeletableTopicResult(name="c", error_code=3),
                ]
            ),
        )
        async with world.client(broker.address) as client:
            wanted = [NewTopic("a", 3, 1, {"cleanup.policy": "compact"}), NewTopic("b")]
            created = await create_topics(client, wanted)
            assert created["a"] is None
            assert "topic b: TOPIC_ALREADY_EXISTS (old)" in str(created["b"])
            deleted = await delete_topics(client, ["a", "c"])
            assert deleted["a"] is None
            assert "topic c: UNKNOWN_TOPIC_OR_PARTITION" in str(deleted["c"])
        (request,) = broker.seen(CreateTopicsRequest)
        assert [topic.num_partitions for topic in request.topics] == [3, -1]
        assert request.topics[0].configs[0].value == "compact"
        assert [topic.name for topic in broker.seen(DeleteTopicsRequest)[0].topics] == ["a", "c"]

    play(story)


def test_topics_are_listed_and_described() -> None:
    async def story(world: World) -> None:
        cluster = await ScriptedCluster.start(world)
        cluster.leaders["airports"] = [1]
        async with world.client(cluster.brokers[0].address) as client:
            assert [topic.name for topic in await list_topics(client)] == ["airports", "flights"]
            described = await describe_topics(client, ["flights", "nothing"])
        flights = described["flights"]
        assert isinstance(flights, TopicMetadata)
        assert [p.leader_id for p in flights.partitions.values()] == [0, 1, -1]
        assert flights.partitions[1].replicas == (1,)
        assert isinstance(described["nothing"], RequestRefused)

    play(story)


def test_settings_and_the_cluster_are_described() -> None:
    async def story(world: World) -> None:
        cluster = await ScriptedCluster.start(world)
        broker = cluster.brokers[0]
        setting = DescribeConfigsResourceResult(name="retention.ms", value="1")
        result = DescribeConfigsResult(resource_name="flights", configs=[setting])
        brokers = [DescribeClusterBroker(broker_id=0, host="h", port=1)]
        told = DescribeClusterResponse(cluster_id="c", brokers=brokers)
        broker.on(DescribeConfigsRequest, lambda request: DescribeConfigsResponse(results=[result]))
        broker.on(DescribeClusterRequest, lambda request: told)
        async with world.client(broker.address) as client:
            assert await topic_configs(client, "flights") == [setting]
            assert (await describe_cluster(client)).cluster_id == "c"
            result.error_code = told.error_code = 29
            with pytest.raises(RequestRefused, match="TOPIC_AUTHORIZATION_FAILED"):
                await topic_configs(client, "flights")
            with pytest.raises(RequestRefused, match="TOPIC_AUTHORIZATION_FAILED"):
                await describe_cluster(client)

    play(story)
