"""Apache Kafka as a peer and an oracle: jars from Maven Central, a one-node server, its tools."""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from tidelog.errors import TidelogError
from tidelog.localstack.broker_process import log_tail
from tidelog.localstack.maven import fetch_jars
from tidelog.localstack.ports import accepts, free_ports

KAFKA_VERSION = "4.1.0"
READY_SECONDS_MAX = 120.0
_ALL = ("kafka_2.13", "kafka-tools", "kafka-streams")
_PROPERTIES = """\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller_port}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller_port}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
controller.listener.names=CONTROLLER
log.dirs={data}
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
group.initial.rebalance.delay.ms=0
"""


class KafkaNotAvailable(TidelogError):
    """The server did not start; the message has the end of its log."""


def kafka_jars(cache: Path) -> Path:
    """The folder of Kafka's jars (server, tools, clients, Streams), downloaded once by Maven."""
    return _jars(cache / f"kafka-{KAFKA_VERSION}", _ALL, KAFKA_VERSION)


def client_jars(cache: Path, version: str) -> Path:
    """The folder of the jars of another version's Java client, downloaded once."""
    return _jars(cache / f"kafka-clients-{version}", ("kafka-clients",), version)


def _jars(folder: Path, artifacts: Sequence[str], version: str) -> Path:
    wanted = [f"org.apache.kafka:{artifact}:{version}" for artifact in artifacts]
    return fetch_jars(folder, [*wanted, "org.slf4j:slf4j-simple:1.7.36"])


def java_command(lib: Path, main: str, arguments: Sequence[str], heap: str = "256m") -> list[str]:
    """The command line that runs a class of Kafka's jars."""
    quiet = "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"
    return ["java", f"-Xmx{heap}", quiet, "-cp", f"{lib}/*", main, *arguments]


@dataclass(slots=True)
class ApacheKafka:
    """A running one-node Kafka. As a context manager it is killed at the end."""

    process: subprocess.Popen[bytes]
    bootstrap: str
    data: Path

    @classmethod
    def start(cls, folder: Path, cache: Path, heap: str = "1g") -> ApacheKafka:
        """Format a new node in `folder` and wait until it accepts connections."""
        lib = kafka_jars(cache)
        folder.mkdir(parents=True, exist_ok=True)
        port, controller_port = free_ports(2)
        properties = folder / "server.properties"
        data = folder / "data"
        properties.write_text(
            _PROPERTIES.format(port=port, controller_port=controller_port, data=data)
        )
        log_path = folder / "kafka.log"
        storage = "kafka.tools.StorageTool"
        made = subprocess.run(
            java_command(lib, storage, ["random-uuid"]), capture_output=True, text=True, check=True
        )
        cluster = made.stdout.split()[-1]
        formatting = ["format", "-t", cluster, "-c", str(properties)]
        subprocess.run(java_command(lib, storage, formatting), capture_output=True, check=True)
        with log_path.open("wb") as log:
            process = subprocess.Popen(
                java_command(lib, "kafka.Kafka", [str(properties)], heap),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, "LC_ALL": "C"},
            )
        server = cls(process, f"127.0.0.1:{port}", data)
        deadline = time.monotonic() + READY_SECONDS_MAX
        while not accepts(port):
            if process.poll() is not None or time.monotonic() > deadline:
                server.kill()
                raise KafkaNotAvailable(f"Kafka did not start:\n{log_tail(log_path)}")
            time.sleep(0.2)
        return server

    def kill(self) -> None:
        """SIGKILL, and wait for the end."""
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()
        self.process.wait()

    def __enter__(self) -> ApacheKafka:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.kill()
