"""All clients choose the same partition for a key."""

from __future__ import annotations

import base64
import json
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.compat.kit.clients import java_client
from tests.compat.kit.records import PARTITIONERS, Record
from tidelog.localstack.broker_process import BrokerProcess
from tidelog.sdk.admin import Admin
from tidelog.sdk.consumer import Consumer
from tidelog.sdk.producer import Producer

pytestmark = [pytest.mark.compat, pytest.mark.timeout(900)]

ROOT = Path(__file__).parents[2]
KEYS = 10_000
PARTITIONS = 7


def keys() -> list[bytes]:
    """Different keys of all lengths from 0, of text and of any bytes."""
    chance = random.Random(24)
    found = dict.fromkeys([b"", "Zürich".encode(), b"N14228", bytes(2000), b"\x80", b"\xff" * 5])
    while len(found) < KEYS:
        found[chance.randbytes(chance.randrange(1, 40))] = None
        found[b"plane-%d" % len(found)] = None
    return list(found)[:KEYS]


def by_the_sdk(bootstrap: str, topic: str) -> None:
    with Producer(bootstrap) as producer:
        for key in keys():
            producer.send(topic, "value", key)


def by_the_command(bootstrap: str, topic: str) -> None:
    encoded = [base64.b64encode(key).decode() for key in keys()]
    lines = [json.dumps({"key": {"base64": each}, "value": "value"}) for each in encoded]
    command = [sys.executable, "-m", "tidelog.cli", "produce", topic, "--format", "json"]
    done = subprocess.run(
        [*command, "--bootstrap", bootstrap],
        input="\n".join(lines),
        check=True,
        capture_output=True,
        text=True,
    )
    assert done.stdout == f"{KEYS} records to {topic}\n"


def by_java(bootstrap: str, topic: str, lib: Path) -> None:
    records = [Record(PARTITIONERS, key, b"value") for key in keys()]
    java_client(lib).produce(bootstrap, topic, "none", records)


def by_spark(broker: BrokerProcess, topic: str, folder: Path) -> None:
    messages = folder / "messages.parquet"
    columns = {"key": pa.array(keys(), pa.binary()), "value": pa.array([b"value"] * KEYS)}
    pq.write_table(pa.table(columns), messages)
    store = f"file://{broker.log_path.parent / 'bucket'}"
    writer = [sys.executable, "-m", "tests.compat.kit.spark_writer"]
    given = [store, broker.kafka, topic, str(messages), str(folder)]
    subprocess.run([*writer, *given], cwd=ROOT, check=True)


def partitions(bootstrap: str, topic: str) -> dict[bytes, int]:
    """The partition of each key. Each key has one record."""
    with Consumer(bootstrap, topic, auto_offset_reset="earliest") as consumer:
        found = [(each.key, each.partition) for each in consumer.to_end()]
    assert len(found) == len(dict(found))
    return dict(found)


def test_ten_thousand_keys_go_to_the_same_partitions(
    broker: BrokerProcess, kafka_lib: Path, tmp_path: Path
) -> None:
    ways: dict[str, Callable[[str], None]] = {
        "keys-java": lambda topic: by_java(broker.kafka, topic, kafka_lib),
        "keys-sdk": lambda topic: by_the_sdk(broker.kafka, topic),
        "keys-command": lambda topic: by_the_command(broker.kafka, topic),
        "keys-spark": lambda topic: by_spark(broker, topic, tmp_path),
    }
    admin = Admin(broker.kafka)
    for topic, send in ways.items():
        admin.create_topic(topic, PARTITIONS)
        send(topic)
    expected = partitions(broker.kafka, "keys-java")
    assert expected.keys() == set(keys())
    assert set(expected.values()) == set(range(PARTITIONS))
    for topic in ways:
        found = partitions(broker.kafka, topic)
        assert {key: place for key, place in found.items() if expected[key] != place} == {}, topic
        assert found.keys() == expected.keys()
