"""kill -9 between the steps of retention, log compaction, and the shortening of table logs, under
load. Readers find the latest record of each key, and every record that was not deleted, at its
offset."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec

from tests.integration.test_transaction_crashes import Server
from tidelog.localstack.broker_process import BrokerProcess

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

SETTINGS = {
    "roll.age.ms": 200,
    "roll.min.bytes": 0,
    "log.cleaner.backoff.ms": 20,
    "log.retention.check.interval.ms": 100,
    # Small segments, so that a round has several commits.
    "merge.segment.bytes": 4000,
    # The broker shortens a table's log before the test has to wait for it.
    "log.delete.grace.ms": 8000,
}
COMPACTED, AGED = "compacted", "aged"
TOPICS = [
    NewTopic(
        COMPACTED,
        1,
        config={
            "cleanup.policy": "compact",
            "min.cleanable.dirty.ratio": "0",
            "delete.retention.ms": "600",
        },
    ),
    NewTopic(AGED, 1, config={"retention.bytes": "20000", "retention.ms": "2000"}),
]
KEYS = 40
BATCH = 60
BATCHES_MIN, BATCHES_MAX = 25, 2000
READS_MAX = 200
"""The number of reads of the whole log before some of it is compacted away."""

Log = dict[int, tuple[bytes, bytes | None]]
"""The acknowledged records, by offset."""


class Load:
    """A producer that goes on through deaths, and its acknowledgements."""

    def __init__(self, bootstrap: str) -> None:
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "enable.idempotence": True,
                "delivery.timeout.ms": 120_000,
                "retry.backoff.ms": 50,
                "reconnect.backoff.max.ms": 200,
            }
        )
        self.told: dict[str, Log] = {COMPACTED: {}, AGED: {}}
        self._number = 0

    def send(self) -> None:
        """Send some records to each topic, and wait for their acknowledgements."""
        for _ in range(BATCH):
            self._number += 1
            number = self._number
            key = b"%d" % (number * 7919 % KEYS if number % 3 else number)
            value = None if number % 5 == 0 else b"%d " % number * 10
            for topic in TOPICS:
                self._producer.produce(topic.topic, value, key, on_delivery=self._note)
        assert self._producer.flush(120) == 0

    def _note(self, error: KafkaError | None, message: Message) -> None:
        assert error is None, error
        offset, key, topic = message.offset(), message.key(), message.topic()
        assert offset is not None
        assert topic is not None
        assert isinstance(key, bytes)
        value = message.value()
        assert value is None or isinstance(value, bytes)
        assert self.told[topic].setdefault(offset, (key, value)) == (key, value)


class Reader:
    """Reads a topic continuously. Checks that offsets ascend, and that each record was sent."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self.topic = topic
        self.found: Log = {}
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": "reader",
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "reconnect.backoff.max.ms": 200,
            }
        )
        self._consumer.assign([TopicPartition(topic, 0, 0)])
        self._next = 0

    def read(self, until: int) -> None:
        """Pass over the offsets up to this one, whose records may be deleted."""
        empty_polls = 0
        while self._next < until:
            message = self._consumer.poll(0.2)
            empty_polls = 0 if message is not None else empty_polls + 1
            assert empty_polls < 300, f"{self.topic}: {until} was not reached from {self._next}"
            if message is not None:
                self._take(message)

    def close(self) -> None:
        self._consumer.close()

    def _take(self, message: Message) -> None:
        error, offset = message.error(), message.offset()
        if error is not None:
            # librdkafka reports an error while the broker is away.
            if error.code() == KafkaError._PARTITION_EOF:
                assert offset is not None
                self._next = max(self._next, offset)
            return
        assert offset is not None
        assert offset >= self._next, f"{self.topic}: offset {offset} after {self._next - 1}"
        self._next = offset + 1
        key, value = message.key(), message.value()
        assert isinstance(key, bytes)
        assert value is None or isinstance(value, bytes)
        self.found[offset] = (key, value)


def log_start(bootstrap: str, topic: str) -> int:
    """The earliest offset of a topic's partition."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    place = TopicPartition(topic, 0)
    (found,) = admin.list_offsets({place: OffsetSpec.earliest()}).values()
    return int(found.result(60).offset)


def last_values(log: Log) -> dict[bytes, bytes]:
    """The last value of each key for a reader of the whole log."""
    found = {key: value for _, (key, value) in sorted(log.items())}
    return {key: value for key, value in found.items() if value is not None}


def check(bootstrap: str, told: dict[str, Log]) -> None:
    """Compare the readable records with the acknowledged ones."""
    for _ in range(READS_MAX):
        compacted = Reader(bootstrap, COMPACTED)
        compacted.read(max(told[COMPACTED]) + 1)
        compacted.close()
        assert compacted.found.items() <= told[COMPACTED].items()
        assert last_values(compacted.found) == last_values(told[COMPACTED])
        if len(compacted.found) < len(told[COMPACTED]):
            break
    else:
        raise AssertionError("nothing was compacted")

    start = log_start(bootstrap, AGED)
    assert start > 0, "nothing was deleted"
    last = max(told[AGED])
    aged = Reader(bootstrap, AGED)
    aged.read(last + 1)
    aged.close()
    # Records are missing at the beginning, and where the log's start overtook the reader.
    assert min(aged.found, default=last + 1) >= start
    assert aged.found.items() <= told[AGED].items()
    missing = told[AGED].keys() - aged.found.keys()
    assert max(missing, default=-1) < log_start(bootstrap, AGED)


def fsck(folder: Path) -> None:
    """Check with fsck that the bucket is consistent."""
    command = [
        sys.executable,
        "-m",
        "tidelog.cli",
        "fsck",
        "--store",
        f"file://{folder / 'bucket'}",
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


async def produce(server: Server) -> Load:
    """Send records until the broker has died among them, and some more, while a reader reads."""
    load = Load(server.listen)
    reader = Reader(server.listen, COMPACTED)
    left = BATCHES_MIN
    for _ in range(BATCHES_MAX):
        await asyncio.to_thread(load.send)
        await asyncio.sleep(0.05)
        await asyncio.to_thread(reader.read, max(load.told[COMPACTED]) + 1)
        left -= 1 if server.deaths or left > 10 else 0
        if left == 0:
            break
    reader.close()
    assert reader.found.items() <= load.told[COMPACTED].items()
    return load


@pytest.mark.parametrize(
    "crash",
    [
        "log start moved:1",
        "log start moved:3",
        "segments rewritten:1",
        "segments rewritten:7",
        "segments replaced:1",
        "segments replaced:8",
        "table commit:5",
        "table committed:6",
        "table checkpoint stored:1",
        "table checkpointed:1",
        "table entry needless:1",
        "table entry needless:30",
    ],
)
def test_a_death_while_logs_are_cleaned_loses_nothing_that_is_to_stay(
    tmp_path: Path, crash: str
) -> None:
    server = Server(tmp_path, crash, SETTINGS)

    async def story() -> Load:
        async with server.kept_alive():
            admin = AdminClient({"bootstrap.servers": server.listen})
            for created in admin.create_topics(TOPICS).values():
                await asyncio.to_thread(created.result, 60)
            load = await produce(server)
            await asyncio.to_thread(check, server.listen, load.told)
            return load

    try:
        load = asyncio.run(story())
        assert server.deaths == 1, "the crash point was not hit"
        survivor: BrokerProcess = server._start(None)
        with survivor:
            check(survivor.kafka, load.told)
            fsck(tmp_path)
        fsck(tmp_path)
    finally:
        server.broker.kill()
