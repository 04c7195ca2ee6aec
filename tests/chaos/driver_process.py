"""Spark's driver with all its processes, found and ended by process id (Linux: through /proc)."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from tests.chaos.moments import MOMENTS_VARIABLE
from tests.process_table import Found, command_of, find, find_all

ROOT = Path(__file__).parents[2]
DEATH_SECONDS_MAX = 60.0
_WORKER = ("pyspark.daemon", "pyspark.worker")
"""The end of the command with which the executor starts its Python workers' parent."""


def is_stopped(pid: int) -> bool:
    found = find(pid)
    return found is not None and found.state == "T"


@dataclass(slots=True)
class DriverProcess:
    """The driver: Python, the JVM, and the Python processes that the JVM starts.

    They are in one session, even after a change of their parents."""

    process: subprocess.Popen[bytes]

    @classmethod
    def start(
        cls,
        log_path: Path,
        moments: Path,
        *arguments: str,
        variables: Mapping[str, str] = MappingProxyType({}),
    ) -> DriverProcess:
        """Start the process, with more variables. It reports its progress through its moments."""
        environment = {
            **os.environ,
            **variables,
            "PYSPARK_PYTHON": sys.executable,
            # The workers import the code under test, not an installed package.
            "PYTHONPATH": str(ROOT),
            MOMENTS_VARIABLE: str(moments),
        }
        with log_path.open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "tests.chaos.etl", *arguments],
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment,
                start_new_session=True,
            )
        return cls(process)

    def processes(self) -> list[Found]:
        """All living processes of the driver, including stopped ones."""
        return [each for each in find_all() if each.session == self.process.pid]

    def workers(self) -> list[int]:
        """The executor's Python workers, at work or idle."""
        forks = [each for each in self.processes() if _is_worker(each.pid)]
        parents = {each.pid for each in forks}
        return [each.pid for each in forks if each.parent in parents]

    def is_dead(self) -> bool:
        """Whether the driver has ended, by itself or not."""
        return self.process.poll() is not None

    def kill(self) -> None:
        """SIGKILL to the driver and all its processes."""
        deadline = time.monotonic() + DEATH_SECONDS_MAX
        while found := self.processes():
            assert time.monotonic() < deadline, f"the processes do not die: {found}"
            self._signal(signal.SIGKILL)
            time.sleep(0.01)
        self.process.wait()

    def pause(self) -> None:
        """SIGSTOP to the driver and all its processes, which stall at any point."""
        deadline = time.monotonic() + DEATH_SECONDS_MAX
        while any(each.state != "T" for each in self.processes()):
            assert time.monotonic() < deadline, "the processes do not stop"
            self._signal(signal.SIGSTOP)
            time.sleep(0.01)

    def resume(self) -> None:
        """SIGCONT to the driver and all its processes, which do not notice that they were
        stopped."""
        self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        for each in self.processes():
            send(each.pid, number)


def send(pid: int, number: signal.Signals) -> None:
    """A signal to one process, which may have ended meanwhile."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def until(condition: Callable[[], bool], what: Callable[[], str], seconds_max: float) -> None:
    """Look again and again. Raises AssertionError with `what` when the condition takes too long."""
    deadline = time.monotonic() + seconds_max
    while not condition():
        assert time.monotonic() < deadline, what()
        time.sleep(0.05)


def _is_worker(pid: int) -> bool:
    return tuple(command_of(pid)[-2:]) == _WORKER
