"""Writes the golden bucket of the present format, which every later version must be able to open.

    python -m scripts.golden tests/golden/format-2

Run it once for each format, never again for the same one: old buckets must stay as they are.
Several brokers run one after the other on the bucket; some are stopped politely, some cut off. So
it has all kinds of checkpoints, seals, openings, tenures and log starts, tables, merged and staged
objects, open, committed and aborted transactions, and a deleted topic.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import json
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any
from uuid import UUID

from tests.damage.rich_bucket import sink_commit
from tests.unit.broker.one_broker import OneBroker, World, batch
from tests.unit.broker.rolled import flush
from tests.unit.broker.sink_world import Sink
from tests.unit.broker.transactional_client import (
    GROUP,
    TransactionalClient,
    committed_offset,
    find,
    loaded,
)
from tidelog.clock import SystemClock
from tidelog.entropy import SeededEntropy
from tidelog.identifiers import Offset
from tidelog.records.compression import Compression
from tidelog.storage.stores.filesystem import FilesystemStore

SETTINGS = {
    "offsets_topic_num_partitions": 1,
    "transaction_state_log_num_partitions": 1,
    "group_initial_rebalance_delay_ms": 0,
    "coordinator_snapshot_interval_records": 5,
    "wal_objects_max": 2,
}


async def contents(one: OneBroker) -> dict[str, Any]:
    """All contents that a consumer can see: records by partition, and the group's commits."""
    found: dict[str, Any] = {}
    topics = one.broker.membership.metadata.state.topics.values()
    if any(topic.internal for topic in topics):
        await loaded(one)
        found["group"] = await committed_offset(one)
    for topic in sorted(topics, key=lambda topic: topic.name):
        for number in range(0 if topic.internal else topic.partition_count):
            log = one.broker.writes.partitions.named(topic.name, number).log
            found[f"{topic.name}-{number}"] = {
                "log_start": log.log_start,
                "high_watermark": log.high_watermark,
                "records": [
                    [
                        record.offset,
                        record.timestamp,
                        None if record.key is None else base64.b64encode(record.key).decode(),
                        None if record.value is None else base64.b64encode(record.value).decode(),
                        [[n, None if v is None else v.decode()] for n, v in record.headers],
                    ]
                    for record in await one.read_all(number, topic.name)
                ],
            }
    return found


async def table_life(one: OneBroker, sink: Sink, sunk: UUID, life: int) -> None:
    """Write segments, merged objects, staged batches, transactions, offsets, states."""
    await find(one, GROUP, 0)
    good, bad = (TransactionalClient(one, name) for name in ("good", "bad"))
    for client in (good, bad):
        assert await client.init() == 0
    for number in range(3):
        value = b"%d.%d" % (life, number)
        await one.produce(batch(value, b"plain"))
        for client, keeps in ((good, True), (bad, False)):
            assert await client.send(value + b" transactional", 1) == 0
            if keeps:
                assert await client.commit_offset(life * 3 + number) == 0
            assert await client.end(commit=keeps) == 0
        await flush(one)
    await one.broker.writes.checkpointer.checkpoint()
    await one.broker.maintenance.merger.maintain()
    staged = await sink.stage(sunk, life, {0: [b"sunk %d" % life]})
    await sink_commit(sink, one, life, staged)
    assert await good.send(b"open %d" % life, 1) == 0
    await one.broker.coordination.coordinators.snapshot()
    await one.broker.topic_tables.tables.maintain_due()


async def write(bucket: Path) -> dict[str, Any]:
    """Make the bucket; return its contents."""
    store = FilesystemStore(bucket, SystemClock(), SeededEntropy("golden"))
    world = World(store, **SETTINGS)
    identity = {"producer_id": 7, "producer_epoch": 3}
    sequences = [0, 0]
    sunk = removed = None
    for life in range(4):
        async with world.broker(politely=life % 2 == 0) as one:
            if life == 0:
                await one.create_topic("plain", 2, retention_ms="1000000")
                await one.create_topic("codecs")
                await one.create_topic("cut")
                await one.create_topic("appendtime", message_timestamp_type="LogAppendTime")
                await one.create_topic("idle", 3)
                await one.create_topic("flights", 2, retention_ms="-1")
                sunk = await one.create_topic("sunk", retention_ms="-1")
                removed = await one.create_topic("removed")
                await one.produce(batch(b"removed"), topic="removed")
            for number in range(3):
                partition = number % 2 if life else 0
                sequence = sequences[partition]
                data = batch(b"a%d" % sequence, None, base_sequence=sequence, **identity)
                await one.produce(data, topic="plain", partition=partition)
                sequences[partition] += 2
                await one.produce(batch(b"c%d-%d" % (life, number), b""), topic="cut")
            for codec in Compression:
                await one.produce(batch(b"x" * 300, b"y", compression=codec), topic="codecs")
            await one.produce(batch(b"now"), topic="appendtime")
            if life in (1, 2):
                await one.broker.writes.appender.delete_records(
                    one.broker.writes.partitions.named("cut", 0), Offset(life * 3)
                )
            assert sunk is not None
            assert removed is not None
            await table_life(one, Sink(world, seed=life), sunk, life)
            if life == 1:
                await one.delete_topic(removed)
            if life == 3:
                return await contents(one)
    raise AssertionError("unreachable")


def main() -> int:
    """Write the bucket, and its contents beside it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    if folder.exists():
        print(f"{folder} exists: golden buckets are written once", file=sys.stderr)
        return 1
    with tempfile.TemporaryDirectory() as name:
        bucket = Path(name)
        expected = asyncio.run(write(bucket))
        folder.mkdir(parents=True)
        with zipfile.ZipFile(folder / "bucket.zip", "w", zipfile.ZIP_DEFLATED) as archive:
            for path in sorted(bucket.rglob("*")):
                key = path.relative_to(bucket)
                if path.is_file() and not key.parts[0].startswith("."):
                    archive.write(path, key)
    (folder / "contents.json").write_text(json.dumps(expected) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
