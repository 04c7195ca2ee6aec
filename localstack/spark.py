"""Spark on loopback: a session's settings, and a standalone cluster of the installed PySpark.

The master and the workers are ended by process id. Executors share their worker's process group and
end with it. Their Python workers end when the executor's pipe closes.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Final
from urllib.request import urlopen

from tidelog.errors import TidelogError
from tidelog.localstack.broker_process import log_tail
from tidelog.localstack.ports import accepts, free_ports

READY_SECONDS_MAX: Final = 240.0
STOP_SECONDS_MAX: Final = 10.0
WORKER_CORES: Final = 1
EXECUTOR_MEMORY_MB: Final = 512
_HOST: Final = "127.0.0.1"
_MASTER: Final = "org.apache.spark.deploy.master.Master"
_WORKER: Final = "org.apache.spark.deploy.worker.Worker"
_FOREIGN: Final = ("PYTHON", "PYSPARK", "SPARK")
"""The cluster does not inherit variables with these prefixes: its environment is explicit."""


class SparkNotReady(TidelogError):
    """PySpark is missing, or a process of the cluster ended or stayed silent before it was ready.

    The message has the end of its log.
    """


def session_settings(folder: Path) -> dict[str, str]:
    """Settings of a session on loopback that writes only into a folder."""
    return {
        "spark.ui.enabled": "false",
        "spark.driver.host": _HOST,
        "spark.driver.bindAddress": _HOST,
        "spark.local.dir": str(folder / "local"),
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.session.timeZone": "UTC",
        # A busy machine is slow to start a Python worker.
        "spark.python.authenticate.socketTimeout": "300s",
    }


def spark_home(folder: Path) -> Path:
    """A home for Spark in a folder: the installed PySpark without its zipped copy.

    Each Python worker would compile the zipped copy again. Without it Python imports the installed
    package, which saves a second of CPU. Spark gives some workers only ten seconds to start. Raises
    SparkNotReady.
    """
    found = importlib.util.find_spec("pyspark")
    if found is None or not found.submodule_search_locations:
        raise SparkNotReady("PySpark is not installed: install Tidelog with its extra spark")
    home = folder / "spark-home"
    home.mkdir(parents=True, exist_ok=True)
    for each in Path(found.submodule_search_locations[0]).iterdir():
        link = home / each.name
        if each.name != "python" and not link.is_symlink():
            link.symlink_to(each)
    return home


@dataclass(slots=True)
class SparkDaemon:
    """A master or a worker; a worker's process group holds its executors."""

    process: subprocess.Popen[bytes]
    log_path: Path
    ports: tuple[int, ...]
    """The ports on which it must listen."""

    def kill(self) -> None:
        """SIGKILL to it and its executors at once, as if the machine failed."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        # This process cannot wait for the executors: poll until the process group is empty.
        deadline = time.monotonic() + STOP_SECONDS_MAX
        with contextlib.suppress(ProcessLookupError):
            while time.monotonic() < deadline:
                os.killpg(self.process.pid, 0)
                time.sleep(0.01)

    def stop(self) -> None:
        """SIGTERM, then SIGKILL to the remaining processes."""
        if self.process.poll() is None:
            self.process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(STOP_SECONDS_MAX)
        self.kill()


@dataclass(slots=True)
class SparkCluster:
    """A running standalone cluster. As a context manager it is stopped at the end."""

    folder: Path
    master: SparkDaemon
    workers: list[SparkDaemon] = field(default_factory=list)

    @classmethod
    def start(cls, folder: Path, *, workers: int = 2) -> SparkCluster:
        """Start a master and workers, and wait until they have registered.

        The folder holds logs and the executors' files. After SparkNotReady no process runs.
        """
        ports = free_ports(2)
        web_port = ports[1]
        arguments = ("--port", ports[0], "--webui-port", web_port)
        master = _start(_MASTER, folder / "master.log", folder, arguments, ports)
        cluster = cls(folder, master)
        try:
            cluster._await(master, lambda: cluster.state() is not None)
            # Start them in parallel: each takes seconds.
            cluster.start_workers(workers)
        except BaseException:
            cluster.stop()
            raise
        return cluster

    @property
    def url(self) -> str:
        """The master's URL, for sessions."""
        return f"spark://{_HOST}:{self.master.ports[0]}"

    @property
    def daemons(self) -> list[SparkDaemon]:
        """All started processes, workers first."""
        return [*self.workers, self.master]

    def start_workers(self, count: int) -> list[SparkDaemon]:
        """Start more workers, and wait until they have registered. Raises SparkNotReady."""
        started = []
        for _ in range(count):
            name = f"worker-{len(self.workers)}"
            ports = free_ports(2)
            arguments: list[object] = ["--port", ports[0], "--webui-port", ports[1]]
            arguments += ["--cores", WORKER_CORES, "--memory", f"{EXECUTOR_MEMORY_MB}m"]
            arguments += ["--work-dir", self.folder / name, self.url]
            log_path = self.folder / f"{name}.log"
            daemon = _start(_WORKER, log_path, self.folder, arguments, ports)
            self.workers.append(daemon)
            started.append(daemon)
        for daemon in started:
            self._await(daemon, partial(self.knows, daemon))
        return started

    def knows(self, worker: SparkDaemon) -> bool:
        """True if the master lists a worker as alive."""
        state = self.state() or {"workers": []}
        alive = {each["port"] for each in state["workers"] if each["state"] == "ALIVE"}
        return worker.ports[0] in alive

    def state(self) -> dict[str, Any] | None:
        """The master's status; None if it does not answer."""
        try:
            with urlopen(f"http://{_HOST}:{self.master.ports[1]}/json/", timeout=5) as answer:
                found: dict[str, Any] = json.load(answer)
                return found
        except (OSError, ValueError):
            return None

    def stop(self) -> None:
        """End all processes."""
        for daemon in self.daemons:
            daemon.stop()

    def __enter__(self) -> SparkCluster:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()

    def _await(self, daemon: SparkDaemon, ready: Callable[[], bool]) -> None:
        deadline = time.monotonic() + READY_SECONDS_MAX
        while not ready():
            ended = daemon.process.poll()
            if ended is not None or time.monotonic() > deadline:
                how = "is not ready" if ended is None else f"ended with {ended}"
                raise SparkNotReady(
                    f"{daemon.log_path.stem} of the Spark cluster {how}\n"
                    f"{log_tail(daemon.log_path)}"
                )
            time.sleep(0.1)


def _start(
    main: str, log_path: Path, folder: Path, arguments: Sequence[object], ports: Sequence[int]
) -> SparkDaemon:
    home = spark_home(folder)
    if taken := [port for port in ports if accepts(port)]:
        # The process on this port would answer in place of the new one.
        raise SparkNotReady(f"{log_path.stem} cannot start: port {taken[0]} is in use")
    command = [str(home / "bin" / "spark-class"), main, "--host", _HOST, *map(str, arguments)]
    with log_path.open("ab") as log:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd=folder,
            env=_environment(home, folder),
            # A process group of its own, which its executors share.
            start_new_session=True,
        )
    return SparkDaemon(process, log_path, tuple(ports))


def _environment(home: Path, folder: Path) -> Mapping[str, str]:
    own = {name: value for name, value in os.environ.items() if not name.startswith(_FOREIGN)}
    return own | {
        "SPARK_HOME": str(home),
        "SPARK_CONF_DIR": str(folder / "conf"),
        "SPARK_LOCAL_IP": _HOST,
        "SPARK_LOCAL_DIRS": str(folder / "local"),
        "SPARK_DAEMON_MEMORY": "256m",
    }
