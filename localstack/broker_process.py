"""Starts a `tidelog server` process, and stops or kills it by process id."""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from tidelog.errors import TidelogError
from tidelog.localstack import mortal_cli
from tidelog.localstack.crash_points import CRASH_POINTS_VARIABLE

READY_SECONDS_MAX = 60.0
STOP_SECONDS_MAX = 30.0


class BrokerNotReady(TidelogError):
    """The process ended or stayed silent before it was ready; the message has its log's end."""

    def __init__(self, why: str, returncode: int | None, log: str) -> None:
        super().__init__(f"{why}\n{log}")
        self.returncode = returncode
        self.log = log


@dataclass(slots=True)
class BrokerProcess:
    """A running broker. As a context manager it is killed at the end."""

    process: subprocess.Popen[str]
    log_path: Path
    kafka: str
    http: str
    cluster: str
    broker_id: int

    @classmethod
    def start(
        cls,
        store: str,
        log_path: Path,
        *,
        listen: str | None = "127.0.0.1:0",
        http: str | None = None,
        broker_id: int = 0,
        settings: Mapping[str, object] | None = None,
        environment: Mapping[str, str] | None = None,
        arguments: Sequence[str] = (),
        module: str = "tidelog.cli",
        crash_points: str | None = None,
        ready_seconds_max: float = READY_SECONDS_MAX,
        descriptors_max: int | None = None,
    ) -> BrokerProcess:
        """Start a broker and wait for its ready line. Raises BrokerNotReady after the process has
        ended.

        Without `listen` the settings name the listeners.
        `module` runs the command line of `tidelog`. The process kills itself at `crash_points`
        (NAME:N, see `crash_points.KillAtHit`). `descriptors_max` sets the process's RLIMIT_NOFILE.
        """
        added = dict(environment or {})
        if crash_points is not None:
            module = mortal_cli.__name__
            added[CRASH_POINTS_VARIABLE] = crash_points
        command = [sys.executable, "-m", module, "server", "--store", store]
        if descriptors_max is not None:
            limited = f'ulimit -n {descriptors_max} && exec "$0" "$@"'
            command = ["sh", "-c", limited, *command]
        command += ["--broker-id", str(broker_id)]
        if listen is not None:
            command += ["--listen", listen]
        if http is not None:
            command += ["--http", http]
        for name, value in (settings or {}).items():
            command += ["--set", f"{name}={value}"]
        with log_path.open("ab") as log:
            process = subprocess.Popen(
                [*command, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env={**os.environ, **added},
            )
        try:
            line = _first_line(process, ready_seconds_max)
        except BaseException:
            # Ctrl-C: no caller has the process yet.
            with process:
                process.kill()
            raise
        fields = dict(word.split("=", 1) for word in line.split()[1:] if "=" in word)
        if not line.startswith("ready ") or "kafka" not in fields:
            process.kill()
            returncode = process.wait()
            if process.stdout is not None:
                process.stdout.close()
            why = f"the broker did not become ready (first line {line!r}, exit {returncode})"
            raise BrokerNotReady(why, returncode, log_tail(log_path))
        return cls(
            process,
            log_path,
            fields["kafka"],
            fields["http"],
            fields["cluster"],
            int(fields["broker"]),
        )

    def kill(self) -> None:
        """SIGKILL: the process flushes nothing."""
        self.process.kill()
        self._reap()

    def stop(self) -> int:
        """SIGTERM, wait for the clean end, return the exit code."""
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(STOP_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            self.process.kill()
        return self._reap()

    def wait_for_death(self, seconds_max: float) -> int:
        """The exit code of a process that ends by itself. TimeoutExpired if it does not."""
        self.process.wait(seconds_max)
        return self._reap()

    def pause(self) -> None:
        """SIGSTOP: the process stalls at any point."""
        self.process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """SIGCONT: a stalled process continues."""
        self.process.send_signal(signal.SIGCONT)

    def _reap(self) -> int:
        returncode = self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()
        return returncode

    def __enter__(self) -> BrokerProcess:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()
        self._reap()


def log_tail(path: Path, bytes_max: int = 4000) -> str:
    """The end of a process's log, for error messages."""
    return path.read_bytes()[-bytes_max:].decode(errors="replace") if path.exists() else ""


def _first_line(process: subprocess.Popen[str], seconds_max: float) -> str:
    assert process.stdout is not None
    deadline = time.monotonic() + seconds_max
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        if not selector.select(max(0.0, deadline - time.monotonic())):
            return ""
    return process.stdout.readline().rstrip("\n")
