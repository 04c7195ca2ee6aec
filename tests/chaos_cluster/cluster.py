"""Three brokers as processes on one store: killed, stopped, started again, cut off."""

from __future__ import annotations

import random
import re
import signal
import threading
from collections.abc import Sequence
from pathlib import Path

from tests.chaos_cluster.links import ANSWERS, BOTH, REQUESTS, Link
from tests.chaos_cluster.protection import JOBS, LISTENERS, Protection
from tidelog.localstack.broker_process import BrokerProcess, log_tail
from tidelog.localstack.ports import free_ports

SETTINGS = {
    "group.initial.rebalance.delay.ms": 0,
    # The sessions of members that are killed. Members of the classic protocol choose theirs.
    "group.consumer.session.timeout.ms": 10_000,
    "group.consumer.min.session.timeout.ms": 10_000,
    "offsets.topic.num.partitions": 6,
    "transaction.state.log.num.partitions": 6,
}
PAUSE_SECONDS = (1.0, 14.0)
"""Stops below and above the session timeout: in the longer ones the broker is fenced."""
DEATHS = ("kill", "kill", "kill", "pause", "pause", "kill two", "stop")
CUTS = ("cut store", "cut store", "cut address", "cut address", "kill")
"""Cuts hold one direction of the traffic to the store or to one broker. A broker may then reach
others that do not reach it."""
ROTATIONS = (*DEATHS, "rotate", "rotate", "rotate")
"""Also new certificates for the brokers: some brokers take them at once, and the others soon."""
WAYS = ((REQUESTS,), (ANSWERS,), BOTH)


class Cluster:
    """The brokers, each with a fixed id and port."""

    def __init__(
        self,
        store: str,
        folder: Path,
        faults: Sequence[str],
        count: int = 3,
        protection: Protection | None = None,
    ) -> None:
        self._folder = folder
        self._faults = faults
        self.protection = protection
        doors = 1 if protection is None else len(LISTENERS)
        ports = free_ports(count * doors)
        self._ports = [ports[number::count] for number in range(count)]
        """The ports of each broker: for clients, and for brokers if these have a separate
        listener."""
        self._addresses = [Link(port) for port in ports]
        """The links to the brokers: first those of all first ports, then those of all second
        ports."""
        self._ways_to_store: list[Link] = []
        self._stores = [self._way_to(store) for _ in range(count)]
        self._lock = threading.Lock()
        self._brokers: dict[int, BrokerProcess] = {}
        self.faults: list[str] = []
        self.ended: list[str] = []
        """Brokers that ended by themselves, with their last log lines. A fenced broker does
        this."""
        for number in range(count):
            self._start(number)

    @property
    def bootstrap(self) -> str:
        """The addresses of all brokers."""
        links = self._addresses[: len(self._ports)]
        return ",".join(f"127.0.0.1:{link.port}" for link in links)

    @property
    def connection(self) -> dict[str, str]:
        """The properties of a client of the jobs, by confluent-kafka's names."""
        found = {"bootstrap.servers": self.bootstrap, "reconnect.backoff.max.ms": "500"}
        return found if self.protection is None else found | self.protection.client(JOBS)

    @property
    def variables(self) -> dict[str, str]:
        """The environment of a job's process."""
        return {} if self.protection is None else self.protection.files(JOBS)

    def logs(self) -> str:
        """The ends of all logs, for messages of assertions."""
        return "\n".join(log_tail(self._log(number)) for number in range(len(self._ports)))

    def harm(self, chance: random.Random, gone: threading.Event) -> None:
        """Cause one fault: kill -9, SIGSTOP and SIGCONT, SIGTERM, or a cut. Processes that ended
        are started again."""
        fault = chance.choice(self._faults)
        self.faults.append(fault)
        if fault.startswith("cut"):
            links = self._ways_to_store if fault == "cut store" else self._addresses
            link = chance.choice(links)
            link.cut(*chance.choice(WAYS))
            gone.wait(chance.uniform(*PAUSE_SECONDS))
            link.heal()
            return
        if fault == "rotate":
            self.rotate(chance.sample(list(self._brokers), 1))
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

    def rotate(self, hastened: Sequence[int]) -> None:
        """Give the brokers another certificate. The hastened ones get a signal to take it at
        once."""
        assert self.protection is not None
        self.protection.rotate()
        for number in hastened:
            self._brokers[number].process.send_signal(signal.SIGHUP)

    def mend(self) -> None:
        """Start processes again that have ended by themselves."""
        for number, broker in list(self._brokers.items()):
            if broker.process.poll() is not None:
                self.ended.append(log_tail(self._log(number)).strip().splitlines()[-1])
                broker.wait_for_death(1)
                self._start(number)

    def close(self) -> None:
        """Kill all brokers."""
        for broker in self._brokers.values():
            broker.process.send_signal(signal.SIGCONT)
            broker.kill()
        for link in (*self._addresses, *self._ways_to_store):
            link.close()

    def _start(self, number: int) -> None:
        ports = self._ports[number]
        advertised = [link.port for link in self._addresses[number :: len(self._ports)]]
        settings: dict[str, object] = dict(SETTINGS)
        listen, arguments = None, []
        if self.protection is None:
            listen = f"127.0.0.1:{ports[0]}"
            arguments = ["--advertise", f"127.0.0.1:{advertised[0]}"]
        else:
            settings |= self.protection.settings(ports, advertised)
        self._brokers[number] = BrokerProcess.start(
            self._stores[number],
            self._log(number),
            listen=listen,
            arguments=arguments,
            broker_id=number,
            settings=settings,
            ready_seconds_max=120,
        )

    def _way_to(self, store: str) -> str:
        """The store's address through a separate link. A folder has none."""
        found = re.search(r"127\.0\.0\.1:(\d+)", store)
        if found is None:
            return store
        link = Link(int(found[1]))
        self._ways_to_store.append(link)
        return store.replace(found[0], f"127.0.0.1:{link.port}")

    def _log(self, number: int) -> Path:
        return self._folder / f"broker-{number}.log"
