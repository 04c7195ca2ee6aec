"""kill -9 at each step of merges and collections: all is there once, and the bucket is sound."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

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
from tidelog.client.transaction_settings import TransactionVersion

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

COLLECTING = {
    **SETTINGS,
    "coordinator.snapshot.interval.records": 20,
    "log.collect.interval.ms": 100,
    "log.collect.tables.interval.ms": 500,
    "log.delete.grace.ms": 62_000,
    "wal.objects.max": 4,
}
"""Every few transactions there is something to merge, and after the grace something to delete. A
shorter grace is refused."""
ROLLING = {**COLLECTING, "roll.bytes": 1, "roll.min.bytes": 0}


@pytest.mark.parametrize("settings", [COLLECTING, ROLLING], ids=["merging", "rolling"])
@pytest.mark.parametrize(
    "crash", ["merged stored:2", "merged named:2", "collected object:1", "collected object:40"]
)
def test_all_is_there_once_and_the_bucket_is_sound(
    tmp_path: Path, crash: str, settings: dict[str, object]
) -> None:
    server = Server(tmp_path, crash, settings)
    first = server.broker.process
    try:
        admin = AdminClient({"bootstrap.servers": server.broker.kafka})
        topics = [NewTopic(OUT, PARTITIONS), NewTopic(SOURCE, 1)]

        async def story() -> list[int]:
            async with server.kept_alive():
                for created in admin.create_topics(topics).values():
                    await asyncio.to_thread(created.result, 60)
                committed = await transact(server, TransactionVersion.V2)
                await asyncio.to_thread(first.wait, 150)
                return committed

        committed = asyncio.run(story())
        assert first.returncode == -signal.SIGKILL, "the crash point was not hit"
        with server._start(None) as survivor:
            await_decisions(survivor.kafka)
            check(read(survivor.kafka, "read_committed"), committed)
        # Nobody is left who has anything in memory.
        with server._start(None) as another:
            check(read(another.kafka, "read_committed"), committed)
        checked = subprocess.run(
            [
                sys.executable,
                "-m",
                "tidelog.cli",
                "fsck",
                "--store",
                f"file://{tmp_path / 'bucket'}",
            ],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert checked.returncode == 0, checked.stdout + checked.stderr
    finally:
        server.broker.kill()
