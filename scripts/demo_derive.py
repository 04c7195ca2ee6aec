"""The demo's second half: two topics derived from the flights, each flight exactly once in both.

A worker process consumes, transforms and produces in transactions; it aborts every third one on
purpose. Worker and brokers are killed with SIGKILL in turn. Then a read_committed reader must see
each flight once in both topics, and a read_uncommitted one also the aborted records.
"""

from __future__ import annotations

import subprocess
import sys
import time
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from confluent_kafka import Consumer, KafkaError, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from scripts.demo_worker import CARRIERS, DELAYS, GROUP, derive

ROOT = Path(__file__).parents[1]
PARTITIONS = 4
BATCH, BATCHES_MIN = 4_000, 30
"""The maximum of flights in a transaction; few rows make smaller ones, for enough transactions."""
ROW_HEADER = "row"
WORKER_KILLS = (0.15, 0.45, 0.75)
BROKER_KILLS = (0.3, 0.6, 0.9)
"""The shares of derived flights at which each process is killed."""
READ_SECONDS_MAX = 120.0


class Progress(Protocol):
    """A line that shows the progress."""

    def show(self, text: str, *, last: bool = False) -> None: ...


class Brokers(Protocol):
    """Brokers that can be killed and replaced."""

    def kill_and_replace(self) -> str:
        """Kill one with SIGKILL, start a new process on the same bucket, and describe both."""
        ...


@dataclass(slots=True)
class Derived:
    """The observations of the two topics."""

    rows: int
    copies: dict[str, array[int]] = field(init=False)
    altered: int = 0
    uncommitted: int = 0
    committed_transactions: int = 0
    aborted_transactions: int = 0
    worker_kills: int = 0
    broker_kills: int = 0
    unread: int = 0
    """Input records after the group's committed offsets."""

    def __post_init__(self) -> None:
        self.copies = {topic: array("i", [0]) * self.rows for topic in (DELAYS, CARRIERS)}

    @property
    def lost(self) -> int:
        return sum(n == 0 for copies in self.copies.values() for n in copies)

    @property
    def duplicated(self) -> int:
        return sum(n - 1 for copies in self.copies.values() for n in copies if n > 1)

    @property
    def aborted(self) -> int:
        """Records that only a read_uncommitted reader saw."""
        return self.uncommitted - sum(sum(copies) for copies in self.copies.values())

    @property
    def right(self) -> bool:
        wrong = self.lost + self.duplicated + self.altered + self.unread
        kills = self.worker_kills == len(WORKER_KILLS) and self.broker_kills == len(BROKER_KILLS)
        return wrong == 0 and kills and self.aborted > 0 and self.aborted_transactions > 0


class Supervisor:
    """Keeps one worker running, and kills worker and broker at the given shares."""

    def __init__(
        self, bootstrap: str, topics: Sequence[str], log: Path, brokers: Brokers, derived: Derived
    ) -> None:
        batch = str(max(1, min(BATCH, derived.rows // BATCHES_MIN)))
        self._command = [sys.executable, "-m", "scripts.demo_worker", bootstrap, batch, *topics]
        self._log = log
        self._brokers = brokers
        self._derived = derived
        self._kills = sorted(
            [(share, "worker") for share in WORKER_KILLS]
            + [(share, "broker") for share in BROKER_KILLS]
        )
        self._worker: subprocess.Popen[str] | None = None

    def run(self, progress: Progress) -> None:
        """Run until a worker has read all input."""
        done = 0
        while True:
            worker = self._start()
            assert worker.stdout is not None
            for line in worker.stdout:
                outcome, count = line.split()
                if outcome == "aborted":
                    self._derived.aborted_transactions += 1
                    continue
                self._derived.committed_transactions += 1
                done += int(count)
                progress.show(f"derived {done:>7,} of {self._derived.rows:,} flights")
                if self._kills and done >= self._kills[0][0] * self._derived.rows:
                    self._kill(self._kills.pop(0)[1])
            worker.stdout.close()
            if worker.wait() == 0:
                progress.show(f"derived {self._derived.rows:,} flights", last=True)
                return

    def end(self) -> None:
        """Leave no process behind."""
        if self._worker is not None and self._worker.poll() is None:
            self._worker.kill()
            self._worker.wait()

    def _start(self) -> subprocess.Popen[str]:
        with self._log.open("ab") as log:
            self._worker = subprocess.Popen(
                self._command, stdout=subprocess.PIPE, stderr=log, text=True, cwd=ROOT
            )
        return self._worker

    def _kill(self, what: str) -> None:
        assert self._worker is not None
        if what == "worker":
            self._derived.worker_kills += 1
            self._worker.kill()
            print(f"\n  SIGKILL to the worker, process {self._worker.pid}", flush=True)
        else:
            self._derived.broker_kills += 1
            print(f"\n  {self._brokers.kill_and_replace()}", flush=True)


def create_topics(bootstrap: str) -> None:
    """Create the derived topics."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    topics = [NewTopic(name, num_partitions=PARTITIONS) for name in (DELAYS, CARRIERS)]
    for created in admin.create_topics(topics).values():
        created.result(30)


def check(
    values: Sequence[bytes],
    inputs: Sequence[TopicPartition],
    bootstrap: str,
    derived: Derived,
    progress: Progress,
) -> None:
    """Read both topics at each isolation level, and compare with the source rows."""
    for isolation in ("read_committed", "read_uncommitted"):
        consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": GROUP,
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "isolation.level": isolation,
                "log_level": 0,
            }
        )
        places = [TopicPartition(t, p, 0) for t in (DELAYS, CARRIERS) for p in range(PARTITIONS)]
        consumer.assign(places)
        if isolation == "read_committed":
            derived.unread = _unread(consumer, inputs)
        left = {(place.topic, place.partition) for place in places}
        seen = 0
        deadline = time.monotonic() + READ_SECONDS_MAX
        while left and time.monotonic() < deadline:
            for message in consumer.consume(10_000, timeout=0.5):
                if message.error() is not None:
                    if message.error().code() == KafkaError._PARTITION_EOF:
                        left.discard((message.topic(), message.partition()))
                    continue
                seen += 1
                if isolation == "read_committed":
                    row = int(dict(message.headers())[ROW_HEADER])
                    derived.copies[message.topic()][row] += 1
                    key, delay, distance = derive(values[row])
                    value = delay if message.topic() == DELAYS else distance
                    derived.altered += (message.key(), message.value()) != (key, value)
            progress.show(f"{isolation}: read {seen:>7,} derived records")
        consumer.close()
        progress.show(f"{isolation}: read {seen:,} derived records", last=True)
        derived.uncommitted = seen


def _unread(consumer: Consumer, inputs: Sequence[TopicPartition]) -> int:
    unread = 0
    for place in consumer.committed(list(inputs), timeout=60):
        _, high = consumer.get_watermark_offsets(place, timeout=60)
        unread += high - max(place.offset, 0)
    return unread


def report(derived: Derived) -> None:
    """Print the findings."""
    print("\nTwo derived topics, exactly once")
    print(
        f"  transactions committed {derived.committed_transactions},"
        f" aborted {derived.aborted_transactions}"
    )
    print(f"  killed: the worker {derived.worker_kills} times, brokers {derived.broker_kills}")
    print(f"  flights in {derived.rows:,}, read up to the end but for {derived.unread}")
    for topic, copies in derived.copies.items():
        print(f"  {topic}: {sum(copies):,} records seen by read_committed")
    print(f"  aborted records that read_uncommitted saw as well: {derived.aborted:,}")
    print(f"  lost {derived.lost}, duplicated {derived.duplicated}, altered {derived.altered}")
