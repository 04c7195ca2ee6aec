"""Three brokers on one store: consume, transform, produce in transactions while brokers and workers
are killed, stopped and cut off. Each input has its outputs once, in order, and nothing aborted is
seen."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.chaos_cluster.cluster import CUTS, DEATHS, Cluster
from tests.compat.test_transactions import Worker
from tidelog.localstack.s3_servers import start_seaweedfs

pytestmark = [pytest.mark.chaos_cluster, pytest.mark.timeout(7200)]

MINUTES = float(os.environ.get("MINUTES", "2"))
FAULT_SECONDS = 10.0
SETTLE_SECONDS = 300.0
SEND_SECONDS = 0.1
"""Between two inputs: workers that are killed again and again keep up with them."""
PARTITIONS = 6
JOBS = ("one", "two")
SOURCE = "source"
OUTPUT_PARTITIONS = 2


def topics() -> list[NewTopic]:
    found = [NewTopic(SOURCE, num_partitions=PARTITIONS)]
    for job in JOBS:
        found += [
            NewTopic(f"{job}-{side}", num_partitions=OUTPUT_PARTITIONS)
            for side in ("left", "right")
        ]
    return found


class Feeder(threading.Thread):
    """Sends numbers until it is told to end; each acknowledged, as the client repeats them."""

    def __init__(self, bootstrap: str) -> None:
        super().__init__()
        self._ends = threading.Event()
        self.sent = 0
        self.errors: list[str] = []
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "enable.idempotence": True,
                "message.timeout.ms": 600_000,
                "reconnect.backoff.max.ms": 500,
            }
        )

    def run(self) -> None:
        while not self._ends.wait(SEND_SECONDS):
            number = b"%d" % self.sent
            self._producer.produce(
                SOURCE, number, partition=self.sent % PARTITIONS, on_delivery=self._delivered
            )
            self.sent += 1
            self._producer.poll(0)

    def _delivered(self, error: KafkaError | None, _: object) -> None:
        if error is not None:
            self.errors.append(str(error))

    def end(self) -> None:
        """Send no more."""
        self._ends.set()
        self.join()

    def check(self) -> None:
        """Wait until all is acknowledged."""
        left = self._producer.flush(SETTLE_SECONDS)
        assert (left, self.errors) == (0, [])


class Reader(threading.Thread):
    """Reads a job's outputs committed, along with the faults."""

    def __init__(self, bootstrap: str, job: str) -> None:
        super().__init__()
        self.found: dict[tuple[str, int], list[bytes]] = {}
        self._ends = threading.Event()
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": f"reader-{job}",
                "isolation.level": "read_committed",
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "reconnect.backoff.max.ms": 500,
            }
        )
        self._consumer.assign(
            [
                TopicPartition(f"{job}-{side}", number, 0)
                for side in ("left", "right")
                for number in range(OUTPUT_PARTITIONS)
            ]
        )

    def run(self) -> None:
        try:
            self._read()
        finally:
            self._consumer.close()

    def _read(self) -> None:
        while not self._ends.is_set():
            message = self._consumer.poll(0.2)
            if message is not None and message.error() is None:
                place = (message.topic() or "", message.partition() or 0)
                self.found.setdefault(place, []).append(message.value() or b"")

    def numbers(self, side: str) -> Counter[int]:
        """How often each input was seen in a topic."""
        return Counter(
            int(value.split(b":")[0])
            for (topic, _), values in list(self.found.items())
            if topic.endswith(side)
            for value in list(values)
        )

    def end(self) -> None:
        self._ends.set()
        self.join()


@contextmanager
def store_of(kind: str, folder: Path) -> Iterator[str]:
    if kind == "folder":
        (folder / "bucket").mkdir()
        yield f"file://{folder / 'bucket'}"
        return
    with start_seaweedfs(folder / "s3") as server:
        yield server.url


@pytest.mark.parametrize(
    ("kind", "faults"),
    [("folder", DEATHS), ("s3", DEATHS), ("s3", CUTS)],
    ids=["deaths on a folder", "deaths on s3", "cuts on s3"],
)
def test_each_input_has_its_outputs_once_while_brokers_suffer(
    kind: str, faults: Sequence[str], tmp_path: Path
) -> None:
    chance = random.Random(os.environ.get("SEED", kind))
    with store_of(kind, tmp_path) as store:
        with closing(Cluster(store, tmp_path, faults)) as cluster, ExitStack() as ending:
            admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
            for created in admin.create_topics(topics()).values():
                created.result(60)
            feeder = Feeder(cluster.bootstrap)
            readers = [Reader(cluster.bootstrap, job) for job in JOBS]
            threads: list[Feeder | Reader] = [feeder, *readers]
            for thread in threads:
                ending.callback(thread.end)
                thread.start()
            workers = [_worker(cluster, tmp_path / job, job) for job in JOBS]
            for worker in workers:
                ending.callback(worker.kill)
            harm(cluster, workers, chance)
            feeder.end()
            feeder.check()
            settle(cluster, workers, readers, feeder.sent)
            for reader in readers:
                check(reader, feeder.sent)
            print(f"{feeder.sent} inputs; faults {Counter(cluster.faults)}; {cluster.ended}")
        assert_consistent(store)


def _worker(cluster: Cluster, folder: Path, job: str) -> Worker:
    folder.mkdir()
    program = [sys.executable, "-m", "tests.compat.kit.transform_worker", "confluent-kafka"]
    arguments = [cluster.bootstrap, job, SOURCE, f"{job}-left", f"{job}-right"]
    return Worker([*program, *arguments], folder)


def harm(cluster: Cluster, workers: list[Worker], chance: random.Random) -> None:
    """A fault every ten seconds, and a worker killed now and then."""
    over = threading.Event()
    ends_at = time.monotonic() + MINUTES * 60
    while time.monotonic() < ends_at:
        over.wait(FAULT_SECONDS)
        cluster.harm(chance, over)
        cluster.mend()
        if chance.random() < 0.3:
            worker = chance.choice(workers)
            worker.kill()
            worker.start()
        for worker in workers:
            worker.revive()


def settle(cluster: Cluster, workers: list[Worker], readers: list[Reader], inputs: int) -> None:
    """Wait until every input was seen in every output."""
    pause = threading.Event()
    deadline = time.monotonic() + SETTLE_SECONDS
    while not all(
        len(reader.numbers(side)) == inputs for reader in readers for side in ("left", "right")
    ):
        counts = [len(reader.numbers(side)) for reader in readers for side in ("left", "right")]
        assert time.monotonic() < deadline, f"{counts} of {inputs} outputs\n{cluster.logs()}"
        cluster.mend()
        for worker in workers:
            worker.revive()
        pause.wait(0.5)


def check(reader: Reader, inputs: int) -> None:
    for side in ("left", "right"):
        numbers = reader.numbers(side)
        twice = [number for number, count in numbers.items() if count > 1]
        assert not twice, f"seen more than once: {sorted(twice)[:10]}, {len(twice)} in all"
        assert set(numbers) == set(range(inputs))
    for (topic, partition), values in reader.found.items():
        assert all(value.endswith(b":committed") for value in values), "aborted records are seen"
        by_source: dict[int, list[int]] = {}
        for value in values:
            number = int(value.split(b":")[0])
            by_source.setdefault(number % PARTITIONS, []).append(number)
        for source, numbers_ in by_source.items():
            assert numbers_ == sorted(numbers_), f"{topic}-{partition} from source {source}"


def assert_consistent(store: str) -> None:
    command = [sys.executable, "-m", "tidelog.cli", "fsck", "--store", store]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
