"""Three brokers as processes on one store: killed, stopped, started again, cut off."""

from __future__ import annotations

import random
import re
import signal
import threading
from collections.abc import Sequence
from pathlib import Path

from tests.chaos_cluster.links import ANSWERS, BOTH, REQUESTS, Link
from tidelog.localstack.broker_process import BrokerProcess, log_tail
from tidelog.localstack.ports import free_ports

SETTINGS = {
    "group.initial.rebalance.delay.ms": 0,
    # Of members that are killed; those of the classic protocol choose it.
    "group.consumer.session.timeout.ms": 10_000,
    "group.consumer.min.session.timeout.ms": 10_000,
    "offsets.topic.num.partitions": 6,
    "transaction.state.log.num.partitions": 6,
}
PAUSE_SECONDS = (1.0, 14.0)
"""Stops below and above the session timeout: in the longer ones the broker is fenced."""
DEATHS = ("kill", "kill", "kill", "pause", "pause", "kill two", "stop")
CUTS = ("cut store", "cut store", "cut address", "cut address", "kill")
"""A broker that is not reached may reach the others, and the other way round."""
WAYS = ((REQUESTS,), (ANSWERS,), BOTH)


class Cluster:
    """The brokers, each with its id and port for ever."""

    def __init__(self, store: str, folder: Path, faults: Sequence[str], count: int = 3) -> None:
        self._folder = folder
        self._faults = faults
        self._ports = free_ports(count)
        self._addresses = [Link(port) for port in self._ports]
        """The ways to the brokers: of clients, and of brokers to each other."""
        self._ways_to_store: list[Link] = []
        self._stores = [self._way_to(store) for _ in range(count)]
        self._lock = threading.Lock()
        self._brokers: dict[int, BrokerProcess] = {}
        self.faults: list[str] = []
        self.ended: list[str] = []
        """Brokers that ended by themselves, with their last words: a fenced one does."""
        for number in range(count):
            self._start(number)

    @property
    def bootstrap(self) -> str:
        """The addresses of all brokers."""
        return ",".join(f"127.0.0.1:{link.port}" for link in self._addresses)

    def logs(self) -> str:
        """The ends of all logs."""
        return "\n".join(log_tail(self._log(number)) for number in range(len(self._ports)))

    def harm(self, chance: random.Random, gone: threading.Event) -> None:
        """One fault: kill -9, SIGSTOP and SIGCONT, SIGTERM, or a cut. What ended is started
        again."""
        fault = chance.choice(self._faults)
        self.faults.append(fault)
        if fault.startswith("cut"):
            links = self._ways_to_store if fault == "cut store" else self._addresses
            link = chance.choice(links)
            link.cut(*chance.choice(WAYS))
            gone.wait(chance.uniform(*PAUSE_SECONDS))
            link.heal()
            return
        victims = chance.sample(list(self._brokers), 2 if fault == "kill two" else 1)
        if fault == "pause":
            process = self._brokers[victims[0]].process
            process.send_signal(signal.SIGSTOP)
            gone.wait(chance.uniform(*PAUSE_SECONDS))
            process.send_signal(signal.SIGCONT)
            return
        for number in victims:
            if fault == "stop":
                self._brokers[number].stop()
            else:
                self._brokers[number].kill()
        gone.wait(chance.uniform(0.0, 4.0))
        for number in victims:
            self._start(number)

    def mend(self) -> None:
        """Start again what has ended by itself."""
        for number, broker in list(self._brokers.items()):
            if broker.process.poll() is not None:
                self.ended.append(log_tail(self._log(number)).strip().splitlines()[-1])
                broker.wait_for_death(1)
                self._start(number)

    def close(self) -> None:
        """Kill all."""
        for broker in self._brokers.values():
            broker.process.send_signal(signal.SIGCONT)
            broker.kill()
        for link in (*self._addresses, *self._ways_to_store):
            link.close()

    def _start(self, number: int) -> None:
        self._brokers[number] = BrokerProcess.start(
            self._stores[number],
            self._log(number),
            listen=f"127.0.0.1:{self._ports[number]}",
            arguments=("--advertise", f"127.0.0.1:{self._addresses[number].port}"),
            broker_id=number,
            settings=SETTINGS,
            ready_seconds_max=120,
        )

    def _way_to(self, store: str) -> str:
        """The store's address by a way of its own. A folder has none."""
        found = re.search(r"127\.0\.0\.1:(\d+)", store)
        if found is None:
            return store
        link = Link(int(found[1]))
        self._ways_to_store.append(link)
        return store.replace(found[0], f"127.0.0.1:{link.port}")

    def _log(self, number: int) -> Path:
        return self._folder / f"broker-{number}.log"
