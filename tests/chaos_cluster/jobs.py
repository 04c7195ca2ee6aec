"""Jobs that derive two topics from one, exactly once, and whose processes are killed."""

from __future__ import annotations

import random
import signal
import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path

from tests.chaos.driver_process import DriverProcess, send
from tests.chaos.etl import SOURCE, TOPICS, derived
from tests.chaos.moments import Orders
from tests.compat.kit.clients import PROGRAMS
from tests.compat.test_transactions import Worker
from tidelog.localstack.kafka import java_command

KEYS = 12
"""A key's records are in one partition of the source, as KEYS is a multiple of its partitions."""


def topics_of(job: str) -> tuple[str, str]:
    """The two topics that a job derives. Spark's query has others."""
    return TOPICS if job == "spark" else (f"{job}-left", f"{job}-right")


class DerivingJob(ABC):
    """A job's process, and the outputs that it derives from input N."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.topics = topics_of(name)

    @abstractmethod
    def number_of(self, topic: str, value: bytes) -> int:
        """The input of an output. AssertionError if no consumer may see such an output."""

    @abstractmethod
    def kill(self) -> None:
        """kill -9 of all processes of the job."""

    @abstractmethod
    def inject_fault(self, chance: random.Random) -> None:
        """kill -9 of all or some processes of the job, which are then started again."""

    @abstractmethod
    def revive(self) -> None:
        """Start the job again if it has ended by itself."""


class WorkerJob(DerivingJob):
    """A job of one process, started at once."""

    def __init__(
        self, name: str, command: list[str], folder: Path, variables: Mapping[str, str]
    ) -> None:
        super().__init__(name)
        folder.mkdir()
        self._worker = Worker(command, folder, variables)

    def kill(self) -> None:
        self._worker.kill()

    def inject_fault(self, chance: random.Random) -> None:
        self._worker.kill()
        self._worker.start()

    def revive(self) -> None:
        self._worker.revive()


class TransformJob(WorkerJob):
    """Consume, transform, produce in transactions, a third of which is aborted."""

    def __init__(
        self, library: str, bootstrap: str, folder: Path, lib: Path, variables: Mapping[str, str]
    ) -> None:
        arguments = [bootstrap, library, SOURCE, *topics_of(library)]
        if library == "java":
            command = java_command(lib, str(PROGRAMS / "TransformWorker.java"), arguments)
        else:
            program = [sys.executable, "-m", "tests.compat.kit.transform_worker", library]
            command = [*program, *arguments]
        super().__init__(library, command, folder / library, variables)

    def number_of(self, topic: str, value: bytes) -> int:
        number, _, fate = value.split(b":")
        assert fate == b"committed", "aborted records are seen"
        return int(number)


class StreamsJob(WorkerJob):
    """Kafka Streams with exactly_once_v2: a copy, and counts by key from a store."""

    def __init__(
        self, bootstrap: str, folder: Path, lib: Path, variables: Mapping[str, str]
    ) -> None:
        name = "streams"
        arguments = [bootstrap, name, SOURCE, *topics_of(name), str(folder / name / "state")]
        command = java_command(lib, str(PROGRAMS / "StreamsJob.java"), arguments)
        super().__init__(name, command, folder / name, variables)

    def number_of(self, topic: str, value: bytes) -> int:
        number = int(value.split(b":")[0])
        if topic == self.topics[1]:
            # A key's numbers arrive in order, so the count at each number is known.
            assert value == b"%d:%d:%d" % (number, number % KEYS, number // KEYS + 1)
        return number


class SparkJob(DerivingJob):
    """A streaming query that reads the bucket and writes through the sink."""

    def __init__(
        self, store: str, bootstrap: str, folder: Path, variables: Mapping[str, str]
    ) -> None:
        super().__init__("spark")
        self._variables = variables
        self._folder = folder / "spark"
        self._arguments = (store, bootstrap, str(self._folder))
        self._moments = Orders(self._folder / "moments").folder
        self._driver = self._started()

    def number_of(self, topic: str, value: bytes) -> int:
        number = value.split()[0]
        assert value == derived(number)
        return int(number)

    def kill(self) -> None:
        self._driver.kill()

    def inject_fault(self, chance: random.Random) -> None:
        """The driver with all its processes, or one of the Python processes of its tasks."""
        workers = self._driver.workers()
        if workers and chance.random() < 0.5:
            send(chance.choice(workers), signal.SIGKILL)
            return
        self._driver.kill()
        self._driver = self._started()

    def revive(self) -> None:
        if self._driver.is_dead():
            self._driver.kill()
            self._driver = self._started()

    def _started(self) -> DriverProcess:
        return DriverProcess.start(
            self._folder / "etl.log", self._moments, *self._arguments, variables=self._variables
        )
