"""Brokers' processes around one simulated bucket, for stories about the metadata log."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import Any, TypeVar

from tests.simulation.world.loop import SimulatedLoop
from tests.simulation.world.network import SimulatedNetwork
from tests.simulation.world.process import SimulatedProcess
from tests.simulation.world.store import SimulatedStore, StoreSettings, finish
from tidelog.coordinator.cluster.log.leases import NO_PROGRESS, WalProgress
from tidelog.coordinator.cluster.log.metadata_log import MetadataLog
from tidelog.coordinator.cluster.membership.lease_keeper import LeaseKeeper
from tidelog.coordinator.cluster.membership.registration import Registered, register
from tidelog.coordinator.cluster.records.process_identity import ProcessIdentity
from tidelog.coordinator.cluster.records.records import (
    ALONE_VERSION,
    BrokerRegistered,
    LeaseResumed,
    MetadataEntry,
    TopicCreated,
    decode_entry,
)
from tidelog.coordinator.cluster.records.settings import ClusterSettings
from tidelog.coordinator.cluster.state.state import ClusterState
from tidelog.identifiers import BrokerId, Epoch, Incarnation
from tidelog.storage.object_store import ObjectStore

T = TypeVar("T")
LOG = "cluster/log/"


def entry_key(sequence: int) -> str:
    """The key of an entry of the metadata log."""
    return f"{LOG}{sequence:020d}.json"


class World:
    """Processes and their bucket. Each process has a host to itself unless a test names one."""

    def __init__(self, loop: SimulatedLoop, seed: int, settings: StoreSettings) -> None:
        self.loop = loop
        self.store = SimulatedStore(loop, seed, settings)
        self.network = SimulatedNetwork(loop, seed)
        self.processes: list[SimulatedProcess] = []

    def process(
        self, name: str, host: str | None = None, clock_offset_ms: int = 0, clock_rate: float = 1.0
    ) -> SimulatedProcess:
        """A new process."""
        pid = 100 + len(self.processes)
        made = SimulatedProcess(self.loop, name, host or name, pid, clock_offset_ms, clock_rate)
        self.processes.append(made)
        return made

    async def log(
        self, process: SimulatedProcess, *, create: bool = True, **settings: int
    ) -> MetadataLog:
        """The metadata log as this process opens it."""
        return await within(
            process,
            MetadataLog.open(
                self.store.of(process),
                process.clock,
                process.entropy,
                create=create,
                settings=ClusterSettings(**settings),
            ),
        )

    async def broker(self, broker_id: int, process: SimulatedProcess, **settings: int) -> Broker:
        """A registered broker without background tasks."""
        log = await self.log(process, **settings)
        return Broker(self, process, log, await self.register(broker_id, process, log))

    async def earlier_release(self, broker_id: int, process: SimulatedProcess) -> Broker:
        """A registered broker of a release that serves a bucket alone."""
        log = await self.log(process)
        record = BrokerRegistered(
            BrokerId(broker_id),
            f"{process.name}.example",
            9092,
            identity(process),
            version=ALONE_VERSION,
        )
        epoch = Epoch(await within(process, log.append(None, lambda _: (record,))))
        incarnation = Incarnation(BrokerId(broker_id), epoch)
        return Broker(self, process, log, Registered(incarnation, (), self.loop.time()))

    async def register(
        self, broker_id: int, process: SimulatedProcess, log: MetadataLog
    ) -> Registered:
        """Register the process."""
        return await within(
            process,
            register(
                log,
                self.store.of(process),
                process.clock,
                BrokerId(broker_id),
                (f"{process.name}.example", 9092),
                identity(process),
                lambda other: self.is_running(process, other),
            ),
        )

    def is_running(self, asking: SimulatedProcess, identity: ProcessIdentity) -> bool | None:
        """Whether another process runs. None if it is on another host, of which a process knows
        nothing."""
        if identity.host != asking.host:
            return None
        return any(each.alive and each.pid == identity.pid for each in self.processes)

    def keys(self, prefix: str = "") -> list[str]:
        """The bucket's keys right now, without a request."""

        async def listed() -> list[str]:
            return [meta.key async for meta in self.store.memory.list(prefix)]

        return finish(listed())

    def stored(self, key: str) -> bytes:
        """An object right now, without a request."""
        return bytes(finish(self.store.memory.get(key)).data)

    def place(self, key: str, data: bytes) -> None:
        """Write an object without a request of any process."""
        finish(self.store.memory.put(key, data))

    def remove(self, key: str) -> None:
        """Delete an object without a request of any process."""
        finish(self.store.memory.delete(key))

    def entries(self) -> list[MetadataEntry]:
        """Every entry in the bucket."""
        return [decode_entry(key, self.stored(key)) for key in self.keys(LOG)]

    def replayed(self) -> ClusterState:
        """The state of a reader that has read the whole log."""
        state = ClusterState()
        for entry in self.entries():
            state = state.apply(entry)
        return state


@dataclass(frozen=True, slots=True)
class Broker:
    """A registered process."""

    world: World
    process: SimulatedProcess
    log: MetadataLog
    registered: Registered

    @property
    def epoch(self) -> Epoch:
        return self.registered.incarnation.epoch

    @property
    def store(self) -> ObjectStore:
        return self.world.store.of(self.process)

    def keeper(self, progress: Callable[[], WalProgress] = lambda: NO_PROGRESS) -> LeaseKeeper:
        """The broker's lease, which no process renews yet."""
        return LeaseKeeper(
            self.store,
            self.process.clock,
            self.process.entropy,
            self.log,
            self.registered.incarnation,
            identity(self.process),
            self.registered.started_at,
            progress,
        )

    async def show_life(self) -> int:
        """Append an entry that changes nothing. Returns its number."""
        record = LeaseResumed(self.epoch)
        return await within(self.process, self.log.append(self.epoch, lambda _: (record,)))

    async def create(self, name: str, partitions: int = 1) -> int:
        """Create a topic that this broker owns. Returns the number of the entry."""
        record = TopicCreated(self.process.entropy.uuid(), name, (self.epoch,) * partitions)
        return await within(self.process, self.log.append(self.epoch, lambda _: (record,)))


def identity(process: SimulatedProcess) -> ProcessIdentity:
    """The identity of a process on a machine that reports all its parts."""
    return ProcessIdentity(process.host, "boot", "pid:[1]", process.pid, 1)


def within(process: SimulatedProcess, coroutine: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
    """Run a coroutine inside the process, so that it dies and stalls with the process."""
    return process.spawn(coroutine, "work")


def simulate(
    story: Callable[[World], Awaitable[None]],
    seed: int = 1,
    seconds_max: float = 7200,
    **settings: float,
) -> None:
    """Run a story. It fails if production code has logged an unhandled error."""

    async def main(loop: SimulatedLoop) -> SimulatedStore:
        world = World(loop, seed, StoreSettings(**settings))  # type: ignore[arg-type]
        await story(world)
        return world.store

    with SimulatedLoop(seed) as loop:
        store = loop.run(main(loop), seconds_max=seconds_max)
        assert loop.unhandled == []
        assert store.violations == []
