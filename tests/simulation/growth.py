"""How many objects a bucket holds under constant load, hour after hour of virtual time.

A whole broker runs on a store in memory: its WAL, checkpoints, merges, rolls and collections are
those of production. A feeder appends this many batches a second, each in a separate slot. Processes
may die at intervals. The next process continues from the bucket.

    python -m tests.simulation.growth --rate 630 --hours 3 [--lives 480] [--scale 10]

`--scale N` divides the grace, the intervals and the hours by N: the bucket then holds an Nth of the
objects, and the run takes an Nth of the time.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from uuid import UUID

from tests.simulation.world.clock import SimulatedClock
from tests.simulation.world.loop import SimulatedLoop
from tests.unit.broker.one_broker import batch
from tidelog.broker.broker import Broker
from tidelog.broker.environment import BrokerEnvironment
from tidelog.broker.options import BrokerOptions
from tidelog.broker.partitions.log_writer import LogWriter, ProducerRoom
from tidelog.broker.running import RunningBroker
from tidelog.broker.settings.settings import BrokerSettings
from tidelog.broker.telemetry.metrics import BrokerMetrics
from tidelog.coordinator.cluster.records.process_identity import ProcessIdentity
from tidelog.coordinator.cluster.records.records import TopicCreated
from tidelog.entropy import SeededEntropy
from tidelog.identifiers import BrokerId, TopicPartition
from tidelog.network import Listener
from tidelog.records.batch import BatchHeader
from tidelog.socket_listener import AcceptDelay, ProtocolFactory, no_delay
from tidelog.storage.stores.memory import MemoryStore
from tidelog.workers.offload import InlineOffload

GRACE_SECONDS = 600.0
INTERVAL_SECONDS = 60.0
TOPIC = "growing"
PARTITIONS = 4
SAMPLE_SECONDS = 60.0


class NoListener:
    """A listener without connections."""

    address = ("127.0.0.1", 9092)

    async def accept(self, delay: AcceptDelay = no_delay) -> None:
        """No connection arrives."""

    async def close(self) -> None:
        """No connection is open."""


class NoNetwork:
    """A network without other hosts."""

    async def listen(
        self, factory: ProtocolFactory, host: str, port: int, *, accepting: bool = True
    ) -> Listener:
        return NoListener()

    async def connect(self, factory: ProtocolFactory, host: str, port: int) -> asyncio.Transport:
        raise OSError("there is no other host")


@dataclass(frozen=True, slots=True)
class Load:
    """The load on the broker."""

    slots_a_second: float
    hours: float
    scale: float = 1.0
    life_seconds: float | None = None
    """The life of each process, unscaled, or None if it does not die."""
    slots_max: int | None = None
    """After this many slots the feeder stops."""

    @property
    def grace_seconds(self) -> float:
        return GRACE_SECONDS / self.scale

    @property
    def interval_seconds(self) -> float:
        return INTERVAL_SECONDS / self.scale


@dataclass(slots=True)
class Growth:
    """The result of a run."""

    slots: int = 0
    """Slots that were written."""
    samples: list[int] = field(default_factory=list)
    """Objects in the bucket, a minute apart (unscaled)."""
    folders: Counter[str] = field(default_factory=Counter)
    """The number of objects at the end."""
    lives: int = 0
    ready_seconds: list[float] = field(default_factory=list)
    """The time of each process from its start to ready."""

    def is_level(self, share: float = 0.1) -> bool:
        """Whether the last third of the run held at most as much as the second, plus `share`."""
        third = len(self.samples) // 3
        return max(self.samples[2 * third :]) <= (1 + share) * max(self.samples[third : 2 * third])


def settings_of(load: Load) -> BrokerSettings:
    """Production's settings, with scaled times."""
    scaled: Mapping[str, object] = {
        "log_delete_grace_ms": int(load.grace_seconds * 1000),
        "log_collect_interval_ms": int(load.interval_seconds * 1000),
        "log_collect_tables_interval_ms": int(30 * load.interval_seconds * 1000),
        "roll_age_ms": int(3_600_000 / load.scale),
        "wal_linger_ms": 0,
        "broker_session_timeout_ms": 9_000,
        "tail_cache_bytes": 64 * 1024 * 1024,
    }
    return BrokerSettings.of(**scaled)


class GrowingBucket:
    """A bucket, a broker on it, and its feeder."""

    def __init__(self, loop: SimulatedLoop, load: Load) -> None:
        self._loop = loop
        self._load = load
        self._clock = SimulatedClock(loop)
        self._random = random.Random(1)
        self.store = MemoryStore(self._clock)
        self.growth = Growth()
        self._topic_id: UUID | None = None

    async def run(self) -> Growth:
        """Run one process after the other, until the time is over."""
        load = self._load
        ends_at = self._clock.monotonic() + 3600 * load.hours / load.scale
        sampling = asyncio.create_task(self._sample())
        while self._clock.monotonic() < ends_at:
            seconds = ends_at - self._clock.monotonic()
            if load.life_seconds is not None:
                seconds = min(seconds, load.life_seconds / load.scale)
            await self.live(seconds)
        sampling.cancel()
        self.growth.folders = self._folders()
        return self.growth

    async def live(self, seconds: float, *, since_ready: bool = False) -> None:
        """Run a process, which is killed this long after its start, or after it is ready."""
        self.growth.lives += 1
        options = BrokerOptions(
            settings=settings_of(self._load),
            broker_id=BrokerId(0),
            listen=("127.0.0.1", 9092),
            process=ProcessIdentity("host", "boot", "pids", self.growth.lives, self.growth.lives),
            is_running=lambda _: False,
        )
        world = BrokerEnvironment.of(
            self.store,
            self._clock,
            SeededEntropy(self.growth.lives),
            NoNetwork(),
            InlineOffload(),
        )
        broker = Broker(options, world, BrokerMetrics())
        begun_at = self._clock.monotonic()
        running = asyncio.create_task(broker.run())
        try:
            async with asyncio.timeout(None if since_ready else seconds) as ending:
                await broker.ready.wait()
                serving = broker.running
                if serving is None:
                    await running
                    raise AssertionError("the broker ended by itself")
                self.growth.ready_seconds.append(self._clock.monotonic() - begun_at)
                if since_ready:
                    ending.reschedule(asyncio.get_running_loop().time() + seconds)
                await self._create_topic(serving)
                await self._feed(serving)
                await running
            raise AssertionError("the broker ended by itself")
        except TimeoutError:
            pass
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)

    async def _create_topic(self, broker: RunningBroker) -> None:
        if self._topic_id is None:
            epoch = broker.membership.incarnation.epoch
            topic_id = broker.environment.entropy.uuid()
            created = TopicCreated(topic_id, TOPIC, (epoch,) * PARTITIONS, {"retention.ms": "-1"})
            await broker.membership.metadata.append(epoch, lambda _: (created,))
            self._topic_id = topic_id

    async def _feed(self, broker: RunningBroker) -> None:
        """Append a batch at a time, each durable before the next. Batches that are late follow at
        once."""
        writes = broker.writes
        room = ProducerRoom(writes.partitions.producers, PARTITIONS, broker.services.cluster.limits)
        writer = LogWriter(writes.wal, writes.partitions, writes.tenure_reports.add, room)
        data = batch(b"x" * 100)
        header = BatchHeader.parse(data)
        assert self._topic_id is not None
        hosted = [
            writes.partitions.find(TopicPartition(self._topic_id, number))
            for number in range(PARTITIONS)
        ]
        begun_at = self._clock.monotonic()
        number = 0
        while self._load.slots_max is None or self.growth.slots < self._load.slots_max:
            now_ms = self._clock.time_ms()
            placed = writer.append(hosted[number % PARTITIONS], data, header, now_ms)
            await writes.wal.durable(placed.slot)
            number += 1
            self.growth.slots += 1
            due_at = begun_at + number / self._load.slots_a_second
            if due_at > self._clock.monotonic():
                await self._clock.sleep(due_at - self._clock.monotonic())

    async def _sample(self) -> None:
        while True:
            await self._clock.sleep(SAMPLE_SECONDS / self._load.scale)
            self.growth.samples.append(len(self.store._objects))

    def _folders(self) -> Counter[str]:
        return Counter(key.partition("/")[0] for key in self.store._objects)


def grow(load: Load) -> Growth:
    """A run from an empty bucket."""
    with SimulatedLoop(1) as loop:
        bucket = GrowingBucket(loop, load)
        return loop.run(bucket.run())


def main(arguments: list[str]) -> int:
    """Print the number of objects of one run, every ten minutes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rate", type=float, action="append", help="slots a second")
    parser.add_argument("--hours", type=float, default=3.0)
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--lives", type=float, help="seconds between two kills")
    found = parser.parse_args(arguments)
    failures = 0
    for rate in found.rate or (250.0, 630.0, 2000.0):
        load = Load(rate, found.hours, found.scale, found.lives)
        started = time.perf_counter()
        growth = grow(load)
        print(
            f"{rate:.0f} slots a second for {found.hours:g} h / {found.scale:g}, {growth.lives}"
            f" processes: {growth.slots} slots, objects every ten minutes {growth.samples[9::10]},"
            f" in the end {dict(growth.folders)}, level: {growth.is_level()},"
            f" {time.perf_counter() - started:.0f} s",
            flush=True,
        )
        failures += not growth.is_level()
    return failures


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
