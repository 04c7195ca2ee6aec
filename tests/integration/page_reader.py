"""A reader of the documents, which runs a page command by command.

Blocks run in their order, in one folder. A block with a title is a file. In a `console` block, each
line after `$ ` is a command, which goes on after a backslash at a line's end. The lines below it
are its output, in which `…` stands for any text. A command that starts a broker goes on in the
background, as in a second terminal. Commands see the variables that were exported above them.
"""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
BLOCK = re.compile(r'^```(\w+)(?: title="([^"]+)")?\n(.*?)^```', re.MULTILINE | re.DOTALL)
SECONDS_MAX = 240


class Command(NamedTuple):
    """A command and the lines that it prints."""

    line: str
    output: list[str]


class Reader:
    """Runs a page in a separate folder."""

    def __init__(self, folder: Path, programs: Path, variables: dict[str, str]) -> None:
        self.folder = folder
        self.python = programs / "python"
        path = f"{programs}{os.pathsep}{os.environ['PATH']}"
        self.environment = os.environ | {"PATH": path, "PWD": str(folder)} | variables
        self.brokers: list[subprocess.Popen[str]] = []

    def follow(self, page: str) -> None:
        """Run all blocks of a page that are Python or commands with their output."""
        for language, title, text in BLOCK.findall(page):
            if title:
                (self.folder / title).write_text(text)
            elif language == "python":
                self.run(Command(f"{self.python} - <<'END'\n{text}END\n", []))
            elif language == "console":
                for command in commands(text):
                    self.run(command)

    def run(self, command: Command) -> None:
        """Run a command, and compare its output."""
        if command.line.startswith("tidelog server"):
            self._start(command)
            return
        if command.line.startswith("export "):
            exported = shlex.split(command.line)[1:]
            self.environment |= dict(each.split("=", 1) for each in exported)
            return
        done = subprocess.run(
            ["bash", "-c", command.line],
            cwd=self.folder,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=SECONDS_MAX,
            check=False,
        )
        if command.line.startswith("pkill"):
            pattern = shlex.split(command.line)[-1]
            killed = [each for each in self.brokers if pattern in str(each.args)]
            assert killed, command.line
            for broker in killed:
                broker.wait(SECONDS_MAX)
        else:
            assert done.returncode == 0, f"{command.line}\n{done.stdout}"
        for line in command.output:
            assert_printed(line, done.stdout, command.line)

    def _start(self, command: Command) -> None:
        # exec: the page ends a broker by its command line, and the test by its process id.
        broker = subprocess.Popen(
            ["bash", "-c", f"exec {command.line}"],
            cwd=self.folder,
            env=self.environment,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.brokers.append(broker)
        assert broker.stdout is not None
        expected = command.output[0] if command.output else "ready …"
        assert_printed(expected, broker.stdout.readline(), command.line)

    def end(self) -> None:
        for broker in self.brokers:
            broker.send_signal(signal.SIGKILL)
            broker.wait()
            assert broker.stdout is not None
            broker.stdout.close()


def commands(text: str) -> Iterator[Command]:
    """The commands of a block."""
    for part in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
        line, *output = re.sub(r"\\\n *", "", part).splitlines()
        yield Command(line, output)


def console(page: str, replaced: Mapping[str, str]) -> list[Command]:
    """All commands of the console blocks of a page in docs/, in their order."""
    text = (ROOT / "docs" / page).read_text()
    for before, after in replaced.items():
        assert before in text, f"{page} has no {before} any more"
        text = text.replace(before, after)
    blocks = (block for language, _, block in BLOCK.findall(text) if language == "console")
    return [command for block in blocks for command in commands(block)]


def assert_printed(expected: str, output: str, command: str) -> None:
    """Fail unless a line of the output is as expected."""
    pattern = re.compile(".*".join(map(re.escape, expected.strip().split("…"))))
    lines = [line.strip() for line in output.splitlines()]
    assert any(pattern.fullmatch(line) for line in lines), f"{command}\nprinted:\n{output}"


@contextmanager
def reader(
    folder: Path, programs: Path = Path(sys.executable).parent, **variables: str
) -> Iterator[Reader]:
    one = Reader(folder, programs, variables)
    try:
        yield one
    finally:
        one.end()
