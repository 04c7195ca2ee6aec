"""Exactly once through foreign clients, unmodified: a worker moves records from one topic to two
others in transactions, and aborts some on purpose. The worker and the broker die at any moment."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.compat.kit.broker_view import check_sequences, group_offsets, partition_view
from tests.compat.kit.clients import PROGRAMS
from tidelog.client.groups.admin import Place
from tidelog.client.operations import IsolationLevel
from tidelog.localstack.broker_process import BrokerProcess, log_tail
from tidelog.localstack.kafka import java_command
from tidelog.records.batch import BatchHeader

# Processes that are started and killed take their time on a busy machine.
pytestmark = [pytest.mark.compat, pytest.mark.timeout(900)]

SETTINGS = {"group.initial.rebalance.delay.ms": 0}
SOURCE, LEFT, RIGHT = "source", "left", "right"
PARTITIONS = 2
KEYS = 10
"""A key's records are in one partition, as KEYS is a multiple of PARTITIONS."""
SECONDS_MAX = 180.0
WAVE_RECORDS = 60
KILLS = ("broker", "worker", "both", "broker")
RESTARTS_MAX = 20
SLOT_DEATHS = 6


def until(condition: Callable[[], bool], what: Callable[[], str]) -> None:
    deadline = time.monotonic() + SECONDS_MAX
    while not condition():
        assert time.monotonic() < deadline, what()
        time.sleep(0.01)


class Worker:
    """A process that reports its progress, a word a line. A worker that ends by itself is started
    again: libraries give up after errors that they call fatal."""

    def __init__(
        self, command: Sequence[str], folder: Path, variables: Mapping[str, str] | None = None
    ) -> None:
        """`variables`: more variables for the environment."""
        self._command = command
        self._environment = {**os.environ, **(variables or {})}
        self._log_path = folder / "worker.log"
        self.words: Counter[str] = Counter()
        self.gave_up = 0
        self._process: subprocess.Popen[str]
        self._reader: threading.Thread
        self.start()

    def start(self) -> None:
        with self._log_path.open("ab") as log:
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=self._environment,
            )
        self._reader = threading.Thread(target=self._read, args=(self._process,))
        self._reader.start()

    def _read(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            self.words[line.strip()] += 1

    def has_said(self, word: str, count: int) -> bool:
        return self.words[word] >= count

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        self._reader.join()
        assert self._process.stdout is not None
        self._process.stdout.close()

    def revive(self) -> None:
        """Start the worker again if it has ended by itself."""
        if self._process.poll() is not None:
            self.gave_up += 1
            self.kill()
            self.start()

    def wait_for(self, condition: Callable[[], bool]) -> None:
        """Wait until the condition holds, and restart a worker that has ended."""

        def holds() -> bool:
            self.revive()
            assert self.gave_up <= RESTARTS_MAX, log_tail(self._log_path)
            return condition()

        until(holds, lambda: f"{self.words}\n{log_tail(self._log_path)}")


class Stage:
    """A broker that can be killed and started again on the same bucket and port, its topics, and
    the number of inputs."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        (folder / "bucket").mkdir()
        self.broker = self._start("127.0.0.1:0")
        admin = AdminClient({"bootstrap.servers": self.bootstrap})
        topics = [NewTopic(name, num_partitions=PARTITIONS) for name in (SOURCE, LEFT, RIGHT)]
        for future in admin.create_topics(topics).values():
            future.result(30)
        self.inputs = 0

    def _start(self, listen: str, crash: str | None = None) -> BrokerProcess:
        return BrokerProcess.start(
            f"file://{self._folder / 'bucket'}",
            self._folder / "broker.log",
            settings=SETTINGS,
            listen=listen,
            crash_points=crash,
        )

    @property
    def bootstrap(self) -> str:
        return self.broker.kafka

    def kill(self) -> None:
        self.broker.kill()

    def start_again(self, crash: str | None = None) -> None:
        """`crash`: the crash point at which the broker dies."""
        self.broker = self._start(self.broker.kafka, crash)

    def is_dead(self) -> bool:
        return self.broker.process.poll() is not None

    def feed(self, count: int) -> None:
        """Produce this many more records, with the next numbers, to the partitions in turn."""
        producer = Producer({"bootstrap.servers": self.bootstrap, "enable.idempotence": True})
        for number in range(self.inputs, self.inputs + count):
            key, value = b"%d" % (number % KEYS), b"%d" % number
            producer.produce(SOURCE, value, key, partition=number % PARTITIONS)
        assert producer.flush(30) == 0
        self.inputs += count

    def sources(self) -> dict[Place, int]:
        """The ends of the source's partitions."""
        return {Place(SOURCE, p): len(range(p, self.inputs, PARTITIONS)) for p in range(PARTITIONS)}

    def outputs(self, topic: str) -> list[int]:
        """The inputs whose outputs a read_committed reader sees in a topic, in ascending order."""
        return sorted(
            int(value.split(b":")[0])
            for p in range(PARTITIONS)
            for value in partition_view(self.bootstrap, topic, p).values
        )

    def check_that_offsets_agree(self, group: str) -> None:
        """The committed outputs are exactly those of the inputs below the group's offsets. If a
        commit changes the offsets meanwhile, look again."""
        while True:
            offsets = group_offsets(self.bootstrap, group)
            left, right = self.outputs(LEFT), self.outputs(RIGHT)
            if offsets == group_offsets(self.bootstrap, group):
                break
        expected = sorted(
            number
            for place, offset in offsets.items()
            for number in range(place.partition, offset * PARTITIONS, PARTITIONS)
        )
        assert left == expected
        assert right == expected


@contextmanager
def stage_in(folder: Path) -> Iterator[Stage]:
    stage = Stage(folder)
    try:
        yield stage
    finally:
        stage.kill()


LIBRARIES = ("confluent-kafka", "kafka-python", "aiokafka", "java", "java-first-version")
JARS = {"java": "kafka_lib", "java-first-version": "first_version_lib"}


def worker_command(library: str, bootstrap: str, lib: Path | None) -> list[str]:
    arguments = [bootstrap, f"worker-{library}", SOURCE, LEFT, RIGHT]
    if lib is not None:
        return java_command(lib, str(PROGRAMS / "TransformWorker.java"), arguments)
    return [sys.executable, "-m", "tests.compat.kit.transform_worker", library, *arguments]


def read(bootstrap: str, topic: str, isolation: str, count: int) -> list[bytes]:
    """All records that confluent-kafka's reader gets from a topic."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "reader",
            "enable.auto.commit": False,
            "isolation.level": isolation,
            "enable.partition.eof": True,
        }
    )
    consumer.assign([TopicPartition(topic, p, 0) for p in range(PARTITIONS)])
    values, ended = [], set()
    while len(ended) < PARTITIONS:
        message = consumer.poll(SECONDS_MAX)
        assert message is not None, f"{len(values)} of {count}"
        if message.error():
            ended.add(message.partition())
        else:
            values.append(message.value() or b"")
    consumer.close()
    return values


def has_own_epochs(batches: Iterable[BatchHeader]) -> bool:
    """Whether no two transactions have the same epoch: the second version of the protocol."""
    ends = [(each.producer_id, each.producer_epoch) for each in batches if each.is_control]
    return len(set(ends)) == len(ends)


def work_through_kills(
    stage: Stage, worker: Worker, chance: random.Random, words: Sequence[str], group: str
) -> None:
    """Feed the worker, and kill it, the broker, or both, a few words later. Repeat this for all
    kills."""
    for victim in KILLS:
        stage.feed(WAVE_RECORDS)
        word = chance.choice(words)
        wanted = worker.words[word] + chance.randrange(1, 4)
        worker.wait_for(partial(worker.has_said, word, wanted))
        if victim != "worker":
            stage.kill()
        if victim != "broker":
            worker.kill()
        if victim != "worker":
            stage.start_again()
        if victim != "broker":
            stage.check_that_offsets_agree(group)
            worker.start()
    worker.wait_for(lambda: group_offsets(stage.bootstrap, group) == stage.sources())


@pytest.mark.parametrize("library", LIBRARIES)
def test_each_input_has_its_outputs_once_whichever_process_is_killed(
    tmp_path: Path, library: str, request: pytest.FixtureRequest
) -> None:
    lib = request.getfixturevalue(JARS[library]) if library in JARS else None
    chance = random.Random(f"kills of {library}")
    group = f"worker-{library}"
    with stage_in(tmp_path) as stage:
        worker = Worker(worker_command(library, stage.bootstrap, lib), tmp_path)
        try:
            words = ("sent", "offsets", "committed", "aborted")
            work_through_kills(stage, worker, chance, words, group)
        finally:
            worker.kill()
        stage.check_that_offsets_agree(group)
        assert worker.words["committed"]
        assert worker.words["aborted"]
        expected = list(range(stage.inputs))
        bootstrap = stage.bootstrap
        for topic in (LEFT, RIGHT):
            committed = read(bootstrap, topic, "read_committed", len(expected))
            assert sorted(int(v.split(b":")[0]) for v in committed) == expected
            assert all(v.endswith(b":committed") for v in committed)
            everything = read(bootstrap, topic, "read_uncommitted", len(expected))
            assert (
                len([v for v in everything if v.endswith(b":aborted")]) >= worker.words["aborted"]
            )
            assert not set(committed) - set(everything)
            for p in range(PARTITIONS):
                view = partition_view(bootstrap, topic, p, IsolationLevel.READ_UNCOMMITTED)
                assert check_sequences(view.batches) == len(view.records)
                assert has_own_epochs(view.batches) == (library == "java")


def test_a_worker_whose_idle_member_was_fenced_ends_and_its_successor_goes_on(
    tmp_path: Path,
) -> None:
    """librdkafka tells a fatal error once, and then returns no more records."""
    group = "worker-confluent-kafka"
    with stage_in(tmp_path) as stage:
        worker = Worker(worker_command("confluent-kafka", stage.bootstrap, None), tmp_path)
        try:
            stage.feed(WAVE_RECORDS)
            worker.wait_for(lambda: group_offsets(stage.bootstrap, group) == stage.sources())
            settings = {"bootstrap.servers": stage.bootstrap, "group.id": group}
            other = Consumer({**settings, "group.instance.id": group})
            other.subscribe([SOURCE])
            until(lambda: other.poll(0.1) is None and bool(other.assignment()), lambda: group)
            worker.wait_for(lambda: worker.gave_up > 0)
            other.close()
            stage.feed(WAVE_RECORDS)
            worker.wait_for(lambda: group_offsets(stage.bootstrap, group) == stage.sources())
        finally:
            worker.kill()
        assert stage.outputs(LEFT) == stage.outputs(RIGHT) == list(range(stage.inputs))


def test_a_streams_job_counts_each_input_once_whichever_process_is_killed(
    tmp_path: Path, kafka_lib: Path
) -> None:
    """exactly_once_v2 with one topic in, two out, and a store with its changelog."""
    chance = random.Random("kills of Streams")
    with stage_in(tmp_path) as stage:
        arguments = [stage.bootstrap, "streams", SOURCE, LEFT, RIGHT, str(tmp_path / "state")]
        command = java_command(kafka_lib, str(PROGRAMS / "StreamsJob.java"), arguments)
        worker = Worker(command, tmp_path)
        try:
            work_through_kills(stage, worker, chance, ("sent",), "streams")
        finally:
            worker.kill()
        stage.check_that_offsets_agree("streams")
        copies = read(stage.bootstrap, LEFT, "read_committed", stage.inputs)
        assert sorted(map(int, copies)) == list(range(stage.inputs))
        # A key's numbers arrive in order, so the count at each number is known.
        counts = read(stage.bootstrap, RIGHT, "read_committed", stage.inputs)
        assert sorted(counts) == sorted(
            b"%d:%d:%d" % (n, n % KEYS, n // KEYS + 1) for n in range(stage.inputs)
        )


@pytest.mark.parametrize("library", ["confluent-kafka", "kafka-python", "aiokafka"])
def test_each_input_has_its_outputs_once_where_additions_die_with_the_broker(
    tmp_path: Path, library: str
) -> None:
    """The broker dies before it stores any slot, including that of an addition, so no client gets
    the addition's answer.

    A producer that does not survive the refusal of later requests is replaced.
    """
    chance = random.Random(f"slots of {library}")
    group = f"worker-{library}"
    with stage_in(tmp_path) as stage:
        stage.feed(SLOT_DEATHS * WAVE_RECORDS)
        worker = Worker(worker_command(library, stage.bootstrap, None), tmp_path)
        try:
            for _ in range(SLOT_DEATHS):
                stage.kill()
                stage.start_again(f"slot upload:{chance.randrange(4, 24)}")
                worker.wait_for(stage.is_dead)
            stage.kill()
            stage.start_again()
            worker.wait_for(lambda: group_offsets(stage.bootstrap, group) == stage.sources())
        finally:
            worker.kill()
        print(f"{library}: {worker.gave_up} producers made anew, {dict(worker.words)}")
        stage.check_that_offsets_agree(group)
        for topic in (LEFT, RIGHT):
            assert stage.outputs(topic) == list(range(stage.inputs))
