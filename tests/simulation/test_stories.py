"""Stories of one fault each, played step by step with the production broker."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from tests.simulation.actors.kafka_client import KafkaLogClient
from tests.simulation.actors.log_client import NoAnswer, OutgoingBatch, RequestRefused
from tests.simulation.cluster import Environment, SimulatedCluster, broker_host, spare_host
from tests.simulation.rules.history import Key
from tests.simulation.run import System
from tests.simulation.tidelog_system import PORT, tidelog_system
from tests.simulation.world.logs import traced
from tests.simulation.world.loop import SimulatedLoop
from tests.simulation.world.network import NetworkSettings, SimulatedNetwork
from tests.simulation.world.process import SimulatedProcess
from tests.simulation.world.store import SimulatedStore, StoreSettings
from tidelog.coordinator.cluster.records.settings import ClusterSettings
from tidelog.protocol.error_codes import ErrorCode
from tidelog.wal.settings import WalSettings
from tidelog.wal.write.slot_upload import WalLost

KEY = Key("topic", 0)
HERE, THERE = broker_host(0), spare_host(0)
HALF_GRACE_SECONDS = ClusterSettings().delete_grace_ms / 2000
REST_SECONDS = 30.0
"""Several brokers have started and divided the partitions within this time."""
UPLOAD_SECONDS = WalSettings().upload_deadline_ms / 1000


class World:
    """A cluster without faults, except those of the story."""

    def __init__(self, loop: SimulatedLoop, seed: int, brokers: int, system: System) -> None:
        self.loop = loop
        self.store = SimulatedStore(loop, seed, StoreSettings(slow_probability=0.0))
        network = SimulatedNetwork(loop, seed, NetworkSettings(slow_probability=0.0))
        self.cluster = SimulatedCluster(
            loop, seed, network, self.store, system.broker, system.client, brokers
        )
        self.cluster.supervising = False
        for broker_id in range(brokers):
            self.cluster.start_broker(broker_id)

    def client(self, environment: Environment, *hosts: str) -> KafkaLogClient:
        """A client that asks these hosts only."""
        return KafkaLogClient(environment, lambda: [(host, PORT) for host in hosts])


async def persist(request: Callable[[], Awaitable[object]]) -> None:
    """Repeat the request until it is answered."""
    while True:
        try:
            await request()
        except (RequestRefused, NoAnswer):
            await asyncio.sleep(0.2)
        else:
            return


def tell(
    story: Callable[[World, Environment], Awaitable[None]],
    seed: int,
    brokers: int = 1,
    system: System | None = None,
) -> None:
    """Run a story inside a client's process, with the brokers started."""

    async def main(loop: SimulatedLoop) -> None:
        world = World(loop, seed, brokers, system or tidelog_system(seed))

        async def client(environment: Environment) -> None:
            await story(world, environment)

        process: SimulatedProcess = world.cluster.start_client("client", client)
        ended = await process.exited()
        if ended.error is not None:
            raise ended.error

    with SimulatedLoop(seed) as loop, traced(loop):
        loop.run(main(loop), seconds_max=900)


def batch(identity: tuple[int, int], sequence: int) -> OutgoingBatch:
    """A batch of one record."""
    return OutgoingBatch(KEY, (f"value {sequence}",), "none", *identity, sequence)


@pytest.mark.parametrize("seed", range(12))
def test_a_superseded_broker_answers_nothing_from_its_memory(seed: int) -> None:
    """A producer takes OUT_OF_ORDER_SEQUENCE_NUMBER for final, so only the owner may answer it."""

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


@pytest.mark.parametrize("seed", range(6))
def test_a_living_broker_that_was_taken_for_dead_calls_no_batch_out_of_order(seed: int) -> None:
    """Its lease is fresh, but its successor's batches are unknown to it."""

    async def story(world: World, environment: Environment) -> None:
        old, new = (world.client(environment, host) for host in (HERE, THERE))
        await persist(lambda: old.create_topic(KEY.topic, 1, {}))
        identity = await old.init_producer_id()
        await old.produce(batch(identity, 0))
        (living,) = world.cluster.brokers(0)
        world.cluster.taken_for_dead[living.host, living.pid] = world.loop.time()
        world.cluster.start_broker(0, THERE)
        await persist(lambda: new.produce(batch(identity, 1)))
        with pytest.raises((NoAnswer, RequestRefused)) as answer:
            await old.produce(batch(identity, 2))
        if isinstance(answer.value, RequestRefused):
            assert answer.value.code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert await new.produce(batch(identity, 2)) == 2

    tell(story, seed)


async def at_rest(world: World, environment: Environment) -> tuple[KafkaLogClient, tuple[int, int]]:
    """A client of three brokers, and its producer, whose first record has been durable for long."""
    client = world.client(environment, *map(broker_host, range(3)))
    await persist(lambda: client.create_topic(KEY.topic, 1, {}))
    identity = await client.init_producer_id()
    await persist(lambda: client.produce(batch(identity, 0)))
    await asyncio.sleep(REST_SECONDS)
    return client, identity


def test_an_outage_of_more_than_half_the_grace_ends_no_idle_broker() -> None:
    """Each broker checks whether a snapshot has replaced entries that it does not know (A2)."""

    async def story(world: World, environment: Environment) -> None:
        client, identity = await at_rest(world, environment)
        before = world.cluster.brokers()
        world.store.fail_for(HALF_GRACE_SECONDS + 100.0, 1.0)
        await asyncio.sleep(HALF_GRACE_SECONDS + 130.0)
        assert world.cluster.brokers() == before
        assert len(before) == 3
        await persist(lambda: client.produce(batch(identity, 1)))

    tell(story, 1, brokers=3)


def test_an_outage_ends_the_broker_with_records_under_way_and_no_other() -> None:
    """The broker gives an upload up after `upload_deadline_ms`. The other brokers fence it and take
    over."""

    async def story(world: World, environment: Environment) -> None:
        client, identity = await at_rest(world, environment)
        before = world.cluster.brokers()
        world.store.fail_for(2 * UPLOAD_SECONDS, 1.0)
        sent = asyncio.create_task(client.produce(batch(identity, 1)))
        await asyncio.sleep(2 * UPLOAD_SECONDS + 20.0)
        (ended,) = set(before) - set(world.cluster.brokers())
        assert isinstance((await ended.exited()).error, WalLost)
        with pytest.raises((NoAnswer, RequestRefused)):
            await sent
        await persist(lambda: client.produce(batch(identity, 1)))

    tell(story, 1, brokers=3)
