"""Three brokers on one store. Exactly-once jobs of librdkafka, Java, Kafka Streams and Spark run
while brokers and jobs are killed, stopped and cut off. Each input has its outputs once, in order,
and no aborted record is seen. One of the clusters is closed, and its certificates change."""

from __future__ import annotations

import contextlib
import os
import random
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.chaos.etl import QUERY, SOURCE
from tests.chaos_cluster.cluster import CUTS, DEATHS, ROTATIONS, Cluster
from tests.chaos_cluster.jobs import (
    KEYS,
    DerivingJob,
    SparkJob,
    StreamsJob,
    TransformJob,
    topics_of,
)
from tests.chaos_cluster.protection import ADMIN, STRANGER, Protection
from tests.simulation.rules.history import Key
from tests.simulation.rules.observed import Observations
from tidelog.localstack.kafka import kafka_jars
from tidelog.localstack.s3_servers import start_seaweedfs

pytestmark = [pytest.mark.chaos_cluster, pytest.mark.timeout(7200)]

MINUTES = float(os.environ.get("MINUTES", "2"))
FAULT_SECONDS = 10.0
START_SECONDS = 600.0
SETTLE_SECONDS = 300.0
SEND_SECONDS = 0.1
"""Seconds between two inputs. Workers that are killed again and again can follow this pace."""
PARTITIONS = 6
OUTPUT_PARTITIONS = 2
STORY = ("confluent-kafka", "confluent-kafka-consumer", "java", "streams")
"""Librdkafka in groups of both protocols, the Java client, Kafka Streams."""
STORY_WITH_SPARK = ("confluent-kafka", "java", "spark")
STORY_OF_CLOSED = ("confluent-kafka-consumer", "streams", "spark")
"""Each protocol of groups, each client library, and the sink."""
CACHE = Path(__file__).parents[2] / ".cache"


class Feeder(threading.Thread):
    """Sends numbers until it is told to end. The client repeats each number until it is
    acknowledged."""

    def __init__(self, connection: dict[str, str]) -> None:
        super().__init__()
        self._ends = threading.Event()
        self.sent = 0
        self.errors: list[str] = []
        self._producer = Producer(
            {
                **connection,
                "enable.idempotence": True,
                "message.timeout.ms": 600_000,
            }
        )

    def run(self) -> None:
        while not self._ends.wait(SEND_SECONDS):
            self._producer.produce(
                SOURCE,
                b"%d" % self.sent,
                b"%d" % (self.sent % KEYS),
                partition=self.sent % PARTITIONS,
                on_delivery=self._delivered,
            )
            self.sent += 1
            self._producer.poll(0)

    def _delivered(self, error: KafkaError | None, _: object) -> None:
        if error is not None:
            self.errors.append(str(error))

    def end(self) -> None:
        """Stop sending."""
        self._ends.set()
        self.join()

    def check(self) -> None:
        """Wait until all is acknowledged."""
        left = self._producer.flush(SETTLE_SECONDS)
        assert (left, self.errors) == (0, [])


class Reader(threading.Thread):
    """Reads a job's outputs committed, along with the faults."""

    def __init__(self, connection: dict[str, str], job: DerivingJob) -> None:
        super().__init__()
        self.job = job
        self.found: dict[tuple[str, int], list[tuple[int, bytes]]] = {}
        """Offsets and values by topic and partition, as the consumer received them."""
        self._ends = threading.Event()
        self._consumer = Consumer(
            {
                **connection,
                "group.id": f"reader-{job.name}",
                "isolation.level": "read_committed",
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
            }
        )
        self._consumer.assign(
            [
                TopicPartition(topic, number, 0)
                for topic in job.topics
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
                record = message.offset() or 0, message.value() or b""
                self.found.setdefault(place, []).append(record)

    def numbers(self, topic: str) -> Counter[int]:
        """How often each input was seen in a topic."""
        return Counter(
            self.job.number_of(topic, value)
            for place, records in list(self.found.items())
            if place[0] == topic
            for _, value in list(records)
        )

    def counts(self) -> dict[str, int]:
        """The inputs that were seen in each topic."""
        return {topic: len(self.numbers(topic)) for topic in self.job.topics}

    def end(self) -> None:
        self._ends.set()
        self.join()


class Intruder(threading.Thread):
    """A user without permissions, which asks for the inputs again and again."""

    def __init__(self, connection: dict[str, str]) -> None:
        super().__init__()
        self.refusals = 0
        self.seen: list[object] = []
        """Partitions and records."""
        self._connection = connection | {"group.id": "intruder", "auto.offset.reset": "earliest"}
        self._ends = threading.Event()

    def run(self) -> None:
        while not self._ends.is_set():
            consumer = Consumer(self._connection)
            consumer.assign([TopicPartition(SOURCE, number, 0) for number in range(PARTITIONS)])
            with contextlib.suppress(KafkaException):
                # The client may find no broker for some seconds.
                topic = consumer.list_topics(SOURCE, timeout=10).topics[SOURCE]
                self.seen += list(topic.partitions)
                if topic.error == KafkaError.TOPIC_AUTHORIZATION_FAILED:
                    self.refusals += 1
            for message in consumer.consume(PARTITIONS, timeout=2.0):
                if message.error() is None:
                    self.seen.append(message.value())
            consumer.close()

    def end(self) -> None:
        self._ends.set()
        self.join()


@contextmanager
def store_of(kind: str, folder: Path) -> Iterator[str]:
    if kind in ("folder", "closed"):
        (folder / "bucket").mkdir()
        yield f"file://{folder / 'bucket'}"
        return
    with start_seaweedfs(folder / "s3") as server:
        yield server.url


@pytest.mark.parametrize(
    ("kind", "faults", "names"),
    [
        ("folder", DEATHS, STORY),
        ("s3", DEATHS, STORY_WITH_SPARK),
        ("s3", CUTS, STORY_WITH_SPARK),
        ("closed", ROTATIONS, STORY_OF_CLOSED),
    ],
    ids=["deaths on a folder", "deaths on s3", "cuts on s3", "deaths of a closed cluster"],
)
def test_each_input_has_its_outputs_once_while_brokers_suffer(
    kind: str,
    faults: Sequence[str],
    names: Sequence[str],
    tmp_path: Path,
    require_tool: Callable[[str], str],
) -> None:
    require_tool("java")
    require_tool("mvn")
    chance = random.Random(os.environ.get("SEED", kind))
    with store_of(kind, tmp_path) as store:
        protection = Protection(tmp_path / "protection") if kind == "closed" else None
        if protection is not None:
            protection.create_cluster(store)
        with (
            closing(Cluster(store, tmp_path, faults, protection=protection)) as cluster,
            ExitStack() as ending,
        ):
            create_topics(cluster, names)
            intruder = None
            if protection is not None:
                intruder = Intruder(cluster.connection | protection.client(STRANGER))
                ending.callback(intruder.end)
                intruder.start()
            feeder = Feeder(cluster.connection)
            ending.callback(feeder.end)
            feeder.start()
            jobs = []
            for name in names:
                jobs.append(started(name, store, cluster, tmp_path))
                ending.callback(jobs[-1].kill)
            readers = [Reader(cluster.connection, job) for job in jobs]
            for reader in readers:
                ending.callback(reader.end)
                reader.start()
            # Faults begin when all jobs work. A Spark may take minutes for its first batch.
            await_counts(cluster, readers, lambda counts: 0 not in counts, START_SECONDS)
            harm(cluster, jobs, chance)
            feeder.end()
            feeder.check()
            await_counts(cluster, readers, lambda counts: counts == {feeder.sent}, SETTLE_SECONDS)
            for reader in readers:
                check(reader, feeder.sent)
            if intruder is not None:
                intruder.end()
                assert (intruder.seen, intruder.refusals > 0) == ([], True)
            print(f"{feeder.sent} inputs; faults {Counter(cluster.faults)}; {cluster.ended}")
        assert_consistent(store)


def create_topics(cluster: Cluster, jobs: Sequence[str]) -> None:
    """Create the topics and, if the cluster is closed, permit the jobs to use them."""
    outputs = [NewTopic(topic, OUTPUT_PARTITIONS) for job in jobs for topic in topics_of(job)]
    connection = cluster.connection
    if cluster.protection is not None:
        connection |= cluster.protection.client(ADMIN)
        topics = [SOURCE, *(topic.topic for topic in outputs)]
        # Spark's query has a name that differs from its job's.
        cluster.protection.allow_jobs(cluster.bootstrap, topics, [*jobs, QUERY])
    admin = AdminClient(connection)
    for created in admin.create_topics([NewTopic(SOURCE, PARTITIONS), *outputs]).values():
        created.result(60)


def started(name: str, store: str, cluster: Cluster, folder: Path) -> DerivingJob:
    bootstrap, variables = cluster.bootstrap, cluster.variables
    match name:
        case "streams":
            return StreamsJob(bootstrap, folder, kafka_jars(CACHE), variables)
        case "spark":
            return SparkJob(store, bootstrap, folder, variables)
        case library:
            return TransformJob(library, bootstrap, folder, kafka_jars(CACHE), variables)


def harm(cluster: Cluster, jobs: Sequence[DerivingJob], chance: random.Random) -> None:
    """Cause a fault every ten seconds, and kill a job now and then."""
    over = threading.Event()
    ends_at = time.monotonic() + MINUTES * 60
    while time.monotonic() < ends_at:
        over.wait(FAULT_SECONDS)
        cluster.harm(chance, over)
        cluster.mend()
        if chance.random() < 0.3:
            chance.choice(jobs).inject_fault(chance)
        for job in jobs:
            job.revive()


def await_counts(
    cluster: Cluster,
    readers: Sequence[Reader],
    are_met: Callable[[set[int]], bool],
    seconds_max: float,
) -> None:
    """Wait until the numbers of inputs seen in each output fulfil the condition."""
    pause = threading.Event()
    deadline = time.monotonic() + seconds_max
    while not are_met({count for reader in readers for count in reader.counts().values()}):
        counts = [reader.counts() for reader in readers]
        assert time.monotonic() < deadline, f"the outputs are {counts}\n{cluster.logs()}"
        cluster.mend()
        for reader in readers:
            reader.job.revive()
        pause.wait(0.5)


def check(reader: Reader, inputs: int) -> None:
    """Each input has all its outputs once, or none, in the order of the input's partition."""
    seen = Observations()
    for number in range(inputs):
        outputs = [(topic, str(number)) for topic in reader.job.topics]
        seen.wrote(f"source-{number % PARTITIONS}", *outputs)
    for (topic, partition), records in reader.found.items():
        for offset, value in records:
            number = reader.job.number_of(topic, value)
            seen.read("reader", Key(topic, partition), offset, str(number))
    report = seen.check()
    assert report.valid, str(report)


def assert_consistent(store: str) -> None:
    command = [sys.executable, "-m", "tidelog.cli", "fsck", "--store", store]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
