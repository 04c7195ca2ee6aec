"""Brokers with several listeners: each client gets the addresses of the listener that it uses."""

from __future__ import annotations

from contextlib import AsyncExitStack
from uuid import UUID

from tests.unit.broker.one_broker import PATIENT, TOPIC, OneBroker, World, batch, run
from tidelog.broker.settings.settings import BrokerSettings
from tidelog.client.pool import Client, CoordinatorKind
from tidelog.clock import SystemClock
from tidelog.network import SocketNetwork
from tidelog.protocol.error_codes import ErrorCode
from tidelog.protocol.schemas.cluster.metadata import DescribeClusterRequest
from tidelog.protocol.schemas.fetch import FetchPartition, FetchRequest, FetchTopic
from tidelog.protocol.schemas.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from tidelog.storage.stores.memory import MemoryStore

SETTINGS = PATIENT | {
    "listeners": "INSIDE://127.0.0.1:0,OUTSIDE://127.0.0.1:0",
    "listener_security_protocol_map": "INSIDE:PLAINTEXT,OUTSIDE:PLAINTEXT",
    "inter_broker_listener_name": "INSIDE",
}


def addresses(one: OneBroker) -> dict[str, tuple[str, int]]:
    return {each.name: each.advertised for each in one.broker.membership.listeners}


def produce(topic_id: UUID) -> ProduceRequest:
    data = PartitionProduceData(index=0, records=batch(b"v"))
    topic = TopicProduceData(name=TOPIC, topic_id=topic_id, partition_data=[data])
    return ProduceRequest(acks=-1, timeout_ms=1000, topic_data=[topic])


def fetch(topic_id: UUID) -> FetchRequest:
    partition = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1000)
    topic = FetchTopic(topic=TOPIC, topic_id=topic_id, partitions=[partition])
    return FetchRequest(max_bytes=1000, topics=[topic])


def test_each_answer_names_the_brokers_at_the_clients_listener() -> None:
    async def story() -> None:
        world = World(MemoryStore(SystemClock()), **SETTINGS)
        async with world.broker(0) as first, world.broker(1) as second:
            topic_id = await first.create_topic()
            await second.broker.membership.metadata.refresh()
            for name in ("INSIDE", "OUTSIDE"):
                ours = {0: addresses(first)[name], 1: addresses(second)[name]}
                start = [ours[1]]
                async with Client(SocketNetwork(), SystemClock(), start) as client:
                    metadata = await client.metadata(None)
                    assert {b.node_id: (b.host, b.port) for b in metadata.brokers} == ours
                    cluster = await client.request_any(DescribeClusterRequest())
                    assert {b.broker_id: (b.host, b.port) for b in cluster.brokers} == ours
                    found = await client.find_coordinator(CoordinatorKind.GROUP, "g")
                    assert found in ours.values()
                    produced = await client.request_broker(1, produce(topic_id))
                    (node,) = produced.node_endpoints
                    assert (node.node_id, (node.host, node.port)) == (0, ours[0])
                    fetched = await client.request_broker(1, fetch(topic_id))
                    (at,) = fetched.node_endpoints
                    assert (at.node_id, (at.host, at.port)) == (0, ours[0])

    run(story)


def test_brokers_with_and_without_named_listeners_share_a_bucket() -> None:
    async def story() -> None:
        world = World(MemoryStore(SystemClock()))
        async with AsyncExitStack() as running:
            first = await running.enter_async_context(world.broker(0))
            world.settings = BrokerSettings.of(**SETTINGS)
            second = await running.enter_async_context(world.broker(1))
            await first.create_topic()
            await second.broker.membership.metadata.refresh()
            start = [addresses(second)["OUTSIDE"]]
            async with Client(SocketNetwork(), SystemClock(), start) as client:
                metadata = await client.metadata([TOPIC])
                assert [broker.node_id for broker in metadata.brokers] == [1]
                (partition,) = metadata.topics[0].partitions
                assert partition.error_code == ErrorCode.LISTENER_NOT_FOUND

    run(story)
