"""A simulated cluster: its hosts and processes, one bucket, one network, and the supervisor."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from tests.simulation.actors.log_client import LogClient
from tests.simulation.world.loop import SimulatedLoop
from tests.simulation.world.network import ProcessNetwork, SimulatedNetwork
from tests.simulation.world.process import Exit, SimulatedProcess
from tests.simulation.world.store import ProcessStore, SimulatedStore
from tidelog.errors import TidelogError

_OFFSET_MS_MAX = 3000
_RATE_ERROR_MAX = 0.003


@dataclass(frozen=True, slots=True)
class Environment:
    """The environment of one process's program."""

    process: SimulatedProcess
    store: ProcessStore
    network: ProcessNetwork
    cluster: SimulatedCluster
    broker_id: int = -1


BrokerProgram = Callable[[Environment], Coroutine[Any, Any, object]]
"""The main coroutine of a broker's process."""
ClientProgram = Callable[[Environment], LogClient]
"""A client's library, in its own process."""


class SimulatedCluster:
    """Starts brokers and clients; restarts a broker that has ended, as an init system would."""

    def __init__(
        self,
        loop: SimulatedLoop,
        seed: int | str,
        network: SimulatedNetwork,
        store: SimulatedStore,
        program: BrokerProgram,
        client_program: ClientProgram,
        size: int = 1,
    ) -> None:
        """`size`: the number of broker ids that run at a time."""
        self.loop = loop
        self.size = size
        self.network = network
        self.store = store
        self.counts: Counter[str] = Counter()
        self.exits: Counter[str] = Counter()
        self.violations: list[str] = []
        self.supervising = True
        self.healed = False
        """When true, brokers give no partitions away any more. A group whose coordinator moves each
        second never gets all its members together."""
        self.taken_for_dead: dict[tuple[str, int], float] = {}
        """Processes, by host and number, that other processes wrongly take for dead, and since
        when."""
        self._program = program
        self._client_program = client_program
        self._random = random.Random(f"cluster {seed}")
        self._brokers: dict[int, list[SimulatedProcess]] = {}
        self._replaced: set[int] = set()
        self._processes: dict[tuple[str, int], SimulatedProcess] = {}
        self._pids = 100

    # --- brokers ---

    def start(self) -> None:
        """Start a process of each broker id."""
        for broker_id in range(self.size):
            self.start_broker(broker_id)

    def replace_brokers(self) -> None:
        """Kill all brokers for good, and start as many with other ids on other hosts. Call this
        only once."""
        assert not self._replaced
        self._replaced.update(self._brokers)
        for process in self.brokers():
            process.kill()
        for broker_id in range(self.size, 2 * self.size):
            self.start_broker(broker_id)

    def dismiss(self, broker_id: int, *, polite: bool) -> None:
        """End a broker's processes for good: ask them to end, or kill them."""
        self._replaced.add(broker_id)
        self.counts["brokers left"] += 1
        for process in self.brokers(broker_id):
            if polite:
                process.terminate()
            else:
                process.kill()

    def add_broker(self) -> None:
        """Start one more broker with an unused id, if there is one."""
        unused = [one for one in range(2 * self.size) if one not in self._brokers]
        if unused:
            self.counts["brokers joined"] += 1
            self.start_broker(unused[0])

    @property
    def has_been_replaced(self) -> bool:
        """Whether the first brokers are gone for good."""
        return bool(self._replaced)

    def start_broker(self, broker_id: int, host: str | None = None) -> SimulatedProcess:
        """Start one more process with this broker id. Usually no other process has it."""
        name = host if host is not None else broker_host(broker_id)
        process = self._new_process(f"broker-{broker_id}", name)
        self._brokers.setdefault(broker_id, []).append(process)
        process.at_death(lambda: self._broker_died(broker_id, process))
        environment = self._environment(process, broker_id)
        self.counts["broker starts"] += 1
        process.start(lambda: self._program(environment))
        return process

    def brokers(self, broker_id: int | None = None) -> list[SimulatedProcess]:
        """The living processes, paused ones included, in the order of their starts."""
        ids = list(self._brokers) if broker_id is None else [broker_id]
        return [process for one in ids for process in self._brokers.get(one, []) if process.alive]

    def broker_ids(self) -> list[int]:
        """The ids that were started and not replaced."""
        return [one for one in self._brokers if one not in self._replaced]

    def hosts(self) -> list[str]:
        """The hosts on which clients may find brokers, now or later."""
        ids = self._brokers if self.size == 1 else range(2 * self.size)
        return [host for one in ids for host in (broker_host(one), spare_host(one))]

    def is_broker(self, host: str) -> bool:
        """Whether brokers run on a host, and not clients."""
        return host in self.hosts()

    def _broker_died(self, broker_id: int, process: SimulatedProcess) -> None:
        assert process.exit is not None
        self._judge(process.exit)
        if self.supervising:
            delay = self._random.uniform(0.0, 3.0)
            self.loop.call_system(delay, self._restart, broker_id, process.host)

    def _restart(self, broker_id: int, host: str) -> None:
        if broker_id in self._replaced:
            return
        if self.supervising and not any(one for one in self.brokers(broker_id) if not one.paused):
            taken = any(one.host == host for one in self.brokers(broker_id))
            self.start_broker(broker_id, spare_host(broker_id) if taken else host)

    def _judge(self, ended: Exit) -> None:
        """A process may end itself for a reason that it names. Any other end is a defect."""
        if ended.killed:
            self.exits["killed"] += 1
        elif ended.error is None:
            self.exits["stopped"] += 1
        else:
            self.exits[type(ended.error).__name__] += 1
            if not isinstance(ended.error, TidelogError | OSError):
                self.violations.append(f"a broker crashed: {ended.error!r}")

    # --- clients ---

    def start_client(
        self, name: str, program: Callable[[Environment], Coroutine[Any, Any, object]]
    ) -> SimulatedProcess:
        """Start a client's process on a separate host."""
        process = self._new_process(name, f"host-of-{name}")
        environment = self._environment(process)
        process.start(lambda: program(environment))
        return process

    def client_of(self, environment: Environment) -> LogClient:
        """The client library for a process."""
        return self._client_program(environment)

    # --- processes ---

    def is_running(self, host: str, pid: int) -> bool:
        """The answer of the host's table of processes."""
        process = self._processes.get((host, pid))
        return process is not None and process.alive

    def _new_process(self, name: str, host: str) -> SimulatedProcess:
        self._pids += 1
        process = SimulatedProcess(
            self.loop,
            f"{name}.{self._pids}",
            host,
            self._pids,
            clock_offset_ms=self._random.randint(-_OFFSET_MS_MAX, _OFFSET_MS_MAX),
            clock_rate=1.0 + self._random.uniform(-_RATE_ERROR_MAX, _RATE_ERROR_MAX),
        )
        self._processes[host, self._pids] = process
        return process

    def _environment(self, process: SimulatedProcess, broker_id: int = -1) -> Environment:
        return Environment(
            process, self.store.of(process), self.network.of(process), self, broker_id
        )


def broker_host(broker_id: int) -> str:
    """The host on which a broker usually runs."""
    return f"broker-{broker_id}"


def spare_host(broker_id: int) -> str:
    """The host of a second process with the same broker id: started by mistake, or to take over."""
    return f"broker-{broker_id}b"
