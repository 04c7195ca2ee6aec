"""The demo's three brokers on one bucket, and what follows when one of them is killed."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from confluent_kafka.admin import AdminClient

from tidelog.localstack.broker_process import BrokerProcess
from tidelog.localstack.ports import free_ports

COUNT = 3
METADATA_SECONDS_MAX = 30.0


@dataclass(slots=True)
class Kill:
    """A broker that was killed midway, and how long its partitions were without a leader."""

    broker_id: int
    at: float
    orphans: frozenset[tuple[str, int]]
    """The partitions that it led."""
    unacknowledged: int
    acknowledged_at: float | None = None
    """When the first new record of an orphan was acknowledged, by another broker."""

    def acknowledged(self, topic: str, partition: int) -> None:
        """Note that a record sent after the kill was acknowledged."""
        if self.acknowledged_at is None and (topic, partition) in self.orphans:
            self.acknowledged_at = time.monotonic()


@dataclass(slots=True)
class Brokers:
    """Three processes that know only the bucket."""

    store: str
    folder: Path
    _running: dict[int, BrokerProcess] = field(default_factory=dict)
    _addresses: list[str] = field(default_factory=list)
    _later_kills: int = 0

    def start(self) -> None:
        """Start all brokers, and describe them."""
        self._addresses = [f"127.0.0.1:{port}" for port in free_ports(COUNT)]
        for broker_id in range(COUNT):
            broker = self._start(broker_id)
            print(
                f"Broker {broker_id} of cluster {broker.cluster} on {broker.kafka}, process"
                f" {broker.process.pid}",
                flush=True,
            )

    @property
    def bootstrap(self) -> str:
        """The addresses of all brokers, also of one that is dead."""
        return ",".join(self._addresses)

    @property
    def one(self) -> str:
        """The address of a living broker."""
        return next(iter(self._running.values())).kafka

    def leaders(self) -> dict[tuple[str, int], int]:
        """The leader of each partition, internal topics left out."""
        found = AdminClient({"bootstrap.servers": self.one}).list_topics(
            timeout=METADATA_SECONDS_MAX
        )
        return {
            (name, number): partition.leader
            for name, topic in found.topics.items()
            if not name.startswith("__")
            for number, partition in topic.partitions.items()
        }

    def kill_one(self, unacknowledged: int) -> Kill:
        """Kill a broker with SIGKILL; the others go on without it."""
        leaders = self.leaders()
        victim, _ = Counter(leaders.values()).most_common(1)[0]
        orphans = frozenset(place for place, leader in leaders.items() if leader == victim)
        broker = self._running.pop(victim)
        kill = Kill(victim, time.monotonic(), orphans, unacknowledged)
        broker.kill()
        print(
            f"\n  SIGKILL to broker {victim}, process {broker.process.pid}, which leads"
            f" {len(orphans)} of {len(leaders)} partitions; {unacknowledged:,} rows"
            f" unacknowledged. Brokers {self._named()} go on",
            flush=True,
        )
        return kill

    def rejoin(self, broker_id: int) -> str:
        """Start a new process for a dead broker, and describe it."""
        began = time.monotonic()
        broker = self._start(broker_id)
        return (
            f"broker {broker_id} is back as process {broker.process.pid}, ready in"
            f" {time.monotonic() - began:.2f} s"
        )

    def kill_and_replace(self) -> str:
        """Kill the brokers in turn, each with SIGKILL; start a new process; describe both."""
        victim = self._later_kills % COUNT
        self._later_kills += 1
        broker = self._running.pop(victim)
        broker.kill()
        return f"SIGKILL to broker {victim}, process {broker.process.pid}; {self.rejoin(victim)}"

    def shares(self) -> str:
        """How many partitions each broker leads."""
        counts = Counter(self.leaders().values())
        return ", ".join(f"broker {each} leads {counts[each]}" for each in sorted(self._running))

    def stop(self) -> list[int]:
        """Stop all brokers politely, one after the other; their exit codes."""
        return [self._running.pop(each).stop() for each in sorted(self._running)]

    def end(self) -> None:
        """Leave no process behind."""
        for broker in self._running.values():
            if broker.process.poll() is None:
                broker.kill()

    def _named(self) -> str:
        return " and ".join(map(str, sorted(self._running)))

    def _start(self, broker_id: int) -> BrokerProcess:
        broker = BrokerProcess.start(
            self.store,
            self.folder / f"broker-{broker_id}.log",
            listen=self._addresses[broker_id],
            broker_id=broker_id,
        )
        self._running[broker_id] = broker
        return broker
