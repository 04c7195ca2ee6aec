"""A bucket, the broker on it, the ETL's drivers, and the rules that hold after any kill."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from confluent_kafka.admin import AdminClient, NewTopic

from tests.chaos.driver_process import DriverProcess, until
from tests.chaos.etl import SOURCE, TOPICS, derived
from tests.chaos.feed import Feed
from tests.chaos.moments import Note, Orders
from tests.spark.history import PARTITIONS, consume, flush, transact
from tests.unit.spark_source.spark_world import rows_of
from tidelog.clock import SystemClock
from tidelog.entropy import SystemEntropy
from tidelog.localstack.broker_process import BrokerProcess, log_tail
from tidelog.localstack.ports import free_ports
from tidelog.records.partitioner import partition_of
from tidelog.spark_source.source import TidelogSource
from tidelog.storage.stores.location import open_store
from tidelog.wal.format.staged_format import StagedIndex
from tidelog.wal.write.staging import read_staged_index

SECONDS_MAX = 600.0
"""The limit of every wait, since a machine may be busy."""
GAVE_UP_MAX = 10
SETTINGS: Mapping[str, object] = {
    "offsets.topic.num.partitions": 2,
    "transaction.state.log.num.partitions": 2,
}


class Row(NamedTuple):
    """A record of one of the two topics."""

    topic: str
    partition: int
    offset: int
    key: bytes
    value: bytes


class World:
    """One ETL with all its drivers and brokers, one after the other."""

    def __init__(self, folder: Path, settings: Mapping[str, object] = SETTINGS) -> None:
        self.folder = folder
        self.store = f"file://{folder / 'bucket'}"
        self._settings = settings
        (folder / "bucket").mkdir()
        self._listen = f"127.0.0.1:{free_ports(1)[0]}"
        self.broker = self._started()
        self.feed = Feed(self._listen)
        self.orders = Orders(folder / "moments")
        self.drivers: list[DriverProcess] = []
        """All drivers that were ever started. The last one is the present one."""
        self.gave_up = 0
        """Drivers that ended by themselves and were started again."""
        self._audited = (-1, frozenset[bytes]())
        topics = [NewTopic(topic, num_partitions=PARTITIONS) for topic in (SOURCE, *TOPICS)]
        admin = AdminClient({"bootstrap.servers": self._listen})
        for created in admin.create_topics(topics).values():
            created.result(60)

    # --- the broker ---

    def _started(self, crash: str | None = None, **settings: object) -> BrokerProcess:
        return BrokerProcess.start(
            self.store,
            self.folder / "broker.log",
            listen=self._listen,
            settings={**self._settings, **settings},
            crash_points=crash,
        )

    def kill_broker(self) -> None:
        """Kill the broker with SIGKILL."""
        self.broker.kill()

    def start_broker(self, crash: str | None = None, **settings: object) -> None:
        """Start a broker on the same bucket and port. `crash`: the crash point at which it dies."""
        named = {name.replace("_", "."): value for name, value in settings.items()}
        self.broker = self._started(crash, **named)

    def await_broker_death(self) -> None:
        """Wait until the broker has died at its crash point."""
        self.until(lambda: self.broker.process.poll() is not None, "the crash point is not hit")
        code = self.broker.wait_for_death(1)
        assert code == -signal.SIGKILL, f"the broker ended by itself: {code}"

    # --- drivers ---

    @property
    def driver(self) -> DriverProcess:
        """The present driver."""
        return self.drivers[-1]

    def start_driver(self, *output: str) -> DriverProcess:
        """Start a driver from the checkpoint. Earlier drivers are left as they are."""
        moments = self.orders.folder
        arguments = (self.store, self._listen, str(self.folder), *output)
        self.drivers.append(DriverProcess.start(self.folder / "etl.log", moments, *arguments))
        return self.driver

    def until(self, condition: Callable[[], bool], what: str) -> None:
        """Wait until the ETL fulfils a condition. A driver that ends by itself is started again."""

        def holds() -> bool:
            if condition():
                return True
            if self.driver.is_dead():
                self.gave_up += 1
                assert self.gave_up <= GAVE_UP_MAX, self._said("drivers end by themselves")
                self.start_driver()
            return False

        until(holds, lambda: self._said(what), SECONDS_MAX)

    def await_end(self, driver: DriverProcess) -> int:
        """Wait for the end of a driver that cannot go on. Returns its exit code."""
        until(driver.is_dead, lambda: self._said("the driver does not end"), SECONDS_MAX)
        return driver.process.wait()

    def held(self, moment: str) -> Note:
        """The process that has stopped at this moment, as the test ordered."""
        found: list[Note] = []

        def is_held() -> bool:
            if note := self.orders.held(moment):
                found.append(note)
            return bool(found)

        self.until(is_held, f"no process reaches: {moment}")
        return found[0]

    def await_moment(self, moment: str, batch: int | None = None, count: int = 1) -> None:
        """Wait until the moment was noted this often."""
        self.until(
            lambda: self.orders.count(moment, batch) >= count, f"not {count} times: {moment}"
        )

    def is_in_commit_log(self, batch: int) -> bool:
        """Whether Spark has noted that a batch is done."""
        return (self.folder / "checkpoint" / "commits" / str(batch)).exists()

    def _said(self, what: str) -> str:
        notes = "\n".join(map(str, self.orders.notes()[-12:]))
        tails = (log_tail(self.folder / name) for name in ("broker.log", "etl.log"))
        return "\n".join((what, notes, *tails))

    # --- invariants ---

    def expected(self) -> frozenset[bytes]:
        """The records that each of the two topics must have in the end."""
        return frozenset(derived(b"%d" % number) for number in range(self.feed.sent))

    def audit(self) -> frozenset[bytes]:
        """The records of both topics, checked in one atomic snapshot of the bucket: both topics
        have the same records, each once."""
        source = TidelogSource(
            {"store": self.store, "subscribe": ",".join(TOPICS), "snapshot": "atomic"}
        )
        rows = rows_of(source, ["topic", "value"])
        one, other = (Counter(r["value"] for r in rows if r["topic"] == each) for each in TOPICS)
        alone = (one - other) + (other - one)
        assert not alone, f"in one topic alone: {sorted(alone)[:10]} and so on, {len(alone)}"
        twice = [value for value, count in one.items() if count > 1]
        assert not twice, f"more than once: {sorted(twice)[:10]} and so on, {len(twice)}"
        assert frozenset(one) <= self.expected(), "a value that was never sent"
        return frozenset(one)

    def await_all_derived(self) -> None:
        """Wait until both topics have all outputs. Every state on the way is audited too."""

        def is_all_there() -> bool:
            noted = len(self.orders.notes())
            if self._audited[0] != noted:
                self._audited = (noted, self.audit())
            return self._audited[1] == self.expected()

        self.until(is_all_there, "not all inputs are derived")

    def await_idle(self) -> None:
        """Wait until all is derived, and Spark has logged each batch that it began."""
        self.await_all_derived()
        begun = self.folder / "checkpoint" / "offsets"

        def is_noted() -> bool:
            batches = [int(each.name) for each in begun.iterdir() if each.name.isdigit()]
            return self.is_in_commit_log(max(batches))

        self.until(is_noted, "Spark does not note the last batch")

    def check_as_consumer(self) -> list[Row]:
        """A read_committed consumer gets every output once, in both topics. Returns its rows."""
        rows = []
        for topic in TOPICS:
            found = consume(self._listen, topic)
            rows += [Row(topic, *fields[:4]) for fields in found]
            assert sorted(each[3] for each in found) == sorted(self.expected()), topic
        assert all(row.partition == partition_of(row.key, PARTITIONS) for row in rows)
        return sorted(rows)

    def derive_and_read(self) -> list[Row]:
        """A last driver derives the remaining inputs, and reads both topics as a batch."""
        output = self.folder / "read.jsonl"
        self.start_driver(str(output))
        code = self.await_end(self.driver)
        assert code == 0, self._said(f"the last driver ends with {code}")
        found = [json.loads(line) for line in output.read_text().splitlines()]
        return sorted(
            Row(topic, partition, offset, key.encode(), value.encode())
            for topic, partition, offset, key, value in found
        )

    def staged(self) -> list[StagedIndex]:
        """The staged objects that are in the bucket, adopted or not."""

        async def look() -> list[StagedIndex]:
            store = open_store(self.store, SystemClock(), SystemEntropy())
            found = [await read_staged_index(store, m.key) async for m in store.list("staged/")]
            await store.close()
            return found

        return asyncio.run(look())

    def count_staged(self) -> int:
        """The number of staged objects."""
        return sum(path.is_file() for path in (self.folder / "bucket" / "staged").rglob("*"))

    def check_consistency(self) -> None:
        """tidelog fsck finds no fault."""
        command = [sys.executable, "-m", "tidelog.cli", "fsck", "--store", self.store]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
        assert done.returncode == 0, done.stdout + done.stderr

    def abort_some(self) -> None:
        """Records of the source that no reader may ever see."""
        transact(self._listen, "aborts", commit=False, topic=SOURCE)

    def roll(self) -> None:
        """Bring both topics into their tables."""
        for topic in TOPICS:
            flush(self.broker, topic)

    def end(self) -> None:
        """Kill the broker and all drivers."""
        self.feed.give_up()
        for driver in self.drivers:
            driver.kill()
        self.broker.kill()


@contextmanager
def world_in(folder: Path, settings: Mapping[str, object] = SETTINGS) -> Iterator[World]:
    """A world. It leaves no process behind."""
    world = World(folder, settings)
    try:
        yield world
    finally:
        world.end()
