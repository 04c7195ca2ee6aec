"""kill -9 under load, again and again: acknowledged records stay, once, in order, at their
offsets."""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from urllib.request import urlopen

import pytest
from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tidelog.localstack.broker_process import BrokerProcess
from tidelog.localstack.ports import free_ports
from tidelog.localstack.s3_servers import start_moto

TOPIC = "kills"
PARTITIONS = 4
READ_SECONDS_MAX = 120.0


@dataclass(slots=True)
class Load:
    """A producer that never stops, in a separate thread, and its acknowledgements."""

    bootstrap: str
    acknowledged: dict[int, tuple[int, int]] = field(default_factory=dict)
    failed: list[str] = field(default_factory=list)
    sent: int = 0
    _stop: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None
    _producer: Producer | None = None

    @property
    def unacknowledged(self) -> int:
        """The number of records that are not acknowledged yet."""
        return 0 if self._producer is None else len(self._producer)

    def start(self) -> None:
        self._producer = Producer(
            {
                "bootstrap.servers": self.bootstrap,
                "enable.idempotence": True,
                "linger.ms": 2,
                "batch.size": 20_000,
                "message.timeout.ms": 300_000,
                "queue.buffering.max.messages": 5_000,
                "reconnect.backoff.max.ms": 200,
                "log_level": 0,
            }
        )
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def stop(self) -> None:
        """Stop sending, and wait until every sent record is acknowledged or failed."""
        self._stop.set()
        assert self._thread is not None
        self._thread.join()

    def _run(self) -> None:
        producer = self._producer
        assert producer is not None
        while not self._stop.is_set():
            try:
                value = b"%d:" % self.sent + b"x" * (self.sent % 2000)
                partition = self.sent % PARTITIONS
                producer.produce(
                    TOPIC, value, partition=partition, on_delivery=self._remember(self.sent)
                )
                self.sent += 1
            except BufferError:
                producer.poll(0.01)
            producer.poll(0)
        producer.flush(120)

    def _remember(self, number: int) -> Callable[[KafkaError | None, Message], None]:
        def callback(error: KafkaError | None, message: Message) -> None:
            if error is not None:
                self.failed.append(str(error))
            else:
                self.acknowledged[number] = (message.partition(), message.offset())

        return callback


def read_all(bootstrap: str) -> dict[int, list[tuple[int, int]]]:
    """Each partition's (offset, record number), by an independent reader."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "reader",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "log_level": 0,
        }
    )
    consumer.assign([TopicPartition(TOPIC, p, 0) for p in range(PARTITIONS)])
    found: dict[int, list[tuple[int, int]]] = {p: [] for p in range(PARTITIONS)}
    at_end: set[int] = set()
    deadline = time.monotonic() + READ_SECONDS_MAX
    while len(at_end) < PARTITIONS and time.monotonic() < deadline:
        for message in consumer.consume(10_000, timeout=0.2):
            if message.error() is None:
                number = int(message.value().split(b":", 1)[0])
                found[message.partition()].append((message.offset(), number))
            elif message.error().code() == KafkaError._PARTITION_EOF:
                at_end.add(message.partition())
    consumer.close()
    assert len(at_end) == PARTITIONS, "the reader did not reach the end"
    return found


def check(load: Load, found: dict[int, list[tuple[int, int]]]) -> None:
    """Each acknowledged record is there once, in order, at its acknowledged offset."""
    assert load.failed == []
    place: dict[int, tuple[int, int]] = {}
    for partition, records in found.items():
        assert [offset for offset, _ in records] == list(range(len(records))), "offsets with gaps"
        numbers = [number for _, number in records]
        assert numbers == sorted(set(numbers)), f"partition {partition}: out of order or doubled"
        place |= {number: (partition, offset) for offset, number in records}
    wrong = {n: at for n, at in load.acknowledged.items() if place.get(n) != at}
    assert wrong == {}, "acknowledged records that are lost or elsewhere"


def wait_for_puts_in_flight(broker: BrokerProcess, seconds_max: float = 30) -> None:
    """Look at the broker's metrics until WAL objects are being uploaded. The kill follows at
    once."""
    deadline = time.monotonic() + seconds_max
    while time.monotonic() < deadline:
        with urlopen(f"http://{broker.http}/metrics", timeout=10) as answer:
            lines = answer.read().decode().splitlines()
        counts = dict(line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
        begun, durable = counts["tidelog_wal_puts_total"], counts["tidelog_wal_slots_total"]
        if float(begun) > float(durable):
            return
    raise AssertionError("no PUT was ever in flight")


def run_kills(store: str, folder: Path, kills: int, seed: int) -> None:
    """Kill and restart the broker under load; then read everything."""
    chance = random.Random(seed)
    listen = f"127.0.0.1:{free_ports(1)[0]}"
    log = folder / "broker.log"
    with contextlib.ExitStack() as stack:
        broker = BrokerProcess.start(store, log, listen=listen, http="127.0.0.1:0")
        stack.callback(lambda: broker.kill())
        admin = AdminClient({"bootstrap.servers": broker.kafka})
        admin.create_topics([NewTopic(TOPIC, PARTITIONS)])[TOPIC].result(60)
        load = Load(broker.kafka)
        load.start()
        stack.callback(load.stop)
        under_way = 0
        for _ in range(kills):
            before = len(load.acknowledged)
            # Kill only after this broker has acknowledged some records, and then at a random
            # moment.
            while len(load.acknowledged) < before + 200:
                load._stop.wait(0.01)
            load._stop.wait(chance.uniform(0, 0.3))
            wait_for_puts_in_flight(broker)
            under_way += load.unacknowledged > 0
            broker.kill()
            broker = BrokerProcess.start(store, log, listen=listen, http="127.0.0.1:0")
        load.stop()
        assert under_way == kills, "some kills met no unacknowledged record"
        check(load, read_all(broker.kafka))
        print(
            f"{kills} kills, {load.sent} records sent, {len(load.acknowledged)} acknowledged,"
            " all in their places"
        )


@pytest.fixture(params=["filesystem", "s3"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "filesystem":
        yield f"file://{tmp_path / 'bucket'}"
        return
    with start_moto(tmp_path / "moto") as server:
        yield server.url


@pytest.mark.integration
@pytest.mark.timeout(900)
def test_twenty_kills_under_load_lose_and_double_nothing(store: str, tmp_path: Path) -> None:
    run_kills(store, tmp_path, kills=20, seed=1)


def test_a_few_kills_under_load_lose_and_double_nothing(tmp_path: Path) -> None:
    run_kills(f"file://{tmp_path / 'bucket'}", tmp_path, kills=2, seed=2)
