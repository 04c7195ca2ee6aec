"""`exactly_once` with two workers and three brokers, each killed with -9. The output equals the
input."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.wheels import ROOT
from tidelog.localstack.broker_process import BrokerProcess
from tidelog.localstack.ports import free_ports
from tidelog.sdk.admin import Admin
from tidelog.sdk.consumer import Consumer
from tidelog.sdk.producer import Producer

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

BROKERS = 3
COUNT = 3000
STEP = 200
"""New outputs between two kills."""


class Cluster:
    """Three processes on one folder, each killed and started again at its address."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._addresses = [f"127.0.0.1:{port}" for port in free_ports(BROKERS)]
        self._running: dict[int, BrokerProcess] = {}
        self.bootstrap = ",".join(self._addresses)

    def start(self, number: int) -> None:
        self._running[number] = BrokerProcess.start(
            f"file://{self._folder / 'bucket'}",
            self._folder / f"broker-{number}.log",
            listen=self._addresses[number],
            broker_id=number,
            settings={"group.initial.rebalance.delay.ms": 0},
        )

    def kill(self, number: int) -> None:
        self._running.pop(number).kill()

    def close(self) -> None:
        for broker in self._running.values():
            broker.kill()


@contextmanager
def worker(folder: Path, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """A worker's process, which is killed at the end."""
    command = [sys.executable, "-m", "tests.integration.exactly_once_worker", *arguments]
    with (folder / "workers.log").open("ab") as log:
        process = subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=log)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_output_is_input_though_brokers_and_workers_are_killed(
    tmp_path: Path, protocol: str
) -> None:
    (tmp_path / "bucket").mkdir()
    with ExitStack() as stack:
        cluster = Cluster(tmp_path)
        stack.callback(cluster.close)
        for number in range(BROKERS):
            cluster.start(number)
        admin = Admin(cluster.bootstrap)
        for topic in ("source", "sink"):
            admin.create_topic(topic, partitions=6)
        with Producer(cluster.bootstrap) as producer:
            for number in range(COUNT):
                producer.send("source", str(number), key=str(number % 100))
        shared = (cluster.bootstrap, "source", "sink", "workers")
        workers = [
            stack.enter_context(worker(tmp_path, *shared, f"worker-{number}", protocol))
            for number in range(2)
        ]
        reader = stack.enter_context(
            Consumer(cluster.bootstrap, "sink", auto_offset_reset="earliest")
        )
        found: Counter[int] = Counter()

        def read(count: int) -> None:
            """Wait until this many outputs are committed in all."""
            while found.total() < count:
                message = reader.poll(1.0)
                if message is not None:
                    found[int(message.value)] += 1
                for process in workers:
                    assert process.poll() is None, (tmp_path / "workers.log").read_text()[-3000:]

        for number in range(BROKERS):
            read(found.total() + STEP)
            cluster.kill(number)
            read(found.total() + STEP)
            cluster.start(number)
        # The next worker has the transactional id of the one that was killed.
        workers[0].kill()
        workers[0].wait()
        workers[0] = stack.enter_context(worker(tmp_path, *shared, "worker-0", protocol))
        read(found.total() + STEP)
        read(COUNT)
        with Consumer(cluster.bootstrap, "sink", auto_offset_reset="earliest") as again:
            written = Counter(int(message.value) for message in again.to_end())
    assert written == Counter(range(COUNT))
    assert found <= written
