"""The tutorials' pages, followed step by step as they are written.

Blocks run in their order, in one folder. A block with a title is a file. Of a `console` block, each
line after `$ ` is a command; the lines below are its output, in which `…` stands for anything. A
command that starts a broker goes on in the background, as in a terminal of its own.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

from tidelog.localstack.ports import free_ports
from tidelog.testing import Broker

pytestmark = pytest.mark.integration
ROOT = Path(__file__).resolve().parents[2]
BLOCK = re.compile(r'^```(\w+)(?: title="([^"]+)")?\n(.*?)^```', re.MULTILINE | re.DOTALL)
SECONDS_MAX = 60


class Command(NamedTuple):
    """A command and the lines that it prints."""

    line: str
    output: list[str]


class Reader:
    """Does what a page says, in a folder of its own."""

    def __init__(self, folder: Path, variables: dict[str, str]) -> None:
        self.folder = folder
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        self.environment = os.environ | {"PATH": path, "PWD": str(folder)} | variables
        self.brokers: list[subprocess.Popen[str]] = []

    def follow(self, page: str) -> None:
        """Run all blocks of a page that are Python or commands with their output."""
        for language, title, text in BLOCK.findall(page):
            if title:
                (self.folder / title).write_text(text)
            elif language == "python":
                self.run(Command(f"{sys.executable} - <<'END'\n{text}END\n", []))
            elif language == "console":
                for command in commands(text):
                    self.run(command)

    def run(self, command: Command) -> None:
        """Run a command, and compare what it prints."""
        if command.line.startswith("tidelog server"):
            self._start(command)
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
            for broker in self.brokers:
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
        assert_printed(command.output[0], broker.stdout.readline(), command.line)

    def end(self) -> None:
        for broker in self.brokers:
            broker.send_signal(signal.SIGKILL)
            broker.wait()
            assert broker.stdout is not None
            broker.stdout.close()


def commands(text: str) -> Iterator[Command]:
    """The commands of a block."""
    for part in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
        line, *output = part.splitlines()
        yield Command(line, output)


def assert_printed(expected: str, output: str, command: str) -> None:
    """Fail unless a line of the output is as expected."""
    pattern = re.compile(".*".join(map(re.escape, expected.split("…"))))
    lines = [line.strip() for line in output.splitlines()]
    assert any(pattern.fullmatch(line) for line in lines), f"{command}\nprinted:\n{output}"


@contextmanager
def reader(folder: Path, **variables: str) -> Iterator[Reader]:
    one = Reader(folder, variables)
    try:
        yield one
    finally:
        one.end()


def page(name: str) -> str:
    return (ROOT / "docs" / "tutorials" / name).read_text()


def test_the_quick_start(tmp_path: Path) -> None:
    kafka, http = free_ports(2)
    text = page("quick-start.md").replace("9092", str(kafka)).replace("9093", str(http))
    with reader(tmp_path, TIDELOG_BOOTSTRAP=f"127.0.0.1:{kafka}") as new_user:
        new_user.follow(text)
        assert len(new_user.brokers) == 2


def test_tests_with_pytest(tmp_path: Path) -> None:
    with reader(tmp_path) as developer:
        developer.follow(page("testing.md"))


def test_replacing_kafka(tmp_path: Path) -> None:
    with Broker() as old, Broker() as new:
        with reader(tmp_path, OLD=old.bootstrap, NEW=new.bootstrap) as operator:
            operator.run(
                Command("tidelog topics create flights --partitions 3 --bootstrap $OLD", [])
            )
            old.produce("flights", ["a", "b", "c"])
            operator.follow(page("replacing-kafka.md"))
            moved = {(each.partition, each.value, each.timestamp) for each in new.read("flights")}
        assert moved == {
            (each.partition, each.value, each.timestamp) for each in old.read("flights")
        }


@pytest.mark.parametrize(
    ("expected", "output", "is_there"),
    [("a … c", "x\na b c\n", True), ("a … c", "a b d", False), ("a", "ab", False)],
)
def test_what_was_not_printed_is_noticed(expected: str, output: str, *, is_there: bool) -> None:
    if is_there:
        assert_printed(expected, output, "")
    else:
        with pytest.raises(AssertionError):
            assert_printed(expected, output, "")


def test_the_site_of_the_documents(tmp_path: Path) -> None:
    """Every page is in its navigation, and no link or anchor leads nowhere."""
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)]
    done = subprocess.run(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    assert done.returncode == 0, done.stdout
    home = (tmp_path / "index.html").read_text()
    assert "A transactional log on object storage" in home
    assert 'href="STATUS.html"' in home
