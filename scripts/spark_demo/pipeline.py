"""The Spark demo's second half: a database's log through Spark into two topics, exactly once.

The log is written to one topic, in transactions like the database's, of which some are aborted and
written again. Meanwhile a driver process streams it into two topics: an audit, with a record for
each change, and the board's rows, with the state of the row after each change. The driver is killed
with SIGKILL, Python and Java at once, and another one continues from its checkpoint. Each change
must be in both topics once, in the order of its key, and never in only one of them.
"""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from pyspark.sql import SparkSession

from scripts.spark_demo.changes import Change
from scripts.spark_demo.checks import HEADER, PARTITIONS, Pipelined, check, look
from scripts.spark_demo.driver import AUDIT, BOARD, CHANGES, TRANSACTIONAL_ID
from tidelog.client.transactions.sink import PROGRESS
from tidelog.localstack.broker_process import log_tail

ROOT = Path(__file__).parents[2]
TRANSACTION_CHANGES = 500
ABORTED_EACH = 5
FED_AT_ONCE = 8
"""Transactions that are added to the log while a batch runs."""
KILLS = {0.3: "begun", 0.6: "committed"}
"""The share of the log at which a driver is killed, and the moment in its batch.

That is when Spark has begun the batch, or when the sink has committed it and Spark does not know.
"""
SILENT_SECONDS_MAX = 240.0
POLL_SECONDS = 0.002


class Feeder:
    """Writes the log into its topic, one transaction of the database at a time."""

    def __init__(self, bootstrap: str, found: Pipelined) -> None:
        self._found = found
        self._next = 0
        self._transactions = 0
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "transactional.id": "database",
                # The partitioner of Java's clients: a row's changes are in one partition.
                "partitioner": "murmur2_random",
                "linger.ms": 5,
                "compression.type": "lz4",
                "log_level": 0,
            }
        )
        self._producer.init_transactions(60)

    @property
    def is_done(self) -> bool:
        return self._next >= len(self._found.changes)

    def feed(self) -> None:
        """Write the next transactions."""
        for _ in range(FED_AT_ONCE):
            if self.is_done:
                return
            part = self._found.changes[self._next : self._next + TRANSACTION_CHANGES]
            self._transactions += 1
            if self._transactions % ABORTED_EACH == 0:
                self._send(part)
                self._producer.abort_transaction(60)
                self._found.aborted_transactions += 1
            self._send(part)
            self._producer.commit_transaction(60)
            self._found.committed_transactions += 1
            self._next += len(part)

    def _send(self, changes: Sequence[Change]) -> None:
        self._producer.begin_transaction()
        for change in changes:
            number = str(change.number).encode()
            self._producer.produce(
                CHANGES, change.value(), change.key.encode(), headers={HEADER: number}
            )
        # A delivery that failed makes the commit fail.
        self._producer.flush(60)


class Driver:
    """A driver process, with its Java in its process group."""

    def __init__(self, store: str, bootstrap: str, folder: Path, checkpoint: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._log_path = folder / "driver.log"
        command = [sys.executable, "-m", "scripts.spark_demo.driver", store, bootstrap]
        with self._log_path.open("ab") as log:
            self.process = subprocess.Popen(
                [*command, str(folder), str(checkpoint)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                cwd=ROOT,
                start_new_session=True,
            )
        self._lines: queue.Queue[str] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def batch(self) -> tuple[int, int]:
        """The next reported batch: its number, and the sum of the offsets read so far."""
        try:
            line = self._lines.get(timeout=SILENT_SECONDS_MAX)
        except queue.Empty:
            line = ""
        if not line:
            self.kill()
            sys.exit(f"the driver is silent or has ended\n{log_tail(self._log_path)}")
        _, number, offset = line.split()
        return int(number), int(offset)

    def kill(self) -> None:
        """Kill Python and Java at once with SIGKILL."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def stop(self) -> int:
        """Let it end; return its exit code."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        return self.process.wait(SILENT_SECONDS_MAX)

    def end(self) -> None:
        """Leave no process behind."""
        if self.process.poll() is None:
            self.kill()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._lines.put(line)
        self._lines.put("")


class Pipeline:
    """Feeds the log, keeps a driver running, and kills it at the given shares."""

    def __init__(
        self, spark: SparkSession, store: str, bootstrap: str, folder: Path, found: Pipelined
    ) -> None:
        self._spark = spark
        self._store = store
        self._bootstrap = bootstrap
        self._folder = folder
        self._checkpoint = folder / "checkpoint"
        self._found = found
        self._driver: Driver | None = None
        self._reader = Consumer(
            {
                "bootstrap.servers": bootstrap,
                # The sink keeps its progress as an offset of this group.
                "group.id": TRANSACTIONAL_ID,
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "isolation.level": "read_committed",
                "log_level": 0,
            }
        )

    def run(self) -> None:
        """Run until a driver has read the whole log, then read the results."""
        begun = time.monotonic()
        _create_topics(self._bootstrap)
        feeder = Feeder(self._bootstrap, self._found)
        feeder.feed()
        kills = sorted(KILLS.items())
        driver = self._start()
        while True:
            number, offset = driver.batch()
            self._found.batches = number
            print(f"  Spark is done with batch {number}, at offsets {offset:,}", flush=True)
            feeder.feed()
            if kills and offset >= kills[0][0] * len(self._found.changes):
                self._kill(driver, number + 1, kills.pop(0)[1])
                driver = self._start()
            elif feeder.is_done and offset >= self._end_of_log():
                break
        if code := driver.stop():
            sys.exit(f"the driver ended with exit code {code}")
        self._look()
        check(self._reader, self._found)
        self._found.seconds = time.monotonic() - begun

    def end(self) -> None:
        """Leave no process behind."""
        if self._driver is not None:
            self._driver.end()
        self._reader.close()

    def _start(self) -> Driver:
        folder = self._folder / "driver"
        self._driver = Driver(self._store, self._bootstrap, folder, self._checkpoint)
        print(f"  Driver: process {self._driver.process.pid}", flush=True)
        return self._driver

    def _kill(self, driver: Driver, number: int, when: str) -> None:
        """Kill it in a later batch; return the state of the batch at its death."""
        deadline = time.monotonic() + SILENT_SECONDS_MAX
        while not (
            self._has("offsets", number)
            and (
                when == "begun" or self._last_committed() >= number or self._has("commits", number)
            )
        ):
            if time.monotonic() > deadline:
                sys.exit(f"batch {number} does not come")
            time.sleep(POLL_SECONDS)
        driver.kill()
        self._found.kills += 1
        is_sunk, is_known = self._last_committed() >= number, self._has("commits", number)
        self._found.repeated_batches += is_sunk and not is_known
        where = "in both topics" if is_sunk else "in neither topic"
        knows = "knows" if is_known else "does not know"
        print(
            f"  SIGKILL to process {driver.process.pid} in batch {number}, which is {where}; of"
            f" its end Spark's checkpoint {knows}",
            flush=True,
        )
        self._look()

    def _look(self) -> None:
        seen = look(self._spark, self._store)
        self._found.looks.append(seen)
        print(
            f"  An atomic look: {seen.changes:,} changes, {seen.alone} of them in one topic alone,"
            f" {seen.repeated} repeated",
            flush=True,
        )

    def _has(self, log: str, number: int) -> bool:
        """Whether one of the logs in Spark's checkpoint has a batch."""
        return (self._checkpoint / log / str(number)).exists()

    def _last_committed(self) -> int:
        """The last batch that the sink has committed."""
        [place] = self._reader.committed([TopicPartition(*PROGRESS)], timeout=60)
        return int(place.offset)

    def _end_of_log(self) -> int:
        places = [TopicPartition(CHANGES, partition) for partition in range(PARTITIONS)]
        return sum(self._reader.get_watermark_offsets(place, timeout=60)[1] for place in places)


def _create_topics(bootstrap: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    topics = [NewTopic(name, num_partitions=PARTITIONS) for name in (CHANGES, AUDIT, BOARD)]
    for created in admin.create_topics(topics).values():
        created.result(30)
