"""Brokers send requests to each other. The network loses answers, and brokers die and come back."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from tests.unit.broker.peers.test_forms import MARKERS, P, R, marked
from tests.unit.client.scripted_broker import ScriptedBroker
from tests.unit.client.simulated import World, play
from tidelog.broker.peers.peers import Peers
from tidelog.broker.peers.requests import PeerUnreachable
from tidelog.broker.settings.settings import BrokerSettings
from tidelog.entropy import SeededEntropy
from tidelog.identifiers import BrokerId, Epoch, Incarnation, TopicPartition
from tidelog.protocol.schemas.cluster.api_versions import ApiVersionsRequest
from tidelog.protocol.schemas.own.metadata_moved import MetadataMovedRequest, MetadataMovedResponse
from tidelog.protocol.schemas.transactions import WriteTxnMarkersRequest, WriteTxnMarkersResponse

OWN, ONE, OTHER = Epoch(3), Epoch(5), Epoch(6)
DONE = WriteTxnMarkersResponse(markers=[marked((P, 0), (R, 0))])


class Cluster:
    """The state that the peers see, and the other brokers by epoch."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.brokers: dict[Epoch, Any] = {}
        self.scripted: dict[Epoch, ScriptedBroker] = {}
        self.leaders: dict[TopicPartition, Epoch] = {}
        settings = BrokerSettings.of(
            request_timeout_ms=1000, socket_connection_setup_timeout_ms=500
        )
        self.peers = Peers(
            world.client_network,
            world.process.clock,
            SeededEntropy(1),
            lambda: self,  # type: ignore[return-value,arg-type]
            Incarnation(BrokerId(0), OWN),
            settings,
        )

    async def join(self, epoch: Epoch, broker_id: int, host: str, port: int = 0) -> ScriptedBroker:
        broker = self.scripted[epoch] = await self._world.broker(host, port)
        address = broker.address
        self.register(epoch, broker_id, address)
        broker.on(WriteTxnMarkersRequest, lambda _: DONE)
        broker.on(MetadataMovedRequest, lambda _: MetadataMovedResponse())
        return broker

    def register(self, epoch: Epoch, broker_id: int, address: tuple[str, int]) -> None:
        self.brokers[epoch] = SimpleNamespace(
            epoch=epoch,
            broker_id=broker_id,
            host=address[0],
            port=address[1],
            fenced=False,
            last_entry=epoch,
        )

    def leader(self, place: TopicPartition) -> Any:
        epoch = self.leaders.get(place)
        return None if epoch is None else SimpleNamespace(incarnation=SimpleNamespace(epoch=epoch))

    def is_live(self, epoch: Epoch) -> bool:
        return epoch in self.brokers and not self.brokers[epoch].fenced

    def live_brokers(self) -> list[Any]:
        return [each for each in self.brokers.values() if not each.fenced]


async def fails(asked: asyncio.Future[Any]) -> bool:
    try:
        await asked
    except PeerUnreachable:
        return True
    return False


def test_each_kind_of_request_has_its_connection() -> None:
    """Otherwise a hint would wait behind markers that wait for a PUT."""

    async def story(world: World) -> None:
        cluster = Cluster(world)
        broker = await cluster.join(ONE, 1, "host-1")
        cluster.register(OWN, 0, ("client-host", 1))
        broker.holding = True
        asked = cluster.peers.mark(ONE, MARKERS)
        cluster.peers.follow(OWN)
        while not (broker.seen(WriteTxnMarkersRequest) and broker.seen(MetadataMovedRequest)):
            broker.release()
            await asyncio.sleep(0.01)
        assert len(broker.seen(ApiVersionsRequest)) == 2
        assert (await asked)[P] == 0
        await cluster.peers.close()

    play(story)


@pytest.mark.parametrize("how", ["silence", "reset", "refused"])
def test_a_broker_without_an_answer_is_asked_again_over_a_new_connection(how: str) -> None:
    async def story(world: World) -> None:
        cluster = Cluster(world)
        broker = await cluster.join(ONE, 1, "host-1")
        assert (await cluster.peers.mark(ONE, MARKERS))[R] == 0
        if how == "silence":
            world.network.sever_connections("host-1")
        elif how == "reset":
            world.network.reset_connections("host-1")
        else:
            await broker.stop()
        began = world.loop.time()
        asked = cluster.peers.mark(ONE, MARKERS)
        if how == "reset":
            await asyncio.wait({asked})
        else:
            assert await fails(asked)
        # The request's or the connection's timeout has ended the wait.
        assert world.loop.time() - began < 1.5
        if how == "refused":
            port = broker.address[1]
            again = await world.broker("host-1", port)
            again.on(WriteTxnMarkersRequest, lambda _: DONE)
        assert (await cluster.peers.mark(ONE, MARKERS))[R] == 0
        await cluster.peers.close()

    play(story)


def test_a_broker_that_is_away_holds_up_all_waiting_requests_once() -> None:
    """All requests share one attempt to connect. With an attempt each, the last request would wait
    for all of them."""

    async def story(world: World) -> None:
        cluster = Cluster(world)
        await cluster.join(ONE, 1, "host-1")
        world.network.partition("client-host", "host-1")
        began = world.loop.time()
        asked = []
        for _ in range(20):
            asked.append(cluster.peers.mark(ONE, MARKERS))
            await asyncio.sleep(0.001)
        assert all([await fails(each) for each in asked])
        assert world.loop.time() - began < 1.5
        await cluster.peers.close()

    play(story)


def test_a_fenced_incarnation_is_not_asked_and_its_answers_do_not_count() -> None:
    async def story(world: World) -> None:
        cluster = Cluster(world)
        broker = await cluster.join(ONE, 1, "host-1")
        broker.holding = True
        asked = cluster.peers.mark(ONE, MARKERS)
        while not broker.seen(WriteTxnMarkersRequest):
            broker.release()
            broker.holding = True
            await asyncio.sleep(0.01)
        cluster.brokers[ONE].fenced = True
        cluster.peers.follow(7)
        broker.release()
        assert await fails(asked)
        assert await fails(cluster.peers.mark(ONE, MARKERS))
        assert len(broker.seen(WriteTxnMarkersRequest)) == 1
        await cluster.peers.close()

    play(story)


def test_the_next_incarnation_at_the_same_address_has_its_own_connection() -> None:
    """The old broker may have died silently, so no request may use its connection."""

    async def story(world: World) -> None:
        cluster = Cluster(world)
        old = await cluster.join(ONE, 1, "host-1")
        assert (await cluster.peers.mark(ONE, MARKERS))[P] == 0
        world.network.sever_connections("host-1")
        cluster.brokers[ONE].fenced = True
        cluster.register(OTHER, 1, old.address)
        cluster.peers.follow(7)
        assert (await cluster.peers.mark(OTHER, MARKERS))[P] == 0
        await cluster.peers.close()

    play(story)


def test_peers_are_hinted_of_the_newest_own_entry() -> None:
    async def story(world: World) -> None:
        cluster = Cluster(world)
        cluster.register(OWN, 0, ("client-host", 1))
        brokers = [await cluster.join(epoch, epoch, f"host-{epoch}") for epoch in (ONE, OTHER)]
        cluster.peers.follow(10)
        for sequence in range(11, 31):
            cluster.brokers[OWN].last_entry = sequence
            cluster.peers.follow(sequence)
        await asyncio.sleep(10)
        for broker in brokers:
            hints = [each.sequence for each in broker.seen(MetadataMovedRequest)]
            assert hints == [30]
        await cluster.peers.close()

    play(story)


def test_the_leader_of_a_partition_is_another_live_broker_or_none() -> None:
    async def story(world: World) -> None:
        cluster = Cluster(world)
        cluster.register(OWN, 0, ("client-host", 1))
        await cluster.join(ONE, 1, "host-1")
        place = TopicPartition(MARKERS.topic_ids["t"], 0)
        assert cluster.peers.leading(place) is None
        cluster.leaders[place] = OWN
        assert cluster.peers.leading(place) is None
        cluster.leaders[place] = ONE
        assert cluster.peers.leading(place) == ONE
        cluster.brokers[ONE].fenced = True
        assert cluster.peers.leading(place) is None
        await cluster.peers.close()

    play(story)


def test_after_the_end_nothing_is_asked() -> None:
    async def story(world: World) -> None:
        cluster = Cluster(world)
        broker = await cluster.join(ONE, 1, "host-1")
        broker.holding = True
        asked = cluster.peers.mark(ONE, MARKERS)
        await asyncio.sleep(0)
        await cluster.peers.close()
        assert await fails(asked)
        assert await fails(cluster.peers.mark(ONE, MARKERS))

    play(story)
