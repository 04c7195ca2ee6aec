"""The measured servers: a Tidelog broker on some store, or Apache Kafka, each as one process."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.request import urlopen

from confluent_kafka.admin import AdminClient, NewTopic

from tidelog.localstack.broker_process import BrokerProcess
from tidelog.localstack.kafka import ApacheKafka
from tidelog.references import resolved_values

GB = 1_000_000_000
LOAD_SECONDS_MAX = 400.0
"""A load ends by itself earlier than this."""
_NEVER = 1 << 40
ONLY_ON_REQUEST = {"roll.bytes": _NEVER, "roll.age.ms": _NEVER, "roll.wal.max.bytes": _NEVER}
"""A broker with these settings rolls only what a client flushes."""
WITHOUT_MERGES = {"wal.objects.max": (1 << 31) - 1}
"""Turns merges of WAL objects off: single records make thousands of objects."""
_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Usage:
    """The resources that a process has used so far."""

    cpu_seconds: float
    kernel_seconds: float
    """CPU seconds of these in the kernel: for sockets, files, memory."""
    puts: float = 0
    gets: float = 0
    bytes_put: float = 0
    bytes_got: float = 0

    def since(self, before: Usage) -> Usage:
        """The resources used between two readings."""
        return Usage(
            self.cpu_seconds - before.cpu_seconds,
            self.kernel_seconds - before.kernel_seconds,
            self.puts - before.puts,
            self.gets - before.gets,
            self.bytes_put - before.bytes_put,
            self.bytes_got - before.bytes_got,
        )


@dataclass(slots=True)
class Target:
    """A running server under measurement."""

    name: str
    bootstrap: str
    pid: int
    metrics_url: str | None
    client: Mapping[str, str] = field(default_factory=dict)
    """Properties of the clients, by confluent-kafka's names: how they reach the server. Secrets are
    references (`tidelog.references`), since loads get them as arguments."""

    def create_topic(
        self, topic: str, partitions: int, configs: Mapping[str, str] | None = None
    ) -> None:
        """Create a topic for records of up to 8 MiB, and wait for it."""
        client = resolved_values(self.client)
        admin = AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0, **client})
        new = NewTopic(
            topic, partitions, config={"max.message.bytes": str(8 << 20), **(configs or {})}
        )
        admin.create_topics([new])[topic].result(60)

    def usage(self) -> Usage:
        """The CPU seconds of the process and its children, and its known requests to the store."""
        user_ticks = kernel_ticks = 0
        for pid in (self.pid, *self._children()):
            with contextlib.suppress(FileNotFoundError):
                fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
                # The CPU of the process, and of its children that have ended.
                user_ticks += int(fields[11]) + int(fields[13])
                kernel_ticks += int(fields[12]) + int(fields[14])
        kernel_seconds = kernel_ticks / _TICKS_PER_SECOND
        cpu_seconds = user_ticks / _TICKS_PER_SECOND + kernel_seconds
        if self.metrics_url is None:
            return Usage(cpu_seconds, kernel_seconds)
        found = scrape(self.metrics_url)
        return Usage(
            cpu_seconds,
            kernel_seconds,
            found.get('tidelog_store_operations_total{operation="put"}', 0),
            found.get('tidelog_store_operations_total{operation="get"}', 0),
            found.get('tidelog_store_bytes_total{operation="put"}', 0),
            found.get('tidelog_store_bytes_total{operation="get"}', 0),
        )

    def peak_memory_mb(self) -> float:
        """The peak of resident memory since `reset_peak_memory`, in MB.

        Of its children only private memory counts, without libraries and memory that they share
        with it. The peaks are taken to coincide.
        """
        return self._memory_mb("VmHWM")

    def resident_memory_mb(self) -> float:
        """Resident memory now, in MB, by the same rule."""
        return self._memory_mb("VmRSS")

    def reset_peak_memory(self) -> None:
        """Begin a new measurement of the peak."""
        for pid in (self.pid, *self._children()):
            with contextlib.suppress(FileNotFoundError):
                Path(f"/proc/{pid}/clear_refs").write_text("5")

    def _memory_mb(self, field: str) -> float:
        kib = _status_kib(self.pid)[field]
        for pid in self._children():
            with contextlib.suppress(FileNotFoundError):
                status = _status_kib(pid)
                kib += status[field] - status["RssFile"] - status["RssShmem"]
        return kib * 1024 / 1e6

    def _children(self) -> list[int]:
        """The running children."""
        found = []
        for path in Path("/proc").glob("[0-9]*/stat"):
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                state, parent = path.read_text().rsplit(")", 1)[1].split()[:2]
                if int(parent) == self.pid and state != "Z":
                    found.append(int(path.parent.name))
        return found

    def load(
        self,
        kind: str,
        topic: str,
        *,
        module: str = "benchmarks.harness.load",
        seconds_max: float = LOAD_SECONDS_MAX,
        **options: float | bool,
    ) -> dict[str, Any]:
        """Run one client load of a module against the target, in a process of its own."""
        command = [sys.executable, "-m", module, kind]
        command += ["--bootstrap", self.bootstrap, "--topic", topic]
        for name, value in self.client.items():
            command += ["--client", f"{name}={value}"]
        for name, value in options.items():
            option = name.replace("_", "-")
            if isinstance(value, bool):
                command.append(f"--{option}" if value else f"--no-{option}")
            else:
                command += [f"--{option}", str(value)]
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=seconds_max
        )
        if done.returncode != 0:
            raise RuntimeError(f"{' '.join(command)} failed:\n{done.stderr[-2000:]}")
        result: dict[str, Any] = json.loads(done.stdout)
        return result


@contextlib.contextmanager
def tidelog(name: str, store: str, folder: Path, **settings: object) -> Iterator[Target]:
    """A Tidelog broker on a store."""
    folder.mkdir(parents=True, exist_ok=True)
    with BrokerProcess.start(
        store, folder / "broker.log", http="127.0.0.1:0", settings=settings
    ) as broker:
        url = f"http://{broker.http}/metrics"
        yield Target(name, broker.kafka, broker.process.pid, url)
        broker.stop()


@contextlib.contextmanager
def distant(folder: Path, put_ms: int, get_ms: int, **settings: object) -> Iterator[Target]:
    """A broker on a store in memory with slow requests."""
    folder.mkdir(parents=True, exist_ok=True)
    with BrokerProcess.start(
        "memory://distant",
        folder / "broker.log",
        http="127.0.0.1:0",
        settings=settings,
        module="benchmarks.harness.slow_store",
        environment={"BENCHMARK_PUT_MS": str(put_ms), "BENCHMARK_GET_MS": str(get_ms)},
    ) as broker:
        url = f"http://{broker.http}/metrics"
        yield Target("distant", broker.kafka, broker.process.pid, url)
        broker.stop()


@contextlib.contextmanager
def kafka(folder: Path, cache: Path) -> Iterator[Target]:
    """Apache Kafka on the local disk."""
    with ApacheKafka.start(folder, cache) as server:
        yield Target("kafka", server.bootstrap, server.process.pid, None)


def scrape(url: str) -> dict[str, float]:
    """A broker's metrics by name and labels, in the notation of Prometheus' text format."""
    with urlopen(url, timeout=10) as answer:
        text = answer.read().decode()
    pairs = (line.rsplit(" ", 1) for line in text.splitlines() if line and line[0] != "#")
    return {name: float(value) for name, value in pairs}


def _status_kib(pid: int) -> dict[str, int]:
    """The memory sizes of a process, from the system."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return {line.split(":")[0]: int(line.split()[1]) for line in lines if line.endswith(" kB")}
