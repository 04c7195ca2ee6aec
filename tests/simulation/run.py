"""One run: a cluster, its clients, faults by the seed's schedule, healing, and the final check."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Container, Coroutine
from dataclasses import dataclass, field, replace
from typing import Any

from tests.simulation.actors.actor import Actor, WorkloadSettings
from tests.simulation.actors.auditors import audit_retention
from tests.simulation.actors.bucket_readers import audit_bucket
from tests.simulation.actors.late_markers import repeated_markers
from tests.simulation.actors.log_client import LogClient
from tests.simulation.actors.readers import read_everything
from tests.simulation.actors.reborn_topic import REBORN_TOPICS, has_reborn_topics
from tests.simulation.cluster import BrokerProgram, ClientProgram, Environment, SimulatedCluster
from tests.simulation.coverage import TableCoverage
from tests.simulation.nemesis import Nemesis
from tests.simulation.rules.checker import Report, check
from tests.simulation.rules.fence_watch import FenceTimes
from tests.simulation.rules.history import GroupProtocol, History
from tests.simulation.workloads import (
    WORKLOADS,
    ActorProgram,
    Program,
    auditors,
    members,
    producers,
    with_segments,
    without_groups,
    workload_of,
)
from tests.simulation.world.logs import traced
from tests.simulation.world.loop import DeadlineExceeded, Deadlock, Livelock, SimulatedLoop
from tests.simulation.world.network import NetworkSettings, SimulatedNetwork
from tests.simulation.world.patches import Patch, patched
from tests.simulation.world.process import SimulatedProcess
from tests.simulation.world.store import SimulatedStore, StoreSettings
from tests.simulation.world.trace import Trace
from tidelog.bucket.views.bucket import Bucket
from tidelog.client.errors import RequestFailed, RequestRefused
from tidelog.client.pool import Client

FINAL_READER = "reader"
"""The client that reads everything at the end."""

_GROUP_PROTOCOLS: tuple[GroupProtocol, ...] = ("classic", "consumer")
_HEALED_SECONDS = 5.0
"""How long clients go on after everything is healed."""
_DRAIN_SECONDS_MAX = 180.0
"""Clients must have their answers within this time after healing."""
_REST_SECONDS = 60.0
"""Superfluous and too old objects are deleted in this time after the last client's end."""
_SHARING_MAX = 5
"""With more brokers than this, each gets fewer faults."""
_SETTLE_SECONDS = 30.0
"""A superseded process must have ended itself within this time."""


@dataclass(frozen=True, slots=True)
class System:
    """The system under test: the program of a broker and the library of a client."""

    broker: BrokerProgram
    client: ClientProgram
    kafka: Callable[[Environment], Client] | None = None
    """Tidelog's own client library, for groups and transactions; None if the system has none."""
    bucket: Callable[[Environment], Bucket] | None = None
    """The bucket, for readers without a broker. None if the bucket is not Tidelog's."""
    segments: bool = False
    """Whether records leave the WAL for tables: such records have no markers and no sequences.
    Topics lose some records, and superfluous objects are deleted."""
    patches: Callable[[], list[Patch]] = list
    """The patches that apply while it runs."""
    brokers: int = 1
    """The number of broker ids that run at a time."""
    workload: WorkloadSettings | None = None
    """A workload in place of the seed's. Records may leave the WAL."""
    nemesis: Callable[[SimulatedCluster, int], Nemesis] = Nemesis
    beside: Callable[[SimulatedCluster], Coroutine[Any, Any, None]] | None = None
    """Runs while there are faults, and ends when they are healed."""
    at_rest: Callable[[SimulatedCluster], Coroutine[Any, Any, None]] | None = None
    """Looks at the cluster when the last client has ended."""
    exclusive: bool = True
    """Whether only one process may serve as a broker id, so that all others must end themselves."""


@dataclass(slots=True)
class Result:
    """The result of a run."""

    seed: int
    profile: str
    workload: str
    digest: str
    steps: int
    events: int
    virtual_seconds: float
    report: Report
    counts: Counter[str] = field(default_factory=Counter)
    errors: Counter[str] = field(default_factory=Counter)
    tail: list[str] = field(default_factory=list)

    @property
    def valid(self) -> bool:
        """Whether every promise was kept."""
        return self.report.valid

    def line(self) -> str:
        """The run in one line."""
        counts = self.counts
        return (
            f"seed {self.seed:<6} {self.profile:<7} {self.workload:<12}"
            f" {'ok  ' if self.valid else 'FAIL'} {self.digest[:12]}"
            f" steps={self.steps} acked={counts['values acknowledged']}"
            f" read={counts['values read']} unknown={counts['send unknown']}"
            f" retried={counts['retried']} joins={counts['join ok']}"
            f" commits={counts['commit ok']} transactions={counts['transaction ok']}"
            f" aborted={counts['transaction fail']} undecided={counts['transaction unknown']}"
            f" kills={counts['exit killed']}"
            f" fenced={counts['exit Fenced']} starts={counts['broker starts']}"
            f" moved={counts['partitions moved']}"
            f" views={counts['view ok']} deleted={counts['store deleted']}"
            f" store-faults={counts['store faults']} resets={counts['connections broken']}"
        )


def run(
    seed: int,
    seconds: float,
    system: System,
    sink: Callable[[str], object] | None = None,
    workload: str = "",
    without: Container[str] = (),
) -> Result:
    """Simulate one seed for this many virtual seconds of faults, then heal and check. The workload
    is the seed's unless one is named. `without`: faults that are skipped."""
    workload = workload or workload_of(seed)
    trace = Trace(sink)
    history = History()
    markers: Counter[str] = Counter()
    tables = TableCoverage()
    with (
        patched(system.patches()),
        patched(tables.patches()),
        SimulatedLoop(seed, trace) as loop,
        traced(loop) as failures,
        repeated_markers(seed, markers),
    ):
        simulation = _Simulation(loop, seed, system, history, workload)
        simulation.nemesis.without = without
        try:
            loop.run(simulation.main(seconds), seconds + 600.0)
        except (Deadlock, DeadlineExceeded, Livelock) as error:
            history.violate(f"{type(error).__name__}: {error}")
        for text in loop.unhandled:
            history.violate(f"unhandled error: {text}")
        # Consequences for clients come last, since a report shows only the first violations.
        causes = simulation.store.violations + simulation.cluster.violations + failures
        history.violations[:0] = list(dict.fromkeys(causes))
        return Result(
            seed,
            simulation.nemesis.profile_name,
            workload,
            trace.digest(),
            loop.steps,
            trace.events,
            loop.time(),
            check(history, dense=not system.segments and system.workload is None),
            simulation.count() + markers + tables.counts,
            history.errors,
            trace.tail(),
        )


class _Simulation:
    def __init__(
        self,
        loop: SimulatedLoop,
        seed: int,
        system: System,
        history: History,
        workload: str,
    ) -> None:
        self.loop = loop
        self.system = system
        self.random = random.Random(f"run {seed}")
        self.history = history
        self.store = SimulatedStore(loop, seed, _store_settings(self.random))
        self.network = SimulatedNetwork(loop, seed, _network_settings(self.random))
        self.cluster = SimulatedCluster(
            loop, seed, self.network, self.store, system.broker, system.client, system.brokers
        )
        self.nemesis = system.nemesis(self.cluster, seed)
        settings = system.workload or WORKLOADS[workload]
        has_reborn = system.brokers > 1 and settings.transfers > 0 and has_reborn_topics(seed)
        self.settings = replace(
            settings if system.kafka is not None else without_groups(settings),
            pause_seconds_mean=self.random.choice((0.1, 0.2, 0.4)),
            reuses_names=system.brokers == 1,
            reborn_topics=REBORN_TOPICS if has_reborn else (),
            transaction_versions=self.random.choice(((1,), (2,), (1, 2))),
            transform_protocol=self.random.choice(_GROUP_PROTOCOLS),
        )
        if system.segments:
            self.settings = with_segments(self.settings, seed, workload)
        history.policies = self.settings.policies
        history.now = loop.time
        history.taken_for_dead = self.cluster.taken_for_dead
        history.fenced_at = FenceTimes(self.store).of
        self.stopping = asyncio.Event()
        self.closing = asyncio.Event()

    async def main(self, seconds: float) -> None:
        """Run faults, healing and the final check."""
        self.cluster.start()
        await self._in_client("admin", self._create_topics)
        clients = self._start(producers(self.settings))
        readers = self._start(members(self.settings))
        # Several brokers share the faults.
        pause_seconds_mean = self.random.choice((2.0, 4.0, 8.0)) / min(
            self.system.brokers, _SHARING_MAX
        )
        beside = []
        if self.system.beside is not None:
            beside.append(asyncio.create_task(self.system.beside(self.cluster)))
        await self.nemesis.run(seconds, pause_seconds_mean)
        await self.nemesis.heal()
        await asyncio.gather(*beside)
        await asyncio.sleep(_HEALED_SECONDS)
        self.stopping.set()
        await self._wait_for(clients, _DRAIN_SECONDS_MAX)
        await self._wait_for(self._start(auditors(self.settings)), _DRAIN_SECONDS_MAX)
        self.closing.set()
        await self._wait_for(readers, _DRAIN_SECONDS_MAX)
        if self.system.segments:
            await asyncio.sleep(_REST_SECONDS)
            await self._in_client("audit of retention", audit_retention)
        await self._in_client(FINAL_READER, read_everything)
        if self.system.at_rest is not None:
            await self.system.at_rest(self.cluster)
        if self.system.exclusive:
            await self._settle()
            await self._stop()
        if self.system.segments:
            await self._in_client("audit of the bucket", audit_bucket)

    async def _create_topics(self, actor: Actor) -> None:
        if self.system.brokers > 1:
            await self._gather(actor)
        partitions = Counter(key.topic for key in self.settings.all_keys)
        for topic, count in partitions.items():
            await actor.persist(
                lambda topic=topic, count=count: self._create_topic(actor, topic, count)  # type: ignore[misc]
            )

    async def _gather(self, actor: Actor) -> None:
        """Wait until all brokers have registered, so that each gets partitions."""
        async with actor.kafka() as client:
            while True:
                try:
                    if len((await client.metadata(())).brokers) >= self.system.brokers:
                        return
                except (RequestFailed, RequestRefused):
                    pass
                await actor.backoff(1)

    async def _create_topic(self, actor: Actor, topic: str, partitions: int) -> None:
        policy = self.settings.policies.get(topic)
        configs = policy.configs() if policy is not None else {}
        await actor.client.create_topic(topic, partitions, configs)

    def _start(self, programs: list[Program]) -> list[SimulatedProcess]:
        return [self._client(name, program) for name, program in programs]

    def _client(self, name: str, program: ActorProgram) -> SimulatedProcess:
        async def main(environment: Environment) -> None:
            client: LogClient = self.cluster.client_of(environment)
            actor = Actor(
                name,
                client,
                environment.process.clock,
                random.Random(f"{name} {self.random.getrandbits(64)}"),
                self.history,
                self.settings,
                self.stopping,
                self.closing,
                environment.process.entropy,
                lambda: self._kafka(environment),
                lambda: self._bucket(environment),
            )
            await program(actor)
            await client.close()

        return self.cluster.start_client(name, main)

    def _kafka(self, environment: Environment) -> Client:
        assert self.system.kafka is not None, "this system has no groups and no transactions"
        return self.system.kafka(environment)

    def _bucket(self, environment: Environment) -> Bucket:
        assert self.system.bucket is not None, "this system's bucket is not to be read"
        return self.system.bucket(environment)

    async def _in_client(self, name: str, program: ActorProgram) -> None:
        await self._wait_for([self._client(name, program)], _DRAIN_SECONDS_MAX)

    async def _wait_for(self, clients: list[SimulatedProcess], seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                for client in clients:
                    ended = await client.exited()
                    if ended.error is not None:
                        self.history.violate(f"{client.name} failed: {ended.error!r}")
        except TimeoutError:
            waiting = ", ".join(one.name for one in clients if one.alive)
            self.history.violate(
                f"{waiting} got no answer within {seconds} s after all faults were healed:\n"
                f"{self.loop.describe_tasks()}"
            )

    async def _settle(self) -> None:
        """Wait until superseded processes have ended themselves, and one process a broker id is
        left."""
        give_up_at = self.loop.time() + _SETTLE_SECONDS
        for broker_id in self.cluster.broker_ids():
            while len(self.cluster.brokers(broker_id)) != 1:
                if self.loop.time() > give_up_at:
                    living = "".join(
                        f"\n{one.name}:\n{self.loop.describe_tasks(one)}"
                        for one in self.cluster.brokers(broker_id)
                    )
                    self.history.violate(f"after healing these are broker {broker_id}: {living}")
                    return
                await asyncio.sleep(0.5)

    async def _stop(self) -> None:
        """A healthy broker that is asked to end ends without an error."""
        self.cluster.supervising = False
        for broker in self.cluster.brokers():
            broker.terminate()
            try:
                async with asyncio.timeout(_SETTLE_SECONDS):
                    ended = await broker.exited()
            except TimeoutError:
                tasks = self.loop.describe_tasks(broker)
                self.history.violate(f"{broker.name} does not end when asked to:\n{tasks}")
            else:
                if ended.error is not None:
                    self.history.violate(f"{broker.name}, asked to end, {ended}")

    def count(self) -> Counter[str]:
        """Counts of all events: a run without faults proves nothing."""
        counts = self.history.counts() + self.cluster.counts
        for prefix, counter in (
            ("fault", self.nemesis.counts),
            ("exit", self.cluster.exits),
            ("store", self.store.counts),
            ("network", self.network.counts),
        ):
            counts.update({f"{prefix} {name}": count for name, count in counter.items()})
        faults = ("refused", "reply lost", "request lost", "delayed", "repeated")
        counts["store faults"] = sum(self.store.counts[name] for name in faults)
        counts["connections broken"] = (
            self.network.counts["resets"] + self.network.counts["severed"]
        )
        counts["retried"] = sum(
            count for name, count in self.history.errors.items() if name.startswith("retried")
        )
        counts["values acknowledged"] = sum(
            len(one.sends) for one in self.history.operations if one.outcome == "ok"
        )
        counts["values read"] = sum(
            len(poll.records) for one in self.history.operations for poll in one.polls
        )
        return counts


def _store_settings(chance: random.Random) -> StoreSettings:
    """Usual faults of a store, a little different in each run."""
    scale = chance.choice((0.5, 1.0, 3.0))
    return StoreSettings(
        put_seconds_min=0.004 * scale,
        put_seconds_max=0.030 * scale,
        get_seconds_min=0.002 * scale,
        get_seconds_max=0.015 * scale,
        slow_probability=chance.choice((0.0, 0.01, 0.05)),
        refused_probability=chance.choice((0.0, 0.01)),
        reply_lost_probability=chance.choice((0.0, 0.01)),
        request_lost_probability=chance.choice((0.0, 0.01)),
        delayed_probability=chance.choice((0.0, 0.01)),
        repeated_probability=chance.choice((0.0, 0.05)),
    )


def _network_settings(chance: random.Random) -> NetworkSettings:
    return NetworkSettings(
        slow_probability=chance.choice((0.0, 0.01, 0.05)),
        cut_probability=chance.choice((0.05, 0.2)),
    )
