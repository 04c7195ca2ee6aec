"""The client of a cluster: which broker it asks, and when it remembers and forgets leaders."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from tests.unit.client.scripted_cluster import FLIGHTS, ScriptedCluster
from tests.unit.client.simulated import World, play
from tidelog.client.errors import RequestFailed, RequestOutcome, RequestRefused
from tidelog.client.operations import produce
from tidelog.client.pool import CoordinatorKind
from tidelog.client.settings import ClientSettings
from tidelog.protocol.api import ApiKey
from tidelog.protocol.error_codes import ErrorCode
from tidelog.protocol.schemas.cluster.api_versions import ApiVersionsRequest
from tidelog.protocol.schemas.cluster.metadata import MetadataRequest
from tidelog.protocol.schemas.coordinators import (
    Coordinator,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)
from tidelog.protocol.schemas.produce import ProduceRequest
from tidelog.protocol.schemas.transactions import (
    InitProducerIdRequest,
    InitProducerIdResponse,
)


def test_requests_go_to_the_leader_over_one_connection_each() -> None:
    async def story(world: World) -> None:
        cluster = await ScriptedCluster.start(world)
        async with world.client(cluster.brokers[0].address) as client:
            calls = [produce(client, "flights", n % 2, b"batch") for n in range(40)]
            await asyncio.gather(*calls)
        assert cluster.seen(ProduceRequest) == {0: 20, 1: 20}
        assert cluster.seen(ApiVersionsRequest) == {0: 1, 1: 1}

    play(story)


def test_metadata_is_remembered_until_it_is_old() -> None:
    async def story(world: World) -> None:
        cluster = await ScriptedCluster.start(world)
        settings = ClientSettings(metadata_age_ms_max=60_000)
        async with world.client(cluster.brokers[0].address, settings=settings) as client:
            for _ in range(3):
                assert await client.leader("flights", 1) == 1
            assert cluster.seen(MetadataRequest) == {0: 1, 1: 0}
            assert (await client.topic("flights")).topic_id == FLIGHTS
            await asyncio.sleep(61)
            cluster.leaders["flights"][1] = 0
            assert await client.leader("flights", 1) == 0

    play(story)


def test_the_number_of_remembered_topics_is_bounded() -> None:
    async def story(world: World) -> None:
        cluster = await ScriptedCluster.start(world)
        cluster.leaders.update({name: [0] for name in "abc"})
        settings = ClientSettings(topics_max=2)
        async with world.client(cluster.brokers[0].address, settings=settings) as client:
            for name in "abc":
                await client.topic(name)
            asked = cluster.seen(MetadataRequest)[0]
            await client.topic("c")
            await client.topic("b")
            assert cluster.seen(MetadataRequest)[0] == asked
            await client.topic("a")
            assert cluster.seen(MetadataRequest)[0] == asked + 1

    play(story)


def test_a_wrong_leader_is_forgotten_so_that_the_next_call_finds_the_right_leader() -> None:
    async def story(world: World) -> None:
        cluster = await ScriptedCluster.start(world)
        async with world.client(cluster.brokers[0].address) as client:
            await produce(client, "flights", 0, b"one")
            cluster.leaders["flights"][0] = 1
            with pytest.raises(RequestRefused, match="NOT_LEADER_OR_FOLLOWER") as caught:
                await produce(client, "flights", 0, b"two")
            assert caught.value.retriable
            assert caught.value.outcome is RequestOutcome.NOT_APPLIED
            assert await produce(client, "flights", 0, b"two") == 1

    play(story)


def test_a_leader_that_died_is_forgotten() -> None:
    async def story(world: World) -> None:
        cluster = await ScriptedCluster.start(world)
        async with world.client(*(b.address for b in cluster.brokers.values())) as client:
            await produce(client, "flights", 1, b"one")
            await cluster.brokers[1].stop()
            await asyncio.sleep(1)
            cluster.leaders["flights"][1] = 0
            with pytest.raises(RequestFailed) as caught:
                await produce(client, "flights", 1, b"two")
            assert caught.value.outcome is RequestOutcome.NOT_APPLIED
            assert await produce(client, "flights", 1, b"two") == 1

    play(story)


def test_a_broker_that_comes_back_elsewhere_is_found() -> None:
    async def story(world: World) -> None:
        cluster = await ScriptedCluster.start(world)
        async with world.client(cluster.brokers[0].address) as client:
            await produce(client, "flights", 1, b"one")
            await cluster.brokers[1].stop()
            cluster.serve(1, await world.broker("another-host", 9092))
            await asyncio.sleep(1)
            with pytest.raises(RequestFailed):
                await client.request_broker(1, MetadataRequest())
            await client.request_broker(1, MetadataRequest())
            assert cluster.seen(MetadataRequest)[1] == 1

    play(story)


def test_dead_bootstrap_brokers_are_passed_over() -> None:
    async def story(world: World) -> None:
        cluster = await ScriptedCluster.start(world)
        dead = [("gone-1", 1), ("gone-2", 2)]
        async with world.client(*dead, cluster.brokers[0].address) as client:
            assert await client.leader("flights", 0) == 0
        async with world.client(*dead) as client:
            with pytest.raises(RequestFailed, match="gone-1:1, gone-2:2") as caught:
                await client.metadata(None)
            assert caught.value.outcome is RequestOutcome.NOT_APPLIED

    play(story)


def test_bootstrap_brokers_are_tried_in_turn_each_for_its_time() -> None:
    async def story(world: World) -> None:
        cluster = await ScriptedCluster.start(world)
        silent = await world.broker("silent")
        silent.on(ApiVersionsRequest, lambda request: None)
        refused, last = ("gone", 1), cluster.brokers[0].address
        settings = ClientSettings(connect_timeout_ms=3000)
        started = world.loop.time()
        async with world.client(refused, silent.address, last, settings=settings) as client:
            assert await client.leader("flights", 0) == 0
        assert 3.0 <= world.loop.time() - started < 3.2
        async with world.client(last, silent.address, settings=settings) as client:
            await client.metadata(None)
        assert len(silent.connections) == 1

    play(story)


@pytest.mark.parametrize(
    ("topic", "partition", "code"),
    [
        ("nothing", 0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ("flights", 9, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ("flights", 2, ErrorCode.LEADER_NOT_AVAILABLE),
    ],
)
def test_a_missing_leader_is_a_refusal_that_the_client_does_not_remember(
    topic: str, partition: int, code: ErrorCode
) -> None:
    async def story(world: World) -> None:
        cluster = await ScriptedCluster.start(world)
        async with world.client(cluster.brokers[0].address) as client:
            with pytest.raises(RequestRefused, match=code.name) as caught:
                await client.request_to_leader(topic, partition, MetadataRequest())
            assert caught.value.code == code
            # The partition may have a leader by now, so the client forgets the refusal.
            asked = cluster.seen(MetadataRequest)[0]
            with pytest.raises(RequestRefused):
                await client.leader(topic, partition)
            assert cluster.seen(MetadataRequest)[0] == asked + 1

    play(story)


def test_an_unknown_broker_is_named() -> None:
    async def story(world: World) -> None:
        cluster = await ScriptedCluster.start(world)
        async with world.client(cluster.brokers[0].address) as client:
            with pytest.raises(RequestFailed, match=r"broker 9.*known: 0, 1"):
                await client.request_broker(9, MetadataRequest())

    play(story)


def test_a_closed_client_sends_nothing() -> None:
    async def story(world: World) -> None:
        cluster = await ScriptedCluster.start(world)
        client = world.client(cluster.brokers[0].address)
        await client.metadata(None)
        await client.close()
        with pytest.raises(RequestFailed, match="the client is closed"):
            await client.metadata(None)

    play(story)


def test_a_connection_that_comes_too_late_is_closed() -> None:
    async def story(world: World) -> None:
        cluster = await ScriptedCluster.start(world)
        broker = cluster.brokers[0]
        broker.holding = True
        client = world.client(broker.address)
        asking = asyncio.ensure_future(client.metadata(None))
        await asyncio.sleep(1)
        await client.close()
        broker.release()
        with pytest.raises(RequestFailed, match="the client is closed"):
            await asking
        await asyncio.sleep(1)
        assert broker.connections[0].transport.is_closing()
        assert broker.seen(MetadataRequest) == []

    play(story)


def test_a_client_needs_an_address() -> None:
    with pytest.raises(ValueError, match="at least one broker"):
        play(_without_bootstrap)


async def _without_bootstrap(world: World) -> None:
    world.client()


def _found(cluster: ScriptedCluster, number: int) -> Callable[[object], FindCoordinatorResponse]:
    def answer(request: object) -> FindCoordinatorResponse:
        assert isinstance(request, FindCoordinatorRequest)
        host, port = cluster.brokers[number].address
        found = [
            Coordinator(key=key, node_id=number, host=host, port=port)
            for key in request.coordinator_keys
        ]
        return FindCoordinatorResponse(node_id=number, host=host, port=port, coordinators=found)

    return answer


@pytest.mark.parametrize("version", [2, 6])
def test_the_coordinator_of_a_transactional_id_is_looked_up(version: int) -> None:
    async def story(world: World) -> None:
        cluster = await ScriptedCluster.start(world)
        broker = cluster.brokers[0]
        broker.versions[ApiKey.FIND_COORDINATOR] = (0, version)
        broker.on(FindCoordinatorRequest, _found(cluster, 1))
        answer = InitProducerIdResponse(producer_id=6)
        cluster.brokers[1].on(InitProducerIdRequest, lambda request: answer)
        async with world.client(broker.address) as client:
            request = InitProducerIdRequest(transactional_id="t")
            kind = CoordinatorKind.TRANSACTION
            assert await client.request_to_coordinator(kind, "t", request) == answer
        (lookup,) = broker.seen(FindCoordinatorRequest)
        assert lookup.key_type == 1
        assert (lookup.coordinator_keys or [lookup.key]) == ["t"]

    play(story)


@pytest.mark.parametrize("version", [2, 6])
def test_a_missing_coordinator_is_a_refusal(version: int) -> None:
    async def story(world: World) -> None:
        cluster = await ScriptedCluster.start(world)
        broker = cluster.brokers[0]
        broker.versions[ApiKey.FIND_COORDINATOR] = (0, version)
        code = int(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        refusal = FindCoordinatorResponse(
            error_code=code,
            coordinators=[Coordinator(key="g", error_code=code, error_message="wait")],
        )
        broker.on(FindCoordinatorRequest, lambda request: refusal)
        async with world.client(broker.address) as client:
            with pytest.raises(RequestRefused, match="COORDINATOR_NOT_AVAILABLE"):
                await client.find_coordinator(CoordinatorKind.GROUP, "g")

    play(story)


def test_a_silent_broker_holds_up_no_request_to_another() -> None:
    async def story(world: World) -> None:
        cluster = await ScriptedCluster.start(world)
        addresses = [broker.address for broker in cluster.brokers.values()]
        async with world.client(*addresses) as client:
            await client.metadata(None)
            world.network.partition("client-host", "host-1")
            started = world.loop.time()
            stuck = asyncio.ensure_future(produce(client, "flights", 1, b"x"))
            assert await produce(client, "flights", 0, b"y") == 0
            assert world.loop.time() - started < 5
            with pytest.raises(RequestFailed, match="no connection within 10000 ms"):
                await stuck

    play(story)
