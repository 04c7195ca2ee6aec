"""A long run under load: consumers cross from segments into the WAL and its tail while the topics
are written to, rolled, expired, compacted and collected, all at a time.

    TIDELOG_LONG_RUN_SECONDS=600 make integration PYTEST="-k long_run"
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourceType,
)
from deltalake import DeltaTable

from benchmarks.harness.targets import scrape
from tests.integration.log_judge import Judge, Ledger, LogStarts, Place, Policy, Walk
from tests.integration.log_load import (
    SECONDS_MAX,
    Crew,
    Reader,
    Sender,
    ask_ends,
    follow_log_starts,
    note_log_starts,
    write_in_transactions,
    write_plainly,
)
from tests.integration.test_roll_crashes import flush
from tests.unit.storage.table.test_table_readers import by_duckdb
from tidelog.bucket.views.bucket import Bucket
from tidelog.clock import SystemClock
from tidelog.entropy import SystemEntropy
from tidelog.localstack.broker_process import BrokerProcess, log_tail
from tidelog.storage.stores.location import open_reader
from tidelog.workers.offload import InlineOffload

SECONDS = float(os.environ.get("TIDELOG_LONG_RUN_SECONDS", "75"))
"""The seconds in which the producers write. The steps before and after take about half a minute."""
SECONDS_MIN = 40
"""Shorter runs do not suffice for each kind of event to happen in both halves."""

pytestmark = [pytest.mark.integration, pytest.mark.timeout(SECONDS + 8 * SECONDS_MAX)]

GRACE_MS = 8000
SETTINGS: dict[str, object] = {
    "offsets.topic.num.partitions": 2,
    "transaction.state.log.num.partitions": 2,
    "coordinator.snapshot.interval.records": 30,
    "wal.objects.max": 8,
    "wal.checkpoint.interval.bytes": 1_000_000,
    "roll.bytes": 300_000,
    "roll.min.bytes": 0,
    "roll.age.ms": 2000,
    "merge.segment.bytes": 400_000,
    "log.cleaner.backoff.ms": 100,
    "log.retention.check.interval.ms": 500,
    "log.collect.interval.ms": 300,
    "log.collect.tables.interval.ms": 1000,
    "log.delete.grace.ms": GRACE_MS,
    # Little memory, so that the WAL's objects and the segments are read again and again.
    "tail.cache.bytes": 300_000,
    "read.cache.bytes": 2_000_000,
}
TOMBSTONE_SECONDS = 3
RETENTION = {"retention.ms": "15000"}
COMPACTION = {
    "min.cleanable.dirty.ratio": "0.1",
    "delete.retention.ms": str(1000 * TOMBSTONE_SECONDS),
}
TOPICS = {
    "kept": {"cleanup.policy": "delete", "retention.ms": "-1"},
    "expired": {"cleanup.policy": "delete", "retention.bytes": "1000000", **RETENTION},
    "compacted": {"cleanup.policy": "compact", **COMPACTION},
    "both": {"cleanup.policy": "compact,delete", **COMPACTION, **RETENTION},
}
POLICIES = {
    name: Policy(
        is_deleted="retention.ms" in config and config["retention.ms"] != "-1",
        tombstone_seconds=TOMBSTONE_SECONDS if "compact" in config["cleanup.policy"] else None,
    )
    for name, config in TOPICS.items()
}
PLACES = [Place(name, partition) for name in TOPICS for partition in range(2)]
ISOLATIONS = ("read_committed", "read_uncommitted")
GROWING = (
    "tidelog_roll_segments_total",
    "tidelog_cleaner_log_starts_moved_total",
    "tidelog_cleaner_segments_expired_total",
    "tidelog_cleaner_compactions_total",
    "tidelog_cleaner_records_compacted_total",
    "tidelog_cleaner_merges_total",
    'tidelog_collected_objects_total{folder="wal"}',
    'tidelog_collected_objects_total{folder="checkpoint"}',
    'tidelog_collected_objects_total{folder="state"}',
    'tidelog_collected_objects_total{folder="topics"}',
    "tidelog_cold_chunks_total",
    "tidelog_tail_cache_hits_total",
    "tidelog_tail_cache_misses_total",
)
"""Counters that grow while all work goes on and every source serves readers."""
HARMLESS = ("tidelog_storage_faults_total", "tidelog_collection_failures_total")
"""Counters that must stay 0."""


class Run:
    """One run: the bucket, the records written to it, and the walks of its readers."""

    def __init__(self, folder: Path) -> None:
        self.bucket = folder / "bucket"
        self.store = f"file://{self.bucket}"
        self.log = folder / "broker.log"
        self.ledger = Ledger()
        self.starts = LogStarts()
        self.walks: list[Walk] = []
        """Walks of readers that have come to their ends."""
        self.fsck_runs = 0
        self.new_readers = 0

    def fsck(self) -> None:
        """Check with fsck that the bucket is consistent."""
        command = [sys.executable, "-m", "tidelog.cli", "fsck", "--store", self.store]
        command += ["--delete-grace-ms", str(GRACE_MS)]
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=2 * SECONDS_MAX, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        self.fsck_runs += 1

    def prove_again_and_again(self, crew: Crew) -> None:
        """Run fsck beside the broker, again and again."""
        while not crew.stopping.wait(3):
            self.fsck()

    def begin_again_and_again(self, bootstrap: str, crew: Crew) -> None:
        """New consumers read all records from the earliest to the end at their start."""
        admin = AdminClient({"bootstrap.servers": bootstrap})
        while not crew.stopping.is_set():
            isolation = ISOLATIONS[self.new_readers % 2]
            ends = ask_ends(admin, PLACES, isolation)
            reader = Reader(bootstrap, PLACES, self.ledger, isolation)
            reader.read_to_ends()
            for place, end in ends.items():
                assert reader.walks[place].next >= end, f"{place} ends before {end}"
            reader.close()
            self.walks += reader.walks.values()
            self.new_readers += 1

    def go_along(self, reader: Reader, crew: Crew) -> None:
        """Read the logs while they are written."""
        while not crew.stopping.is_set():
            reader.read()


def create_topics(bootstrap: str) -> AdminClient:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    topics = [NewTopic(name, num_partitions=2, config=config) for name, config in TOPICS.items()]
    for created in admin.create_topics(topics).values():
        created.result(SECONDS_MAX)
    return admin


def write_and_read(run: Run, broker: BrokerProcess) -> None:
    """The run itself. Afterwards all walks are in `run`, and all writers have ended."""
    admin = create_topics(broker.kafka)
    writers, readers, askers = Crew(), Crew(), Crew()
    followers = [Reader(broker.kafka, PLACES, run.ledger, each) for each in ISOLATIONS]
    sender = partial(Sender, broker.kafka, PLACES, run.ledger)
    with ExitStack() as stack:
        for follower in followers:
            stack.callback(follower.close)
        for crew in (askers, readers, writers):
            stack.callback(crew.stop)
        askers.start(partial(follow_log_starts, admin, PLACES, run.starts, askers), "log starts")
        for name in ("plain 1", "plain 2"):
            work = partial(write_plainly, sender(name), writers, 0.1)
            writers.start(work, name)
        for name in ("transactions 1", "transactions 2"):
            timeout = {"transaction.timeout.ms": 1000 * SECONDS_MAX}
            producer = sender(name, **{"transactional.id": name, **timeout})
            writers.start(partial(write_in_transactions, producer, writers, 0.1), name)
        for follower in followers:
            readers.start(partial(run.go_along, follower, readers), "a follower")
        begin_again = partial(run.begin_again_and_again, broker.kafka, readers)
        readers.start(begin_again, "new consumers")
        readers.start(partial(run.prove_again_and_again, readers), "fsck")
        watch(broker, [writers, readers, askers])
        writers.stop()
        readers.stop()
        ends = ask_ends(admin, PLACES, "read_uncommitted")
        for follower in followers:
            follower.read_to(ends)
            run.walks += follower.walks.values()
    note_log_starts(admin, PLACES, run.starts)


def have_all_in_tables(admin: AdminClient, bootstrap: str) -> None:
    """From now on no record expires any more."""
    resources = [
        ConfigResource(
            ResourceType.TOPIC,
            name,
            incremental_configs=[
                ConfigEntry(setting, "-1", incremental_operation=AlterConfigOpType.SET)
                for setting in ("retention.ms", "retention.bytes")
            ],
        )
        for name in TOPICS
    ]
    for altered in admin.incremental_alter_configs(resources).values():
        altered.result(SECONDS_MAX)
    for name in TOPICS:
        for flushed in asyncio.run(flush(bootstrap, name)):
            assert flushed.refusal is None
            assert flushed.table_next == flushed.high_watermark


def watch(broker: BrokerProcess, crews: list[Crew]) -> None:
    """Let the crews work for the time of the run. In each half, every counter must rise, for which
    a busy machine gets more time."""
    metrics = f"http://{broker.http}/metrics"
    before: dict[str, float] = {}
    for _ in range(2):
        until = time.monotonic() + max(SECONDS, SECONDS_MIN) / 2
        now, resting = before, list(GROWING)
        while time.monotonic() < until or resting:
            crews[0].stopping.wait(0.5)
            for crew in crews:
                crew.check()
            now = scrape(metrics)
            resting = [name for name in GROWING if now.get(name, 0) <= before.get(name, 0)]
            assert time.monotonic() < until + SECONDS_MAX, f"nothing more of {resting}"
        assert [name for name in HARMLESS if now[name]] == []
        before = now


Rows = dict[Place, dict[int, tuple[bytes, bytes | None]]]


def rows_of_bucket(run: Run) -> tuple[Rows, dict[Place, int]]:
    """The rows that `tidelog.bucket` reads, and the log starts."""

    async def read() -> tuple[Rows, dict[Place, int]]:
        clock, entropy = SystemClock(), SystemEntropy()
        store = open_reader(run.store, clock, entropy)
        found: Rows = {}
        log_starts: dict[Place, int] = {}
        try:
            bucket = await Bucket.open(store, clock, entropy, InlineOffload())
            view = await bucket.view(*TOPICS)
            for name in TOPICS:
                for part in view.of_topic(bucket.topic(name).topic_id):
                    place = Place(name, part.partition.partition)
                    log_starts[place] = part.log_start
                    assert part.table_next == part.high_watermark, "all was flushed"
                    found[place] = {}
                    async for rows in bucket.rows(part):
                        found[place].update(triples(rows))
        finally:
            await store.close()
        return found, log_starts

    return asyncio.run(read())


def triples(rows: pa.RecordBatch) -> Iterator[tuple[int, tuple[bytes, bytes | None]]]:
    columns = (rows.column(name).to_pylist() for name in ("offset", "key", "value"))
    for offset, key, value in zip(*columns, strict=True):
        yield offset, (key, value)


def rows_of_tables(run: Run, log_starts: dict[Place, int]) -> Rows:
    """The rows that DuckDB reads of the same topics, above the log starts."""
    found: Rows = {place: {} for place in PLACES}
    for log in run.bucket.glob("topics/*/_delta_log"):
        table = log.parent
        name = table_name(table)
        for row in by_duckdb(str(table)):
            place = Place(name, row["partition"])
            if row["offset"] >= log_starts[place]:
                assert row["offset"] not in found[place], f"{place} {row['offset']} is there twice"
                found[place][row["offset"]] = row["key"], row["value"]
    return found


def table_name(table: Path) -> str:
    """The name of the table's topic."""
    name = DeltaTable(str(table)).metadata().name
    assert name is not None
    return name


def walk_through(run: Run, rows: Rows, ends: dict[Place, int], now: float) -> list[Walk]:
    """The walk of a reader that got these rows."""
    walks = []
    for place, found in rows.items():
        walk = Walk(place, run.ledger, is_committed_only=True)
        for offset, (key, value) in found.items():
            walk.take(offset, key, value, now)
        walk.reach(ends[place], now)
        walks.append(walk)
    return walks


def read_with_consumer(bootstrap: str, run: Run, isolation: str) -> Rows:
    """The rows that a new consumer gets from a broker without records in memory."""
    reader = Reader(bootstrap, PLACES, run.ledger, isolation)
    found: Rows = {place: {} for place in PLACES}
    for place, walk in reader.walks.items():
        reader.walks[place] = Keeping(found[place], walk)
    reader.read_to_ends()
    reader.close()
    run.walks += reader.walks.values()
    return found


class Keeping(Walk):
    """A walk that keeps its records."""

    def __init__(self, rows: dict[int, tuple[bytes, bytes | None]], walk: Walk) -> None:
        super().__init__(walk.place, walk.ledger, walk.is_committed_only)
        self._rows = rows

    def take(self, offset: int, key: bytes, value: bytes | None, now: float) -> None:
        super().take(offset, key, value, now)
        self._rows[offset] = key, value


def check_newest(judge: Judge, run: Run, rows: Rows, log_starts: dict[Place, int]) -> None:
    """Compacted topics still have the newest value of each key."""
    for place in PLACES:
        if POLICIES[place.topic].tombstone_seconds is None:
            continue
        log = run.ledger.logs[place]
        wanted = {
            offset: (log[offset].key, log[offset].value)
            for offset in judge.newest(place).values()
            if offset >= log_starts[place] and log[offset].value is not None
        }
        assert wanted
        assert wanted.items() <= rows[place].items()


def test_readers_see_exactly_their_records_while_everything_goes_on(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.bucket.mkdir()
    with BrokerProcess.start(run.store, run.log, http="127.0.0.1:0", settings=SETTINGS) as broker:
        write_and_read(run, broker)
        admin = AdminClient({"bootstrap.servers": broker.kafka})
        have_all_in_tables(admin, broker.kafka)
        ends = ask_ends(admin, PLACES, "read_uncommitted")
        assert broker.stop() == 0, log_tail(run.log)
    run.fsck()
    rows, log_starts = rows_of_bucket(run)
    assert rows_of_tables(run, log_starts) == rows
    resting = {**SETTINGS, "log.cleaner.enable": "false"}
    with BrokerProcess.start(run.store, run.log, settings=resting) as successor:
        admin = AdminClient({"bootstrap.servers": successor.kafka})
        for isolation in ISOLATIONS:
            assert read_with_consumer(successor.kafka, run, isolation) == rows
        run.walks += walk_through(run, rows, ends, time.monotonic())
        note_log_starts(admin, PLACES, run.starts)
        judge = Judge(run.ledger, run.starts, POLICIES)
        for walk in run.walks:
            judge.judge(walk)
        check_newest(judge, run, rows, log_starts)
        run.fsck()
    assert run.new_readers >= 4
    assert run.fsck_runs >= 4
    print(
        f"{run.ledger.records} records, {sum(walk.records for walk in run.walks)} readings of them"
        f" in {len(run.walks)} walks, {run.fsck_runs} times fsck"
    )
