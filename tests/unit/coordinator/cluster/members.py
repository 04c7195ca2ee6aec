"""Brokers that renew their leases, follow the metadata log and watch each other."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from uuid import UUID

from tests.unit.client.scripted_broker import ScriptedBroker
from tests.unit.coordinator.cluster.world import Broker, World, within
from tidelog.coordinator.cluster.log.leases import WalProgress
from tidelog.coordinator.cluster.membership.departures import Departures
from tidelog.coordinator.cluster.membership.lease_keeper import LeaseKeeper
from tidelog.coordinator.cluster.membership.service_watch import Uploads
from tidelog.coordinator.cluster.membership.watcher import Watcher
from tidelog.coordinator.cluster.records.records import BrokerFenced, IncarnationRetired
from tidelog.identifiers import Epoch, LeaderEpoch, TopicPartition
from tidelog.protocol.schemas.cluster.metadata import (
    DescribeClusterRequest,
    DescribeClusterResponse,
)
from tidelog.wal.log.image import PartitionImage
from tidelog.wal.settings import WalSettings
from tidelog.wal.write.slot_entries import OpeningEntry
from tidelog.wal.write.writer import WalWriter
from tidelog.workers.offload import InlineOffload

HEARTBEAT = 2.0
SESSION = 9.0
IN_FLIGHT_MAX = 4
PORT = 9092
"""The port that `World.register` registers."""


@dataclass(frozen=True)
class Member:
    """A broker that renews its lease, follows the log and watches the others."""

    broker: Broker
    served: ScriptedBroker
    wal: WalWriter
    keeper: LeaseKeeper
    departures: Departures
    tasks: Sequence[asyncio.Task[object]]

    @property
    def epoch(self) -> Epoch:
        return self.broker.epoch

    @property
    def ended(self) -> list[BaseException | None]:
        return [task.exception() for task in self.tasks if task.done()]

    async def write(self) -> None:
        """Append to the WAL again and again."""
        partition = TopicPartition(UUID(int=self.epoch), 0)
        while True:
            entry = OpeningEntry(PartitionImage.empty(partition, LeaderEpoch(0)))
            await self.wal.durable(self.wal.add(entry))
            await self.broker.process.clock.sleep(0.5)

    def kill(self) -> None:
        self.broker.process.kill()

    def owned(self, world: World) -> int:
        return len(world.replayed().owned_by(self.epoch))


async def member(
    world: World, broker_id: int, *, listening: bool = False, **settings: int
) -> Member:
    """A broker. A listening broker tells its incarnation to clients that connect."""
    process = world.process(f"b{broker_id}", host=f"b{broker_id}.example")
    broker = await world.broker(broker_id, process, **settings)
    served = ScriptedBroker()
    if listening:
        named = DescribeClusterResponse(broker_epoch=broker.epoch)
        served.on(DescribeClusterRequest, lambda _: named)
        await within(process, served.listen(world.network.of(process), process.host, PORT))
    wal = WalWriter(
        broker.store,
        process.clock,
        process.entropy,
        InlineOffload(),
        broker.registered.incarnation,
        WalSettings(uploads_in_flight_max=IN_FLIGHT_MAX),
        lambda _: None,
        lambda: broker.log.state.stamp,
    )
    keeper = broker.keeper(lambda: WalProgress(wal.durable_end, None))
    departures = Departures(broker.log, process.clock)
    watcher = Watcher(
        broker.log,
        broker.store,
        broker.process.clock,
        broker.process.entropy,
        world.network.of(broker.process),
        keeper,
        departures,
        broker.registered.incarnation,
        IN_FLIGHT_MAX,
        lambda: Uploads(wal.in_flight, wal.metrics.puts - wal.in_flight, wal.put_seconds),
    )
    following = broker.log.follow(int(1000 * HEARTBEAT))
    coroutines = (wal.run(), keeper.run(), following, watcher.run())
    return Member(
        broker,
        served,
        wal,
        keeper,
        departures,
        [within(broker.process, each) for each in coroutines],
    )


async def members(world: World, count: int, *, listening: bool = False) -> list[Member]:
    """Brokers with the ids from 0 on."""
    return [await member(world, broker_id, listening=listening) for broker_id in range(count)]


def fences(world: World) -> list[Epoch]:
    """The fenced incarnations, in order."""
    return [
        record.epoch
        for entry in world.entries()
        for record in entry.records
        if isinstance(record, BrokerFenced)
    ]


def retirements(world: World) -> list[Epoch]:
    return [
        record.epoch
        for entry in world.entries()
        for record in entry.records
        if isinstance(record, IncarnationRetired)
    ]


async def until(condition: Callable[[], bool], seconds_max: float) -> float:
    """Wait for the condition. Returns how long it took."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    while not condition():
        assert loop.time() - began < seconds_max, "the condition takes too long"
        await asyncio.sleep(0.05)
    return loop.time() - began
