"""A cluster is upgraded under load to a build with one more feature, and back before the feature is
raised. Until then no broker writes a record that the present build cannot read."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.integration.newer_build import NEWER_VERSION, RECORD_NAME
from tidelog.coordinator.cluster.records.records import BROKER_VERSION, FIRST_LEVEL
from tidelog.localstack.broker_process import BrokerNotReady, BrokerProcess

pytestmark = pytest.mark.integration

TOPIC = "flights"
PARTITIONS = 6
BROKERS = 3
NEWER = "tests.integration.newer_build"
PRESENT = "tidelog.cli"
SECONDS_MAX = 120.0


class Cluster:
    """Brokers 0, 1 and 2 at fixed addresses on one folder."""

    def __init__(self, folder: Path) -> None:
        self.bucket = folder / "bucket"
        self._folder = folder
        self._brokers: dict[int, BrokerProcess] = {}

    def start(self, number: int, module: str) -> None:
        known = self._brokers.get(number)
        self._brokers[number] = BrokerProcess.start(
            f"file://{self.bucket}",
            self._folder / f"broker-{number}.log",
            broker_id=number,
            listen="127.0.0.1:0" if known is None else known.kafka,
            module=module,
            ready_seconds_max=SECONDS_MAX,
        )

    def restart(self, number: int, module: str) -> None:
        """Stop the broker politely, and start it with this build."""
        self._brokers[number].stop()
        self.start(number, module)

    def restart_all(self, module: str) -> None:
        for number in range(BROKERS):
            self.restart(number, module)

    def kill_all(self) -> None:
        for broker in self._brokers.values():
            broker.kill()

    @property
    def addresses(self) -> str:
        return ",".join(broker.kafka for broker in self._brokers.values())

    def tidelog(self, *words: str) -> tuple[int, str]:
        command = [sys.executable, "-m", "tidelog.cli", "cluster", "features", *words]
        done = subprocess.run(
            [*command, "--bootstrap", self._brokers[0].kafka],
            capture_output=True,
            text=True,
            timeout=SECONDS_MAX,
            check=False,
        )
        return done.returncode, done.stdout + done.stderr

    def described(self) -> dict[str, object]:
        code, text = self.tidelog("describe", "--json")
        assert code == 0, text
        found: dict[str, object] = json.loads(text)
        return found

    def holds_newer_records(self) -> bool:
        files = [path for path in (self.bucket / "cluster/log").rglob("*") if path.is_file()]
        assert files
        return any(RECORD_NAME.encode() in path.read_bytes() for path in files)


@contextmanager
def load(addresses: str) -> Iterator[list[str]]:
    """An idempotent producer that runs until the end. Yields its acknowledged values, and checks
    that no error came."""
    acknowledged: list[str] = []
    errors: list[str] = []
    stop = threading.Event()

    def told(error: object, message: object) -> None:
        if error is not None:
            errors.append(str(error))
        else:
            acknowledged.append(message.value().decode())  # type: ignore[attr-defined]

    def produce() -> None:
        producer = Producer(
            {"bootstrap.servers": addresses, "enable.idempotence": True, "linger.ms": 5}
        )
        number = 0
        while not stop.is_set():
            producer.produce(TOPIC, f"{number}", partition=number % PARTITIONS, on_delivery=told)
            number += 1
            producer.poll(0.01)
        assert producer.flush(SECONDS_MAX) == 0

    thread = threading.Thread(target=produce)
    thread.start()
    try:
        yield acknowledged
    finally:
        stop.set()
        thread.join()
    assert errors == []


def read_all(addresses: str, count: int) -> list[str]:
    consumer = Consumer(
        {"bootstrap.servers": addresses, "group.id": "r", "auto.offset.reset": "earliest"}
    )
    consumer.assign([TopicPartition(TOPIC, number, 0) for number in range(PARTITIONS)])
    values: list[str] = []
    while len(values) < count:
        message = consumer.poll(SECONDS_MAX)
        assert message is not None, f"{len(values)} of {count} were read"
        assert message.error() is None
        values.append(message.value().decode())
    consumer.close()
    return values


@pytest.mark.timeout(1200)
def test_a_cluster_is_upgraded_under_load_and_back_and_then_raised(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path)
    try:
        for number in range(BROKERS):
            cluster.start(number, PRESENT)
        admin = AdminClient({"bootstrap.servers": cluster.addresses})
        admin.create_topics([NewTopic(TOPIC, PARTITIONS)])[TOPIC].result(30)
        with load(cluster.addresses) as acknowledged:
            for module, version in ((NEWER, NEWER_VERSION), (PRESENT, BROKER_VERSION)):
                cluster.restart(0, module)
                code, text = cluster.tidelog("upgrade", "--level", str(NEWER_VERSION))
                assert code != 0
                assert "upgrade them first" in text
                for number in range(1, BROKERS):
                    cluster.restart(number, module)
                versions = {str(number): version for number in range(BROKERS)}
                assert cluster.described() == {
                    "level": FIRST_LEVEL,
                    "highest": version,
                    "brokers": versions,
                }
                assert not cluster.holds_newer_records()
            cluster.restart_all(NEWER)
            assert not cluster.holds_newer_records()
            assert cluster.tidelog("upgrade") == (0, f"the cluster has level {NEWER_VERSION}\n")
            while not cluster.holds_newer_records():
                cluster.described()
            with pytest.raises(BrokerNotReady) as refused:
                cluster.start(BROKERS, PRESENT)
            assert re.search(r"newer Tidelog", refused.value.log)
        found = read_all(cluster.addresses, len(acknowledged))
        assert sorted(found) == sorted(acknowledged)
    finally:
        cluster.kill_all()
