"""The guarantees compared: with each guarantee but the strongest, the test shows the loss or the
duplicate that it permits. With the next stronger guarantee, the same death causes none."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from kafka import KafkaProducer

from tests.compat.kit.broker_view import partition_view
from tests.compat.kit.lossy_proxy import LossyProxy
from tidelog.localstack.broker_process import BrokerProcess
from tidelog.localstack.ports import free_ports

pytestmark = pytest.mark.compat

SECONDS_MAX = 120.0
RECORDS = 6
DIES_AT = 3


def create_topics(bootstrap: str, *names: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for future in admin.create_topics(
        [NewTopic(name, num_partitions=1) for name in names]
    ).values():
        future.result(30)


Sender = Callable[[bytes], None]


def confluent_sender(bootstrap: str, *, is_idempotent: bool) -> Sender:
    """A producer that repeats batches that were not acknowledged."""
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "enable.idempotence": is_idempotent,
            "retries": 10,
            "linger.ms": 0,
            "reconnect.backoff.max.ms": 500,
        }
    )

    def send(value: bytes) -> None:
        producer.produce("out", value, partition=0)
        assert producer.flush(SECONDS_MAX) == 0

    return send


def kafka_python_sender(bootstrap: str, *, is_idempotent: bool) -> Sender:
    """As confluent_sender, with kafka-python."""
    producer = KafkaProducer(
        bootstrap_servers=bootstrap,
        enable_idempotence=is_idempotent,
        acks="all",
        retries=10,
        reconnect_backoff_max_ms=500,
    )

    def send(value: bytes) -> None:
        producer.send("out", value, partition=0).get(SECONDS_MAX)

    return send


class BrokerBehindProxy:
    """A broker that advertises the proxy's address. The test can kill it when an answer is lost,
    and start it again."""

    def __init__(self, folder: Path, proxy: LossyProxy) -> None:
        (folder / "bucket").mkdir()
        self._folder, self._proxy = folder, proxy
        proxy.broker = f"127.0.0.1:{free_ports(1)[0]}"
        self._process = self._start()

    def _start(self) -> BrokerProcess:
        return BrokerProcess.start(
            f"file://{self._folder / 'bucket'}",
            self._folder / "broker.log",
            listen=self._proxy.broker,
            arguments=("--advertise", self._proxy.address),
        )

    @contextmanager
    def killed_when_lost(self) -> Iterator[None]:
        """Within this block the broker dies as soon as an answer is lost, and a new one starts."""
        thread = threading.Thread(target=self._kill_when_lost)
        thread.start()
        try:
            yield
        finally:
            thread.join()

    def _kill_when_lost(self) -> None:
        if self._proxy.lost.wait(SECONDS_MAX):
            self._process.kill()
            self._process = self._start()

    def kill(self) -> None:
        """End the broker and the proxy."""
        self._process.kill()


@pytest.mark.parametrize("dies", [False, True], ids=["connection cut", "broker killed"])
@pytest.mark.parametrize("sender", [confluent_sender, kafka_python_sender])
def test_a_lost_answer_duplicates_a_record_unless_the_producer_is_idempotent(
    tmp_path: Path, sender: Callable[..., Sender], dies: bool
) -> None:
    """The record is durable, but its producer does not know that, and sends it again."""
    with LossyProxy() as proxy:
        broker = BrokerBehindProxy(tmp_path, proxy)
        try:
            create_topics(proxy.address, "out")
            for is_idempotent in (False, True):
                send = sender(proxy.address, is_idempotent=is_idempotent)
                send(b"first, %r" % is_idempotent)
                proxy.lose_next_answer()
                with broker.killed_when_lost() if dies else nullcontext():
                    send(b"lost, %r" % is_idempotent)
                assert proxy.lost.is_set()
            counts = Counter(partition_view(proxy.address, "out", 0).values)
        finally:
            broker.kill()
    assert counts == {
        b"first, False": 1,
        b"lost, False": 2,
        b"first, True": 1,
        b"lost, True": 1,
    }


@pytest.mark.parametrize(
    ("level", "expected"),
    [
        ("at-least-once", {DIES_AT: 2}),
        ("at-most-once", {DIES_AT: 0}),
        ("exactly-once", {}),
    ],
)
def test_a_worker_that_dies_between_its_two_steps(
    broker: BrokerProcess, level: str, expected: dict[int, int]
) -> None:
    """With the output first there is a duplicate and no loss; with the offset first a loss and no
    duplicate. In a transaction there is neither."""
    source, target = f"{level}.in", f"{level}.out"
    create_topics(broker.kafka, source, target)
    producer = Producer({"bootstrap.servers": broker.kafka})
    for number in range(RECORDS):
        producer.produce(source, b"%d" % number, partition=0)
    assert producer.flush(30) == 0

    def run(dies_at: str) -> int:
        command = [sys.executable, "-m", "tests.compat.kit.delivery_worker", level, broker.kafka]
        command += [f"group-{level}", source, target, str(RECORDS), dies_at]
        return subprocess.run(command, timeout=SECONDS_MAX, check=False).returncode

    assert run(str(DIES_AT)) == -signal.SIGKILL
    assert run("") == 0
    found = Counter(int(value) for value in partition_view(broker.kafka, target, 0).values)
    assert [found[n] for n in range(RECORDS)] == [expected.get(n, 1) for n in range(RECORDS)]
