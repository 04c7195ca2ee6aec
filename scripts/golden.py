"""Writes the golden bucket of the present format: what every later version must be able to open.

    python -m scripts.golden tests/golden/format-1

Run once a format, never again for the same one: the point is that old buckets stay as they were.
Several brokers run one after the other on the bucket, some stopped politely and some cut off, so
that it holds checkpoints, seals, openings, tenures and log starts of all kinds.
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

from tests.unit.broker.one_broker import OneBroker, World, batch
from tidelog.clock import SystemClock
from tidelog.entropy import SeededEntropy
from tidelog.identifiers import Offset
from tidelog.records.compression import Compression
from tidelog.storage.filesystem import FilesystemStore

TOPICS = {"plain": 2, "codecs": 1, "cut": 1, "appendtime": 1, "idle": 3}


async def contents(one: OneBroker) -> dict[str, Any]:
    """All that a consumer can see, by topic and partition."""
    found: dict[str, Any] = {}
    for topic, partitions in TOPICS.items():
        for number in range(partitions):
            log = one.broker.partitions.named(topic, number).log
            found[f"{topic}-{number}"] = {
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
                    for record in await one.read_all(number, topic)
                ],
            }
    return found


async def write(bucket: Path) -> dict[str, Any]:
    """Make the bucket; what is in it."""
    world = World(FilesystemStore(bucket, SystemClock(), SeededEntropy("golden")))
    identity = {"producer_id": 7, "producer_epoch": 3}
    sequences = [0, 0]
    for life in range(4):
        async with world.broker(politely=life % 2 == 0) as one:
            if life == 0:
                await one.create_topic("plain", 2, retention_ms="1000000")
                await one.create_topic("codecs")
                await one.create_topic("cut")
                await one.create_topic("appendtime", message_timestamp_type="LogAppendTime")
                await one.create_topic("idle", 3)
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
                await one.broker.appender.delete_records(
                    one.broker.partitions.named("cut", 0), Offset(life * 3)
                )
            if life == 3:
                return await contents(one)
    raise AssertionError("unreachable")


def main() -> int:
    """Write the bucket and its contents beside it."""
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
