"""kill -9 at each step of a roll and of a table commit. All readers of the table find each
committed record once, and so do consumers, from segments and WAL alike."""

from __future__ import annotations

import asyncio
from pathlib import Path

import polars as pl
import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from deltalake import DeltaTable

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
from tidelog.client.admin.flush import FlushedPartition, flush_topic
from tidelog.client.pool import Client
from tidelog.client.transactions.settings import TransactionVersion
from tidelog.clock import SystemClock
from tidelog.network import SocketNetwork

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

ROLLING = {**SETTINGS, "roll.bytes": 1, "roll.min.bytes": 0, "roll.spread.ms": 0}


async def flush(bootstrap: str, topic: str = OUT) -> list[FlushedPartition]:
    host, port = bootstrap.split(":")
    async with Client(SocketNetwork(), SystemClock(), [(host, int(port))]) as client:
        return await flush_topic(client, topic, 60_000)


def rows(bucket: Path) -> dict[int, list[int]]:
    """Each partition's transactions in the only table."""
    (table,) = (path.parent for path in bucket.glob("topics/*/_delta_log"))
    found = pl.from_arrow(DeltaTable(str(table)).to_pyarrow_table())
    assert isinstance(found, pl.DataFrame)
    by_partition = found.sort("offset").partition_by("partition", as_dict=True)
    return {
        int(number): [int(value) for value in part["value"].to_list()]
        for (number,), part in by_partition.items()
    }


@pytest.mark.parametrize("hit", [1, 4])
@pytest.mark.parametrize(
    "point", ["segment ready", "segment stored", "table commit", "table committed"]
)
def test_committed_records_are_in_the_table_once(tmp_path: Path, point: str, hit: int) -> None:
    server = Server(tmp_path, f"{point}:{hit}", ROLLING)
    try:
        admin = AdminClient({"bootstrap.servers": server.broker.kafka})
        topics = [NewTopic(OUT, PARTITIONS), NewTopic(SOURCE, 1)]

        async def story() -> list[int]:
            async with server.kept_alive():
                for created in admin.create_topics(topics).values():
                    await asyncio.to_thread(created.result, 60)
                return await transact(server, TransactionVersion.V2)

        committed = asyncio.run(story())
        assert server.deaths == 1, "the crash point was not hit"
        with server._start(None) as survivor:
            await_decisions(survivor.kafka)
            for flushed in asyncio.run(flush(survivor.kafka)):
                assert flushed.refusal is None
                assert flushed.held_at is None
                assert flushed.table_next == flushed.high_watermark
            check(rows(tmp_path / "bucket"), committed)
            # Read from segments alone, and again through another broker that has no records in
            # memory.
            check(read(survivor.kafka, "read_committed"), committed)
            check(read(survivor.kafka, "read_uncommitted"), committed)
        with server._start(None) as successor:
            check(read(successor.kafka, "read_committed"), committed)
    finally:
        server.broker.kill()
