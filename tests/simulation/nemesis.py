"""Injects faults into a running cluster, by a seeded schedule, and heals them at the end."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Container, Mapping
from dataclasses import dataclass, replace

from tests.simulation.cluster import SimulatedCluster, spare_host
from tests.simulation.world.process import SimulatedProcess

_PUT_WAIT_SECONDS_MAX = 2.0
_PREFIXES = ("", "cluster/", "cluster/", "wal/")
"""The prefixes from which a broker may be cut off: all, leases and metadata, or its WAL."""


@dataclass(frozen=True, slots=True)
class Profile:
    """The kind of a run: weights of the faults, and whether they may overlap."""

    weights: Mapping[str, int]
    overlapping: bool = True


PROFILES: Mapping[str, Profile] = {
    "mixed": Profile(
        {
            "kill": 5,
            "kill during put": 5,
            "kill twice": 3,
            "stop": 2,
            "pause": 3,
            "take over": 3,
            "usurp": 1,
            "misjudge": 2,
            "second process": 2,
            "isolation": 3,
            "store burst": 3,
            "store faults": 5,
            "resets": 3,
            "silence": 2,
            "partition": 2,
        }
    ),
    "crashes": Profile(
        {
            "kill": 4,
            "kill during put": 4,
            "kill twice": 2,
            "stop": 2,
            "store faults": 3,
            "resets": 1,
        }
    ),
    "zombies": Profile({"take over": 2, "usurp": 3, "misjudge": 2, "pause": 1}, overlapping=False),
    "weather": Profile(
        {
            "store burst": 3,
            "store faults": 6,
            "isolation": 2,
            "pause": 2,
            "resets": 3,
            "silence": 2,
            "partition": 2,
            "kill during put": 1,
        }
    ),
}


CLUSTER_PROFILES: Mapping[str, Profile] = {
    "cluster": Profile(
        {
            "kill": 4,
            "kill during put": 4,
            "kill two": 2,
            "kill all": 2,
            "replace all": 1,
            "stop": 3,
            "pause": 3,
            "take over": 1,
            "usurp": 1,
            "misjudge": 1,
            "second process": 1,
            "isolation": 2,
            "lonely": 3,
            "store burst": 2,
            "store faults": 4,
            "puts refused": 2,
            "resets": 2,
            "silence": 2,
            "partition": 2,
            "brokers apart": 3,
            "clients apart": 2,
        }
    ),
    "deaths": Profile(
        {
            "kill": 4,
            "kill during put": 4,
            "kill twice": 2,
            "kill two": 3,
            "kill all": 2,
            "replace all": 2,
            "stop": 5,
            "store faults": 3,
        }
    ),
    "ghosts": Profile(
        {
            "take over": 2,
            "usurp": 2,
            "misjudge": 2,
            "pause": 3,
            "lonely": 4,
        },
        overlapping=False,
    ),
    "islands": Profile(
        {
            "lonely": 4,
            "store burst": 2,
            "store faults": 4,
            "puts refused": 3,
            "pause": 2,
            "resets": 2,
            "silence": 2,
            "partition": 2,
            "brokers apart": 5,
            "clients apart": 2,
            "kill during put": 1,
        }
    ),
}
"""Profiles of runs with several brokers: as many as for runs with one broker."""


def profiles_of(brokers: int) -> Mapping[str, Profile]:
    """The profiles for a number of brokers."""
    return PROFILES if brokers == 1 else CLUSTER_PROFILES


def profile_of(seed: int, brokers: int = 1) -> str:
    """Seeds take the profiles in turn, so that a few of them meet all."""
    profiles = profiles_of(brokers)
    return list(profiles)[seed % len(profiles)]


class Nemesis:
    """Causes one fault after the other, and sometimes several at once."""

    def __init__(
        self, cluster: SimulatedCluster, seed: int, profile: tuple[str, Profile] | None = None
    ) -> None:
        """`profile`: its name and weights, or None for the seed's."""
        self._cluster = cluster
        self._loop = cluster.loop
        self._random = random.Random(f"nemesis {seed}")
        name = profile_of(seed, cluster.size)
        self.profile_name, self._profile = profile or (name, profiles_of(cluster.size)[name])
        self.counts: Counter[str] = Counter()
        self.without: Container[str] = ()
        """Faults that are skipped when their turn comes."""
        self._usual = replace(cluster.store.settings)
        self._background: dict[asyncio.Task[None], None] = {}
        self._faults: dict[str, Callable[[], Awaitable[None]]] = {
            "kill": self._kill,
            "kill during put": self._kill_during_put,
            "kill twice": self._kill_twice,
            "kill two": self._kill_two,
            "kill all": self._kill_all,
            "replace all": self._replace_all,
            "stop": self._stop,
            "pause": self._pause,
            "take over": self._take_over,
            "usurp": self._usurp,
            "misjudge": self._misjudge,
            "second process": self._second_process,
            "isolation": self._isolate,
            "lonely": self._lonely,
            "store burst": self._store_burst,
            "store faults": self._store_faults,
            "puts refused": self._refuse_puts,
            "resets": self._resets,
            "silence": self._silence,
            "partition": self._partition,
            "brokers apart": self._part_brokers,
            "clients apart": self._part_clients,
        }

    async def run(self, seconds: float, pause_seconds_mean: float) -> None:
        """Inject faults for this long."""
        end = self._loop.time() + seconds
        while True:
            await asyncio.sleep(self._random.expovariate(1.0 / pause_seconds_mean))
            if self._loop.time() >= end:
                break
            name = self._random.choices(
                list(self._profile.weights), list(self._profile.weights.values())
            )[0]
            if name in self.without:
                continue
            self.counts[name] += 1
            task = asyncio.create_task(self._inject(name), name=f"fault {name}")
            self._background[task] = None
            task.add_done_callback(self._background.pop)
            if not self._profile.overlapping:
                await asyncio.wait([task], timeout=end - self._loop.time())

    async def heal(self) -> None:
        """End every fault: all processes run, all connections can be made, the store serves."""
        for task in list(self._background):
            task.cancel()
        if self._background:
            await asyncio.wait(list(self._background))
        self._cluster.healed = True
        self._cluster.store.heal()
        self._cluster.network.heal()
        for process in self._cluster.brokers():
            process.dies_at_step = -1
            process.resume()
        for broker_id in self._cluster.broker_ids():
            if not self._cluster.brokers(broker_id):
                self._cluster.start_broker(broker_id)

    async def _inject(self, name: str) -> None:
        await self._faults[name]()

    def _victim(self) -> SimulatedProcess | None:
        running = [one for one in self._cluster.brokers() if not one.paused]
        return self._random.choice(running) if running else None

    # --- processes ---

    async def _kill(self) -> None:
        victim = self._victim()
        if victim is not None:
            victim.kill_after_steps(self._steps())

    async def _kill_during_put(self) -> None:
        victim = self._victim()
        if victim is None:
            return
        give_up_at = self._loop.time() + _PUT_WAIT_SECONDS_MAX
        while victim.alive and not self._cluster.store.in_flight(victim):
            if self._loop.time() > give_up_at:
                return
            await asyncio.sleep(0.002)
        await asyncio.sleep(self._random.uniform(0.0, 0.03))
        victim.kill()

    async def _kill_twice(self) -> None:
        """Kill a broker, and its successor during that one's recovery."""
        victim = self._victim()
        if victim is None:
            return
        victim.kill()
        for _ in range(200):
            await asyncio.sleep(0.05)
            successor = self._victim()
            if successor is not None:
                successor.kill_after_steps(self._steps())
                return

    async def _kill_two(self) -> None:
        """Kill two at once, or one soon after the other."""
        for _ in range(2):
            victim = self._victim()
            if victim is not None:
                victim.kill()
            if self._random.random() < 0.5:
                await asyncio.sleep(self._random.uniform(0.0, 2.0))

    async def _kill_all(self) -> None:
        """Kill all brokers at once, including paused ones."""
        for process in self._cluster.brokers():
            process.kill()

    async def _replace_all(self) -> None:
        """Kill all brokers at once. From then on brokers with new ids serve the bucket."""
        if self._cluster.has_been_replaced:
            await self._kill_all()
        else:
            self._cluster.replace_brokers()

    async def _stop(self) -> None:
        """Ask a broker to end. It may die on the way."""
        victim = self._victim()
        if victim is not None:
            victim.terminate()
            if self._random.random() < 0.3:
                victim.kill_after_steps(self._steps())

    def _steps(self) -> int:
        """The remaining life of a process: log-uniform, so that early and late steps are hit
        alike."""
        return round(10 ** self._random.uniform(0.0, 3.5))

    async def _pause(self) -> None:
        victim = self._victim()
        if victim is not None:
            victim.pause()
            await asyncio.sleep(10 ** self._random.uniform(-1.5, 1.3))
            victim.resume()

    async def _take_over(self) -> None:
        """Pause a broker, let another process take its place, and wake the first up."""
        victim = self._victim()
        if victim is None:
            return
        victim.pause()
        await asyncio.sleep(self._random.uniform(0.0, 2.0))
        self._start_rival(victim)
        await asyncio.sleep(self._random.uniform(8.0, 25.0))
        victim.resume()

    async def _usurp(self) -> None:
        """Let another process take over while this one can neither renew its lease nor read that it
        was superseded. It goes on to write its WAL and to answer its clients."""
        victim = self._victim()
        if victim is None:
            return
        seconds = self._random.uniform(18.0, 30.0)
        self._cluster.store.isolate(victim, seconds, "cluster/")
        await asyncio.sleep(self._random.uniform(0.0, 2.0))
        self._start_rival(victim)
        await asyncio.sleep(seconds)

    async def _misjudge(self) -> None:
        """Let another process take a living one for dead, and take over at once."""
        victim = self._victim()
        if victim is None:
            return
        self._cluster.taken_for_dead.setdefault((victim.host, victim.pid), self._loop.time())
        self._start_rival(victim)
        await asyncio.sleep(self._random.uniform(3.0, 8.0))

    async def _second_process(self) -> None:
        """Start a second process with the same id while the first is well."""
        victim = self._victim()
        if victim is not None:
            self._start_rival(victim)

    def _start_rival(self, process: SimulatedProcess) -> None:
        for broker_id in self._cluster.broker_ids():
            living = self._cluster.brokers(broker_id)
            spare = spare_host(broker_id)
            if process in living and all(one.host != spare for one in living):
                self._cluster.start_broker(broker_id, spare)

    # --- store and network ---

    async def _isolate(self) -> None:
        """Cut a process off from the store, or from a part of it, but not from its clients. Another
        process may take over meanwhile. (Object stores throttle by prefix.)"""
        victim = self._victim()
        if victim is None:
            return
        prefix = self._random.choice(_PREFIXES)
        if self._random.random() < 0.3:
            self._cluster.store.isolate(victim, self._random.uniform(0.3, 10.0), prefix)
            return
        # Long enough for another process to take over while it still answers its clients.
        self._cluster.store.isolate(victim, self._random.uniform(15.0, 40.0), prefix)
        await asyncio.sleep(self._random.uniform(0.0, 3.0))
        self._start_rival(victim)

    async def _lonely(self) -> None:
        """Cut a broker off from the store, or from a part of it, while no other process has its
        id."""
        victim = self._victim()
        if victim is not None:
            seconds = 10 ** self._random.uniform(-0.5, 1.5)
            self._cluster.store.isolate(victim, seconds, self._random.choice(_PREFIXES))
            await asyncio.sleep(seconds)

    async def _store_burst(self) -> None:
        seconds = 10 ** self._random.uniform(-1.0, 0.9)
        self._cluster.store.fail_for(seconds, self._random.uniform(0.3, 1.0))

    async def _store_faults(self) -> None:
        """Raise the probability of one kind of fault for a while."""
        settings = self._cluster.store.settings
        kind = self._random.choice(
            ["refused", "reply_lost", "request_lost", "delayed", "repeated", "slow"]
        )
        name = f"{kind}_probability"
        setattr(settings, name, self._random.uniform(0.05, 0.5))
        try:
            await asyncio.sleep(self._random.uniform(0.5, 6.0))
        finally:
            setattr(settings, name, getattr(self._usual, name))

    async def _refuse_puts(self) -> None:
        """Refuse all writes, and serve reads, like a bucket above its quota. Every other time this
        lasts longer than a session."""
        self._cluster.store.refuse_puts_for(10 ** self._random.uniform(0.6, 1.3))

    async def _resets(self) -> None:
        victim = self._victim()
        if victim is not None:
            self._cluster.network.reset_connections(victim.host, self._random.uniform(0.3, 1.0))

    async def _silence(self) -> None:
        victim = self._victim()
        if victim is not None:
            self._cluster.network.sever_connections(victim.host, self._random.uniform(0.3, 1.0))

    async def _partition(self) -> None:
        await self._part(lambda _: self._random.random() < 0.6)

    async def _part_brokers(self) -> None:
        """Cut a broker off from some other brokers. Clients and the store reach all brokers."""
        await self._part(lambda host: self._cluster.is_broker(host) and self._random.random() < 0.8)

    async def _part_clients(self) -> None:
        """Cut one broker off from all clients. Other brokers and the store still reach it."""
        await self._part(lambda host: not self._cluster.is_broker(host))

    async def _part(self, is_parted: Callable[[str], bool]) -> None:
        victim = self._victim()
        if victim is None:
            return
        for peer in self._cluster.network.peers(victim.host):
            if is_parted(peer):
                self._cluster.network.partition(victim.host, peer)
        await asyncio.sleep(self._random.uniform(0.5, 12.0))
        self._cluster.network.heal()
