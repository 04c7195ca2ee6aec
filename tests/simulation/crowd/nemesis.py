"""Faults of many brokers: some leave for good, new ones join, many die at once, the store fails."""

from __future__ import annotations

from tests.simulation.cluster import SimulatedCluster
from tests.simulation.crowd.members import Members
from tests.simulation.nemesis import Nemesis, Profile
from tests.simulation.world.process import SimulatedProcess

CROWD_PROFILE = Profile(
    {
        "kill": 4,
        "kill during put": 3,
        "kill many": 2,
        "stop": 4,
        "leave": 4,
        "join": 4,
        "pause": 4,
        "lonely": 4,
        "second process": 1,
        "store burst": 2,
        "outage": 2,
        "puts refused": 2,
        "resets": 1,
        "silence": 2,
        "partition": 2,
        "brokers apart": 4,
    }
)


class CrowdNemesis(Nemesis):
    """Records the processes that it hits."""

    def __init__(self, cluster: SimulatedCluster, seed: int, members: Members) -> None:
        super().__init__(cluster, seed, ("crowd", CROWD_PROFILE))
        self._members = members
        self._faults |= {
            "kill many": self._kill_many,
            "leave": self._leave,
            "join": self._join,
            "outage": self._outage,
        }

    def _victim(self) -> SimulatedProcess | None:
        victim = super()._victim()
        if victim is not None:
            self._members.harmed.add((victim.host, victim.pid))
        return victim

    async def _kill_many(self) -> None:
        """Kill up to a third at once."""
        running = self._cluster.brokers()
        count = self._random.randint(2, max(2, len(running) // 3))
        for process in self._random.sample(running, min(count, len(running))):
            process.kill()

    async def _leave(self) -> None:
        """End one broker for good, politely or not. Half of all brokers stay."""
        ids = self._cluster.broker_ids()
        if len(ids) > self._cluster.size // 2:
            leaving = self._random.choice(ids)
            self._members.harmed.update(
                (process.host, process.pid) for process in self._cluster.brokers(leaving)
            )
            self._cluster.dismiss(leaving, polite=self._random.random() < 0.7)

    async def _join(self) -> None:
        """Start a broker with an unused id."""
        self._cluster.add_broker()

    async def _store_burst(self) -> None:
        # A share near one would let the leases through of some brokers alone, by chance.
        seconds = 10 ** self._random.uniform(-1.0, 0.9)
        self._cluster.store.fail_for(seconds, self._random.uniform(0.2, 0.6))

    async def _outage(self) -> None:
        """Let the store refuse all requests, often for longer than a session."""
        self._cluster.store.fail_for(self._random.uniform(4.0, 16.0), 1.0)
