"""kill -9 at each step of merges, checkpoints and collections. All records are there once, and the
bucket is consistent."""

from __future__ import annotations

import asyncio
import signal
import threading
import time
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from deltalake import DeltaTable

from tests.integration.test_cleaner_crashes import fsck
from tests.integration.test_transaction_crashes import (
    OUT,
    PARTITIONS,
    SETTINGS,
    SOURCE,
    Server,
    await_decisions,
    check,
    read,
    transact,
)
from tidelog.client.transactions.settings import TransactionVersion

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

GRACE_SECONDS = 8
COLLECTING = {
    **SETTINGS,
    "coordinator.snapshot.interval.records": 20,
    "log.collect.interval.ms": 100,
    "log.collect.tables.interval.ms": 500,
    "log.delete.grace.ms": GRACE_SECONDS * 1000,
    "wal.objects.max": 4,
}
"""Settings with which every few transactions leave objects to merge, and after the grace to
delete."""
ROLLING = {
    **COLLECTING,
    "roll.bytes": 1,
    "roll.min.bytes": 0,
    # Small segments are merged into large ones, so that tables also leave objects to collect.
    "log.cleaner.backoff.ms": 100,
    "merge.segment.bytes": 40_000,
}
ROLLED_BY_AGE = {"roll.age.ms": 10_000, "roll.min.bytes": 0}
STEPS = [
    "merged stored:2",
    "merged named:2",
    "checkpoint written:1",
    "checkpoint written:6",
    "collected object:1",
    "collected object:40",
]
CASES = [
    *((COLLECTING, step) for step in STEPS),
    *((ROLLING, step) for step in [*STEPS, "collected segment:1", "collected segment:5"]),
]
DELETED_SECONDS_MAX = 60.0


def names(case: object) -> str:
    if isinstance(case, str):
        return case
    return "rolling" if case is ROLLING else "merging"


async def write(server: Server) -> list[int]:
    """Run transactions until the broker has died among them or behind them. Returns those that were
    committed."""
    first = server.broker.process
    admin = AdminClient({"bootstrap.servers": server.listen})
    # Segments without times are never merged.
    dated = {"message.timestamp.type": "LogAppendTime"}
    topics = [NewTopic(OUT, PARTITIONS, config=dated), NewTopic(SOURCE, 1)]
    async with server.kept_alive():
        for created in admin.create_topics(topics).values():
            await asyncio.to_thread(created.result, 60)
        committed = await transact(server, TransactionVersion.V2)
        await asyncio.to_thread(first.wait, 60)
    assert first.returncode == -signal.SIGKILL, "the crash point was not hit"
    return committed


@pytest.mark.parametrize(("settings", "crash"), CASES, ids=names)
def test_all_is_there_once_and_the_bucket_is_sound(
    tmp_path: Path, settings: dict[str, object], crash: str
) -> None:
    server = Server(tmp_path, crash, settings)
    try:
        committed = asyncio.run(write(server))
        with server._start(None) as survivor:
            await_decisions(survivor.kafka)
            check(read(survivor.kafka, "read_committed"), committed)
            fsck(tmp_path)
        # All processes with records in memory have ended.
        with server._start(None) as another:
            check(read(another.kafka, "read_committed"), committed)
        fsck(tmp_path)
    finally:
        server.broker.kill()


def loose_segments(bucket: Path) -> set[Path]:
    """Segments that no table lists."""
    stored = set(bucket.glob("topics/*/partition=*/*.parquet"))
    tables = {path.parent for path in bucket.glob("topics/*/_delta_log")}
    listed = {
        Path(uri.removeprefix("file://"))
        for table in tables
        for uri in DeltaTable(str(table)).file_uris()
    }
    assert listed <= stored
    return stored - listed


def test_a_segment_whose_commit_never_came_is_fenced_off_and_deleted(tmp_path: Path) -> None:
    """There are three deaths. The first leaves a segment stored but not committed. No broker rolls
    any more, so the collector makes an empty commit that keeps the segment out, and dies. The next
    broker dies before it deletes the segment."""
    bucket = tmp_path / "bucket"
    server = Server(tmp_path, "segment stored:1", {**COLLECTING, **ROLLED_BY_AGE})
    server.settings = COLLECTING
    written = list(range(20))
    try:
        admin = AdminClient({"bootstrap.servers": server.listen})
        admin.create_topics([NewTopic(OUT, PARTITIONS)])[OUT].result(60)
        producer = Producer({"bootstrap.servers": server.listen, "enable.idempotence": True})
        for number in written:
            for partition in range(PARTITIONS):
                producer.produce(OUT, b"%d" % number, partition=partition)
        assert producer.flush(60) == 0
        assert server.broker.wait_for_death(60) == -signal.SIGKILL
        [loose] = loose_segments(bucket)
        with server._start("table fenced:1") as second:
            assert second.wait_for_death(DELETED_SECONDS_MAX) == -signal.SIGKILL
        assert loose_segments(bucket) == {loose}
        with server._start("collected segment:1") as third:
            assert third.wait_for_death(DELETED_SECONDS_MAX) == -signal.SIGKILL
        assert loose.exists()
        with server._start(None) as survivor:
            deadline = time.monotonic() + DELETED_SECONDS_MAX
            while loose.exists():
                assert time.monotonic() < deadline, "the segment is not deleted"
                threading.Event().wait(0.05)
            check(read(survivor.kafka, "read_committed"), written)
            fsck(tmp_path)
        assert not loose_segments(bucket)
    finally:
        server.broker.kill()
