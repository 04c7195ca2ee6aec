"""Stories of one fault each, told step by step to the production broker."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from tests.simulation.actors.kafka_client import KafkaLogClient
from tests.simulation.actors.log_client import NoAnswer, OutgoingBatch, RequestRefused
from tests.simulation.cluster import Environment, SimulatedCluster, broker_host, spare_host
from tests.simulation.rules.history import Key
from tests.simulation.tidelog_system import PORT, tidelog_system
from tests.simulation.world.logs import traced
from tests.simulation.world.loop import SimulatedLoop
from tests.simulation.world.network import NetworkSettings, SimulatedNetwork
from tests.simulation.world.process import SimulatedProcess
from tests.simulation.world.store import SimulatedStore, StoreSettings
from tidelog.protocol.error_codes import ErrorCode

KEY = Key("topic", 0)
HERE, THERE = broker_host(0), spare_host(0)


class World:
    """A cluster in which nothing fails but what the story says."""

    def __init__(self, loop: SimulatedLoop, seed: int) -> None:
        system = tidelog_system(seed)
        self.loop = loop
        self.store = SimulatedStore(loop, seed, StoreSettings(slow_probability=0.0))
        network = SimulatedNetwork(loop, seed, NetworkSettings(slow_probability=0.0))
        self.cluster = SimulatedCluster(
            loop, seed, network, self.store, system.broker, system.client
        )
        self.cluster.supervising = False

    def client(self, environment: Environment, *hosts: str) -> KafkaLogClient:
        """A client that asks these hosts only."""
        return KafkaLogClient(environment, lambda: [(host, PORT) for host in hosts])


async def persist(request: Callable[[], Awaitable[object]]) -> None:
    """Repeat until it is answered."""
    while True:
        try:
            await request()
        except (RequestRefused, NoAnswer):
            await asyncio.sleep(0.2)
        else:
            return


def tell(story: Callable[[World, Environment], Awaitable[None]], seed: int) -> None:
    """Run a story inside a client's process, with broker 0 started."""

    async def main(loop: SimulatedLoop) -> None:
        world = World(loop, seed)
        world.cluster.start_broker(0)

        async def client(environment: Environment) -> None:
            await story(world, environment)

        process: SimulatedProcess = world.cluster.start_client("client", client)
        ended = await process.exited()
        if ended.error is not None:
            raise ended.error

    with SimulatedLoop(seed) as loop, traced(loop):
        loop.run(main(loop), seconds_max=600)


def batch(identity: tuple[int, int], sequence: int) -> OutgoingBatch:
    """One record."""
    return OutgoingBatch(KEY, (f"value {sequence}",), "none", *identity, sequence)


@pytest.mark.parametrize("seed", range(12))
def test_a_superseded_broker_says_nothing_of_what_it_remembers(seed: int) -> None:
    """A producer believes OUT_OF_ORDER_SEQUENCE_NUMBER for good: only the owner may say it."""

    async def story(world: World, environment: Environment) -> None:
        old, new = (world.client(environment, host) for host in (HERE, THERE))
        await persist(lambda: old.create_topic(KEY.topic, 1, {}))
        identity = await old.init_producer_id()
        await old.produce(batch(identity, 0))
        (sleeper,) = world.cluster.brokers(0)
        sleeper.pause()
        world.cluster.start_broker(0, THERE)
        await persist(lambda: new.produce(batch(identity, 1)))
        await new.produce(batch(identity, 2))
        asked = asyncio.create_task(old.produce(batch(identity, 3)))
        await asyncio.sleep(0.5)
        sleeper.resume()
        with pytest.raises((NoAnswer, RequestRefused)) as answer:
            await asked
        if isinstance(answer.value, RequestRefused):
            assert answer.value.code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert await new.produce(batch(identity, 3)) == 3
        assert not (await sleeper.exited()).killed

    tell(story, seed)
