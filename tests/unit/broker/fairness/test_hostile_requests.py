"""A request that names thousands of items, or whose answer has thousands, does not stop other
clients: the event loop goes round many times before the answer begins."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from itertools import pairwise
from uuid import uuid4

import pytest

from tests.unit.broker.one_broker import OneBroker, World, run
from tidelog.broker.network import client_socket
from tidelog.broker.partitions.partitions import Partition
from tidelog.clock import SystemClock
from tidelog.coordinator.cluster.records.records import TopicCreated
from tidelog.coordinator.internal_topics import GROUP_TOPIC, TRANSACTION_TOPIC
from tidelog.protocol.codec import decode
from tidelog.protocol.error_codes import ErrorCode
from tidelog.protocol.headers import encode_request, response_body_position
from tidelog.protocol.message import Request, Response
from tidelog.protocol.schemas import (
    consumer_groups,
    coordinators,
    fetch,
    group_offsets,
    groups,
    offsets,
    produce,
    transaction_listing,
    transactions,
)
from tidelog.protocol.schemas.cluster import configs, metadata, replicas, topics
from tidelog.protocol.schemas.own import flush as flush_schemas
from tidelog.storage.stores.memory import MemoryStore

MANY = 10_000
ROUNDS_MIN = 40
"""Rounds of the event loop for so many items. Receiving and sending the bytes takes fewer than
ten."""

Asked = tuple[Request[Response], int]


def in_topic(topic: type, partition: type, name: str = "flights", **fields: object) -> list[object]:
    """Thousands of partitions of one topic. The topic does not have them."""
    numbers = range(MANY)
    return [topic(name=name, partitions=[partition(partition_index=n, **fields) for n in numbers])]


def names(prefix: str) -> list[str]:
    return [f"{prefix}{number}" for number in range(MANY)]


def list_offsets() -> Asked:
    found = in_topic(offsets.ListOffsetsTopic, offsets.ListOffsetsPartition, timestamp=-1)
    return offsets.ListOffsetsRequest(topics=found), 9  # type: ignore[arg-type]


def epochs() -> Asked:
    partitions = [
        offsets.OffsetForLeaderPartition(partition=n, leader_epoch=0) for n in range(MANY)
    ]
    topic = offsets.OffsetForLeaderTopic(topic="flights", partitions=partitions)
    return offsets.OffsetForLeaderEpochRequest(topics=[topic]), 4


def delete_records() -> Asked:
    found = in_topic(topics.DeleteRecordsTopic, topics.DeleteRecordsPartition, offset=0)
    return topics.DeleteRecordsRequest(topics=found, timeout_ms=1000), 2  # type: ignore[arg-type]


def topic_names() -> Asked:
    found = [metadata.MetadataRequestTopic(name=name) for name in names("unknown")]
    return metadata.MetadataRequest(topics=found, allow_auto_topic_creation=False), 12


def all_topics() -> Asked:
    return metadata.MetadataRequest(topics=None), 12


def create() -> Asked:
    found = [
        topics.CreatableTopic(name=n, num_partitions=1, replication_factor=1) for n in names("v")
    ]
    return topics.CreateTopicsRequest(topics=found, validate_only=True), 7


def delete() -> Asked:
    found = [topics.DeleteTopicState(name=name) for name in names("unknown")]
    return topics.DeleteTopicsRequest(topics=found), 6


def extend() -> Asked:
    found = [topics.CreatePartitionsTopic(name=name, count=2) for name in names("unknown")]
    return topics.CreatePartitionsRequest(topics=found), 3


def describe_configs() -> Asked:
    found = [
        configs.DescribeConfigsResource(resource_type=32, resource_name=name)
        for name in names("group")
    ]
    return configs.DescribeConfigsRequest(resources=found), 4


def alter_configs() -> Asked:
    change = configs.IncrementalAlterableConfig(
        name="consumer.session.timeout.ms", config_operation=0, value="50000"
    )
    found = [
        configs.IncrementalAlterConfigsResource(resource_type=32, resource_name=n, configs=[change])
        for n in names("group")
    ]
    return configs.IncrementalAlterConfigsRequest(resources=found, validate_only=True), 1


def read_partitions() -> Asked:
    partitions = [
        fetch.FetchPartition(partition=number, fetch_offset=0, partition_max_bytes=1000)
        for number in range(MANY)
    ]
    found = [fetch.FetchTopic(topic="wide", partitions=partitions)]
    return fetch.FetchRequest(max_wait_ms=0, min_bytes=0, max_bytes=1 << 20, topics=found), 12


def write_partitions() -> Asked:
    data = [produce.PartitionProduceData(index=number, records=b"") for number in range(MANY)]
    found = [produce.TopicProduceData(name="wide", partition_data=data)]
    return produce.ProduceRequest(acks=-1, timeout_ms=1000, topic_data=found), 9


def commit() -> Asked:
    found = in_topic(
        group_offsets.OffsetCommitRequestTopic,
        group_offsets.OffsetCommitRequestPartition,
        "wide",
        committed_offset=1,
    )
    return group_offsets.OffsetCommitRequest(group_id="g", topics=found), 8  # type: ignore[arg-type]


def delete_offsets() -> Asked:
    found = in_topic(
        group_offsets.OffsetDeleteRequestTopic, group_offsets.OffsetDeleteRequestPartition
    )
    return group_offsets.OffsetDeleteRequest(group_id="g", topics=found), 0  # type: ignore[arg-type]


def fetch_offsets() -> Asked:
    found = [group_offsets.OffsetFetchRequestGroup(group_id=n, topics=None) for n in names("g")]
    return group_offsets.OffsetFetchRequest(groups=found), 8


def describe_groups() -> Asked:
    return groups.DescribeGroupsRequest(groups=names("g")), 5


def delete_groups() -> Asked:
    return groups.DeleteGroupsRequest(groups_names=names("g")), 2


def leave() -> Asked:
    found = [groups.LeaveGroupMember(member_id=name) for name in names("m")]
    return groups.LeaveGroupRequest(group_id="g", members=found), 5


def describe_consumers() -> Asked:
    return consumer_groups.ConsumerGroupDescribeRequest(group_ids=names("g")), 0


def heartbeat() -> Asked:
    found = [
        consumer_groups.HeartbeatTopicPartitions(topic_id=uuid4(), partitions=[1])
        for _ in range(MANY)
    ]
    request = consumer_groups.ConsumerGroupHeartbeatRequest(
        group_id="g", member_id="m", member_epoch=1, topic_partitions=found
    )
    return request, 1


def find_coordinators() -> Asked:
    return coordinators.FindCoordinatorRequest(key_type=0, coordinator_keys=names("g")), 4


def markers() -> Asked:
    topic = transactions.WritableTxnMarkerTopic(name="u", partition_indexes=list(range(MANY)))
    marker = transactions.WritableTxnMarker(
        producer_id=1,
        producer_epoch=0,
        transaction_result=True,
        coordinator_epoch=0,
        topics=[topic],
    )
    return transactions.WriteTxnMarkersRequest(markers=[marker]), 1


def producers() -> Asked:
    found = transaction_listing.DescribeProducersTopic(name="f", partition_indexes=[0] * MANY)
    return transaction_listing.DescribeProducersRequest(topics=[found]), 0


def describe_transactions() -> Asked:
    return transaction_listing.DescribeTransactionsRequest(transactional_ids=names("t")), 0


def elect() -> Asked:
    found = [replicas.ElectLeadersTopic(topic="flights", partitions=list(range(MANY)))]
    return replicas.ElectLeadersRequest(election_type=0, topic_partitions=found), 2


def commit_in_transaction() -> Asked:
    found = in_topic(
        transactions.TxnOffsetCommitRequestTopic,
        transactions.TxnOffsetCommitRequestPartition,
        committed_offset=1,
    )
    request = transactions.TxnOffsetCommitRequest(
        transactional_id="t",
        group_id="g",
        producer_id=1,
        producer_epoch=0,
        topics=found,  # type: ignore[arg-type]
    )
    return request, 3


def join() -> Asked:
    found = [groups.JoinGroupRequestProtocol(name=name, metadata=b"m") for name in names("p")]
    request = groups.JoinGroupRequest(
        group_id="g", session_timeout_ms=10_000, protocol_type="consumer", protocols=found
    )
    return request, 5


def hand_in() -> Asked:
    found = [
        groups.SyncGroupRequestAssignment(member_id=name, assignment=b"a") for name in names("m")
    ]
    return groups.SyncGroupRequest(group_id="g", assignments=found), 3


def enlist() -> Asked:
    topic = transactions.AddPartitionsToTxnTopic(name="wide", partitions=list(range(MANY)))
    request = transactions.AddPartitionsToTxnRequest(
        v3_and_below_transactional_id="t",
        v3_and_below_producer_id=1,
        v3_and_below_producer_epoch=0,
        v3_and_below_topics=[topic],
    )
    return request, 3


def describe_topics() -> Asked:
    found = [metadata.DescribeTopicPartitionsTopic(name=name) for name in names("unknown")]
    return metadata.DescribeTopicPartitionsRequest(topics=found), 0


def replace_configs() -> Asked:
    change = configs.AlterableConfig(name="consumer.session.timeout.ms", value="50000")
    found = [
        configs.AlterConfigsResource(resource_type=32, resource_name=n, configs=[change])
        for n in names("group")
    ]
    return configs.AlterConfigsRequest(resources=found, validate_only=True), 2


def flush() -> Asked:
    topic = flush_schemas.FlushTopic(name="wide", partitions=list(range(MANY)))
    return flush_schemas.FlushTopicsRequest(timeout_ms=1000, topics=[topic]), 0


def log_dirs() -> Asked:
    return replicas.DescribeLogDirsRequest(topics=None), 4


@asynccontextmanager
async def serving(**settings: object) -> AsyncIterator[OneBroker]:
    """A broker with a wide topic and thousands of narrow ones."""
    async with World(MemoryStore(SystemClock()), **settings).broker() as one:
        epoch = one.broker.membership.incarnation.epoch
        await one.create_topic("flights")
        await one.create_topic("wide", MANY)
        internal = tuple(
            TopicCreated(uuid4(), name, (epoch,), {}, internal=True)
            for name in (GROUP_TOPIC, TRANSACTION_TOPIC)
        )
        await one.broker.membership.metadata.append(epoch, lambda _: internal)
        narrow = tuple(TopicCreated(uuid4(), f"n{number}", (epoch,), {}) for number in range(3000))
        await one.broker.membership.metadata.append(epoch, lambda _: narrow)
        yield one


async def exchange(
    one: OneBroker, request: Request[Response], version: int
) -> tuple[int, memoryview]:
    """How many rounds of the event loop pass before the answer begins, and its frame."""
    reader, writer = await asyncio.open_connection(*one.broker.membership.advertised, limit=1 << 20)
    rounds = 0

    async def count() -> None:
        nonlocal rounds
        while True:
            rounds += 1
            await asyncio.sleep(0)

    writer.writelines(encode_request(request, version, 1, "hostile"))
    await writer.drain()
    counting = asyncio.create_task(count())
    (size,) = struct.unpack(">i", await reader.readexactly(4))
    counting.cancel()
    frame = memoryview(await reader.readexactly(size))
    writer.close()
    await writer.wait_closed()
    return rounds, frame


@pytest.mark.parametrize(
    "asked",
    [
        list_offsets,
        epochs,
        delete_records,
        topic_names,
        all_topics,
        create,
        delete,
        extend,
        describe_configs,
        alter_configs,
        read_partitions,
        write_partitions,
        commit,
        delete_offsets,
        fetch_offsets,
        describe_groups,
        delete_groups,
        leave,
        describe_consumers,
        heartbeat,
        find_coordinators,
        markers,
        producers,
        describe_transactions,
        elect,
        commit_in_transaction,
        join,
        hand_in,
        enlist,
        describe_topics,
        replace_configs,
        flush,
        log_dirs,
    ],
)
def test_other_clients_are_served_beside_a_hostile_request(asked: Callable[[], Asked]) -> None:
    async def story() -> None:
        request, version = asked()
        async with serving() as one:
            rounds, frame = await exchange(one, request, version)
            assert len(frame) > 4
            assert rounds >= ROUNDS_MIN

    run(story)


def test_a_flush_of_thousands_of_partitions_is_begun_in_slices() -> None:
    """The answer itself takes so many rounds that counting rounds cannot show the slices."""

    async def story() -> None:
        request, version = flush()
        async with serving() as one:
            begun: list[int] = []
            find, take_turn = (
                one.broker.writes.partitions.named,
                one.broker.services.data.turns.next,
            )
            found = 0

            def named(topic: str, number: int) -> Partition:
                nonlocal found
                found += 1
                return find(topic, number)

            async def next_turn() -> None:
                begun.append(found)
                await take_turn()

            one.broker.writes.partitions.named = named  # type: ignore[method-assign]
            one.broker.services.data.turns.next = next_turn  # type: ignore[method-assign]
            await exchange(one, request, version)
            assert found == MANY
            assert max(later - earlier for earlier, later in pairwise(begun)) <= 100

    run(story)


def test_a_partition_that_is_named_thousands_of_times_is_refused_and_answered_once() -> None:
    async def story() -> None:
        partition = offsets.ListOffsetsPartition(partition_index=0, timestamp=-1)
        twice = offsets.ListOffsetsTopic(name="flights", partitions=[partition] * MANY)
        other = offsets.ListOffsetsTopic(name="wide", partitions=[partition])
        request = offsets.ListOffsetsRequest(topics=[twice, other])
        async with serving() as one:
            _, frame = await exchange(one, request, 9)
            position = response_body_position(frame, offsets.ListOffsetsResponse, 9)
            answer = decode(offsets.ListOffsetsResponse, frame, 9, position)
            assert [
                (topic.name, [(each.partition_index, each.error_code) for each in topic.partitions])
                for topic in answer.topics
            ] == [("flights", [(0, ErrorCode.INVALID_REQUEST)]), ("wide", [(0, ErrorCode.NONE)])]

    run(story)


def test_a_resource_that_is_named_thousands_of_times_is_described_once() -> None:
    async def story() -> None:
        resource = configs.DescribeConfigsResource(resource_type=2, resource_name="flights")
        request = configs.DescribeConfigsRequest(resources=[resource] * MANY)
        async with serving() as one:
            _, frame = await exchange(one, request, 4)
            position = response_body_position(frame, configs.DescribeConfigsResponse, 4)
            answer = decode(configs.DescribeConfigsResponse, frame, 4, position)
            assert [each.resource_name for each in answer.results] == ["flights"]

    run(story)


def test_a_long_answer_is_not_gone_on_with_when_the_client_has_gone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(client_socket, "LEFT_SECONDS", 0.0)

    async def story() -> None:
        request, version = all_topics()
        async with serving(connections_max_idle_ms=40) as one:
            began, ended = asyncio.Event(), asyncio.Event()

            async def endless() -> None:
                began.set()
                try:
                    await asyncio.Event().wait()
                except asyncio.CancelledError:
                    ended.set()
                    raise

            one.broker.services.data.turns.next = endless  # type: ignore[method-assign]
            _, writer = await asyncio.open_connection(*one.broker.membership.advertised)
            writer.writelines(encode_request(request, version, 1, "hostile"))
            await began.wait()
            writer.close()
            await ended.wait()

    run(story)
