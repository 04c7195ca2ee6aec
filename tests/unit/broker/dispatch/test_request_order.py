"""Requests of a connection in one write: no answer shows less than earlier requests did."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from tests.unit.broker.loopback import Client
from tests.unit.broker.one_broker import TOPIC, OneBroker, World, batch, produce_request, run, until
from tests.unit.broker.transactional_client import GROUP, find, loaded
from tests.unit.wal.gated_store import GatedStore
from tidelog.broker.dispatch.request_order import SIDE_BY_SIDE
from tidelog.broker.dispatch.routes import HANDLERS
from tidelog.clock import SystemClock
from tidelog.protocol.message import Request, Response
from tidelog.protocol.schemas.cluster.configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResponse,
    IncrementalAlterableConfig,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResource,
    IncrementalAlterConfigsResponse,
)
from tidelog.protocol.schemas.cluster.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
)
from tidelog.protocol.schemas.cluster.topics import (
    CreatableTopic,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopic,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
)
from tidelog.protocol.schemas.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from tidelog.protocol.schemas.group_offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
)
from tidelog.protocol.schemas.offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from tidelog.protocol.schemas.produce import ProduceResponse
from tidelog.storage.stores.memory import MemoryStore

EARLIEST, LATEST = -2, -1
VERSIONS: dict[type[Response], int] = {
    ProduceResponse: 9,
    FetchResponse: 12,
    ListOffsetsResponse: 9,
    DeleteRecordsResponse: 2,
    CreateTopicsResponse: 7,
    DeleteTopicsResponse: 5,
    MetadataResponse: 9,
    OffsetCommitResponse: 8,
    OffsetFetchResponse: 8,
    DescribeConfigsResponse: 4,
    IncrementalAlterConfigsResponse: 1,
}


class Pipe:
    """One connection. Requests that are asked together go out in one write."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def send(self, *asked: tuple[Request[Any], type[Response]]) -> None:
        """Send requests without waiting for answers."""
        for request, response in asked:
            self._client.send(request, VERSIONS[response])

    async def receive(self, response: type[Response]) -> Any:
        return (await self._client.receive(response, VERSIONS[response]))[1]

    async def ask(self, *asked: tuple[Request[Any], type[Response]]) -> list[Any]:
        """The answers to these requests."""
        self.send(*asked)
        return [await self.receive(response) for _, response in asked]


@asynccontextmanager
async def connected(one: OneBroker) -> AsyncIterator[Pipe]:
    client = Client(*await asyncio.open_connection(*one.broker.membership.advertised))
    try:
        yield Pipe(client)
    finally:
        await client.close()


def world(store: Any = None) -> World:
    return World(
        store or MemoryStore(SystemClock()),
        offsets_topic_num_partitions=1,
        transaction_state_log_num_partitions=1,
    )


def produced(value: bytes, *, acks: int = -1, topic: str = TOPIC) -> Any:
    return produce_request(topic, 0, batch(value), acks, 5000), ProduceResponse


def listed(timestamp: int) -> Any:
    partition = ListOffsetsPartition(partition_index=0, timestamp=timestamp)
    request = ListOffsetsRequest(topics=[ListOffsetsTopic(name=TOPIC, partitions=[partition])])
    return request, ListOffsetsResponse


def fetched(offset: int) -> Any:
    partition = FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=1 << 20)
    request = FetchRequest(
        max_wait_ms=0,
        min_bytes=0,
        max_bytes=1 << 20,
        topics=[FetchTopic(topic=TOPIC, partitions=[partition])],
    )
    return request, FetchResponse


def deleted(offset: int) -> Any:
    partition = DeleteRecordsPartition(partition_index=0, offset=offset)
    topic = DeleteRecordsTopic(name=TOPIC, partitions=[partition])
    return DeleteRecordsRequest(topics=[topic], timeout_ms=5000), DeleteRecordsResponse


def committed(offset: int) -> Any:
    partition = OffsetCommitRequestPartition(committed_offset=offset)
    topic = OffsetCommitRequestTopic(name=TOPIC, partitions=[partition])
    return OffsetCommitRequest(group_id=GROUP, topics=[topic]), OffsetCommitResponse


def offset_asked() -> Any:
    topic = OffsetFetchRequestTopics(name=TOPIC, partition_indexes=[0])
    group = OffsetFetchRequestGroup(group_id=GROUP, topics=[topic])
    return OffsetFetchRequest(groups=[group]), OffsetFetchResponse


def topics_asked(name: str) -> Any:
    request = MetadataRequest(
        topics=[MetadataRequestTopic(name=name)], allow_auto_topic_creation=False
    )
    return request, MetadataResponse


def offset_in(answer: Any) -> int:
    """The offset in a response to ListOffsets."""
    return int(answer.topics[0].partitions[0].offset)


def test_offsets_and_fetches_cover_records_produced_before_the_request() -> None:
    async def story() -> None:
        async with world().broker() as one:
            await one.create_topic()
            async with connected(one) as pipe:
                for number in range(10):
                    _, latest, found = await pipe.ask(
                        produced(b"%d" % number), listed(LATEST), fetched(number)
                    )
                    assert offset_in(latest) == number + 1
                    assert found.responses[0].partitions[0].records

    run(story)


def test_offsets_cover_records_with_acks_0_produced_before_the_request() -> None:
    async def story() -> None:
        async with world().broker() as one:
            await one.create_topic()
            async with connected(one) as pipe:
                for number in range(10):
                    pipe.send(produced(b"a", acks=0), produced(b"b", acks=0), listed(LATEST))
                    latest = await pipe.receive(ListOffsetsResponse)
                    assert offset_in(latest) == 2 * number + 2

    run(story)


def test_a_log_begins_where_records_were_deleted_before() -> None:
    async def story() -> None:
        async with world().broker() as one:
            await one.create_topic()
            async with connected(one) as pipe:
                for number in range(10):
                    asked = produced(b"x"), deleted(-1), listed(EARLIEST)
                    assert offset_in((await pipe.ask(*asked))[2]) == number + 1

    run(story)


def test_a_request_sees_earlier_creations_changes_and_deletions() -> None:
    async def story() -> None:
        async with world().broker() as one, connected(one) as pipe:
            create = CreateTopicsRequest(
                topics=[CreatableTopic(name="new", num_partitions=1, replication_factor=1)]
            )
            alter = IncrementalAlterConfigsRequest(
                resources=[
                    IncrementalAlterConfigsResource(
                        resource_type=2,
                        resource_name="new",
                        configs=[IncrementalAlterableConfig(name="retention.ms", value="1234567")],
                    )
                ]
            )
            describe = DescribeConfigsRequest(
                resources=[
                    DescribeConfigsResource(
                        resource_type=2,
                        resource_name="new",
                        configuration_keys=["retention.ms"],
                    )
                ]
            )
            answers = await pipe.ask(
                (create, CreateTopicsResponse),
                topics_asked("new"),
                produced(b"x", topic="new"),
                (alter, IncrementalAlterConfigsResponse),
                (describe, DescribeConfigsResponse),
                (DeleteTopicsRequest(topic_names=["new"]), DeleteTopicsResponse),
                topics_asked("new"),
            )
            assert answers[1].topics[0].error_code == 0
            assert answers[2].responses[0].partition_responses[0].error_code == 0
            assert answers[4].results[0].configs[0].value == "1234567"
            assert answers[6].topics[0].error_code == 3

    run(story)


def test_a_group_is_told_the_offset_that_was_committed_before() -> None:
    async def story() -> None:
        async with world().broker() as one:
            await one.create_topic()
            await find(one, GROUP, 0)
            await loaded(one)
            async with connected(one) as pipe:
                for number in range(10):
                    first, asked = 2 * number, offset_asked()
                    answers = await pipe.ask(committed(first), committed(first + 1), asked)
                    found = answers[2].groups[0].topics[0].partitions[0]
                    assert found.committed_offset == first + 1

    run(story)


def test_produce_requests_and_commits_still_share_slots() -> None:
    """One put takes all requests that are waiting. Requests that read the log wait for the put."""

    async def story() -> None:
        store = GatedStore(MemoryStore(SystemClock()))
        store.open()
        async with world(store).broker() as one:
            await one.create_topic()
            await find(one, GROUP, 0)
            await loaded(one)
            async with connected(one) as pipe, connected(one) as groups:
                await pipe.ask(produced(b"first"))
                store.is_open = False
                before = one.broker.writes.wal.slot
                pipe.send(*[produced(b"%d" % number) for number in range(20)], listed(LATEST))
                groups.send(*[committed(number) for number in range(20)], offset_asked())
                log = one.broker.writes.partitions.named(TOPIC, 0).log
                await until(lambda: log.next_offset == 21 and store.waiting)
                store.open()
                for number in range(20):
                    answer = await pipe.receive(ProduceResponse)
                    result = answer.responses[0].partition_responses[0]
                    assert (result.error_code, result.base_offset) == (0, number + 1)
                    await groups.receive(OffsetCommitResponse)
                assert offset_in(await pipe.receive(ListOffsetsResponse)) == 21
                found = (await groups.receive(OffsetFetchResponse)).groups[0].topics[0]
                assert found.partitions[0].committed_offset == 19
                assert one.broker.writes.wal.slot - before <= 3

    run(story)


def test_every_api_that_runs_side_by_side_has_a_handler() -> None:
    named = {*SIDE_BY_SIDE, *(key for others in SIDE_BY_SIDE.values() for key in others)}
    assert named <= set(HANDLERS)
