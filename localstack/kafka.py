"""Apache Kafka as a peer and an oracle: jars from Maven Central, servers, its tools."""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
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
node.id={node}
controller.quorum.voters={voters}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller_port}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
controller.listener.names=CONTROLLER
log.dirs={data}
default.replication.factor={replicas}
min.insync.replicas={in_sync}
offsets.topic.replication.factor={replicas}
transaction.state.log.replication.factor={replicas}
transaction.state.log.min.isr={in_sync}
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


def java_command(
    lib: Path,
    main: str,
    arguments: Sequence[str],
    heap: str = "256m",
    options: Sequence[str] = (),
) -> list[str]:
    """The command line that runs a class of Kafka's jars, with options of the JVM."""
    quiet = "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"
    return ["java", f"-Xmx{heap}", quiet, *options, "-cp", f"{lib}/*", main, *arguments]


@dataclass(slots=True)
class ApacheKafka:
    """A node of Kafka, broker and controller. As a context manager it is killed at the end."""

    bootstrap: str
    data: Path
    _command: list[str]
    _log_path: Path
    process: subprocess.Popen[bytes] = field(init=False)

    def __post_init__(self) -> None:
        self.run()

    @classmethod
    def start(
        cls,
        folder: Path,
        cache: Path,
        heap: str = "1g",
        *,
        settings: Mapping[str, str] | None = None,
        options: Sequence[str] = (),
    ) -> ApacheKafka:
        """Format a cluster of one node in `folder` and wait until it accepts connections.

        See `start_nodes` for `settings` and `options`.
        """
        (server,) = cls.start_nodes(folder, cache, 1, heap, settings=settings, options=options)
        return server

    @classmethod
    def start_nodes(
        cls,
        folder: Path,
        cache: Path,
        count: int,
        heap: str = "1g",
        *,
        settings: Mapping[str, str] | None = None,
        options: Sequence[str] = (),
    ) -> list[ApacheKafka]:
        """Format a cluster in `folder` and wait until all its nodes accept connections.

        Each partition has up to three replicas, of which all but one must have a record.
        `settings` replace those of the nodes and add to them. In their values `{port}` and
        `{controller_port}` stand for a node's ports. `options` are those of the JVM.
        """
        template = _PROPERTIES
        for name, value in (settings or {}).items():
            template += f"{name}={value}\n"
        lib = kafka_jars(cache)
        replicas = min(3, count)
        ports = free_ports(2 * count)
        addresses = [f"127.0.0.1:{port}" for port in ports]
        voters = ",".join(f"{node}@{addresses[count + node]}" for node in range(count))
        storage = "kafka.tools.StorageTool"
        made = subprocess.run(
            java_command(lib, storage, ["random-uuid"]), capture_output=True, text=True, check=True
        )
        cluster = made.stdout.split()[-1]
        commands = []
        for node in range(count):
            place = folder / str(node)
            place.mkdir(parents=True)
            properties = place / "server.properties"
            properties.write_text(
                template.format(
                    node=node,
                    voters=voters,
                    port=ports[node],
                    controller_port=ports[count + node],
                    data=place / "data",
                    replicas=replicas,
                    in_sync=max(1, replicas - 1),
                )
            )
            formatting = ["format", "-t", cluster, "-c", str(properties)]
            subprocess.run(java_command(lib, storage, formatting), capture_output=True, check=True)
            commands.append(java_command(lib, "kafka.Kafka", [str(properties)], heap, options))
        nodes = [
            cls(addresses[node], folder / str(node) / "data", command, folder / f"kafka-{node}.log")
            for node, command in enumerate(commands)
        ]
        try:
            for server in nodes:
                server.wait_until_ready()
        except KafkaNotAvailable:
            for server in nodes:
                server.kill()
            raise
        return nodes

    def run(self) -> None:
        """Start its process, at first or again."""
        with self._log_path.open("ab") as log:
            self.process = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, "LC_ALL": "C"},
            )

    def wait_until_ready(self) -> None:
        """Wait until it accepts connections. Raises KafkaNotAvailable."""
        deadline = time.monotonic() + READY_SECONDS_MAX
        while not accepts(int(self.bootstrap.split(":")[1])):
            if self.process.poll() is not None or time.monotonic() > deadline:
                self.kill()
                raise KafkaNotAvailable(f"Kafka did not start:\n{log_tail(self._log_path)}")
            time.sleep(0.2)

    def stop(self) -> None:
        """SIGTERM, and wait for the end."""
        self.process.terminate()
        self.process.wait()

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
