"""The programs of each client: how they are built and started, and the lines that they print."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zlib
from collections.abc import Sequence
from pathlib import Path

from tests.moves.judge import Seen
from tidelog.localstack.broker_process import log_tail
from tidelog.localstack.made_once import made_once

FOLDER = Path(__file__).parent / "programs"
END_SECONDS_MAX = 120.0


def python_program(library: str) -> list[str]:
    """A program of a Python library."""
    return [sys.executable, "-m", f"tests.moves.{library}_program"]


def franz_go_program(go: str, cache: Path, source: Path = FOLDER / "franz_go") -> list[str]:
    """franz-go's program, built once for each version of its source."""
    content = b"".join((source / name).read_bytes() for name in ("main.go", "go.mod", "go.sum"))
    folder = cache / f"franz-go-{zlib.crc32(content):08x}"
    program = folder.absolute() / "franz_go"
    with made_once(folder) as to_do:
        if to_do:
            subprocess.run([go, "build", "-o", str(program), "."], cwd=source, check=True)
    return [str(program)]


def kafkajs_program(folder: Path) -> list[str]:
    """KafkaJS's program. Node looks for packages beside the program that loads them."""
    program = folder / "moves.cjs"
    shutil.copyfile(FOLDER / "kafkajs_program.cjs", program)
    return ["node", str(program)]


class Program:
    """A running program of a client. It ends when its standard input ends."""

    def __init__(self, command: Sequence[str], output: Path) -> None:
        self._said = output.with_suffix(".out")
        self._complaints = output.with_suffix(".err")
        with self._said.open("wb") as out, self._complaints.open("wb") as err:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=out, stderr=err, env=dict(os.environ)
            )
        self._read = 0

    @property
    def is_running(self) -> bool:
        """Whether the program runs."""
        return self._process.poll() is None

    def lines(self) -> list[str]:
        """The complete lines since the last call."""
        with self._said.open("rb") as said:
            said.seek(self._read)
            found = said.read()
        complete = found[: found.rfind(b"\n") + 1]
        self._read += len(complete)
        return complete.decode(errors="replace").splitlines()

    def end(self, seen: Seen) -> None:
        """End the program, and count the rest of its lines and its exit code."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        try:
            code = self._process.wait(END_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            self.kill()
            seen.errors.append(f"{self._said.stem} did not end")
        else:
            if code:
                seen.errors.append(f"{self._said.stem} ended with {code}: {self.complaints()}")
        seen.add(self.lines())

    def complaints(self) -> str:
        """The end of the program's standard error."""
        return log_tail(self._complaints)

    def kill(self) -> None:
        """Kill the program at once."""
        self._process.kill()
        self._process.wait()
        if self._process.stdin is not None:
            self._process.stdin.close()
