"""`tidelog dev` starts brokers and a store, prints how to connect, and leaves no process or file
behind."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner

from tidelog.cli.root import cli
from tidelog.localstack import broker_process
from tidelog.localstack import dev as dev_command
from tidelog.localstack.broker_process import BrokerProcess
from tidelog.localstack.ports import accepts
from tidelog.sdk.consumer import Consumer
from tidelog.sdk.producer import Producer


@contextmanager
def started(*arguments: str) -> Iterator[tuple[subprocess.Popen[str], list[str]]]:
    """The process, which is ready, and the lines that it has printed."""
    command = [sys.executable, "-m", "tidelog.cli", "dev", "--port", "0", *arguments]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, process_group=0
    )
    try:
        assert process.stdout is not None
        lines = []
        for line in process.stdout:
            lines.append(line.rstrip())
            if line.startswith("ready"):
                break
        else:
            raise AssertionError("\n".join(lines))
        yield process, lines
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def found(lines: list[str], pattern: str) -> list[str]:
    return [match[1] for line in lines if (match := re.search(pattern, line))]


def serves_and_ends(brokers: int, *arguments: str) -> None:
    """A record goes through the stack, and Ctrl-C ends all of its processes."""
    with started(*arguments) as (process, lines):
        addresses = found(lines, r"kafka (\S+)")
        assert len(addresses) == brokers
        bootstrap = ",".join(addresses)
        # A command goes on while one of several brokers is away.
        assert found(lines, r"TIDELOG_BOOTSTRAP=(\S+)") == [bootstrap]
        with Producer(bootstrap) as producer:
            producer.send("topic", "a")
        with Consumer(bootstrap, "topic", auto_offset_reset="earliest") as consumer:
            assert [message.value for message in consumer.to_end()] == [b"a"]
        (logs,) = found(lines, r"logs +(\S+)/\*\.log")
        assert len(list(Path(logs).glob("broker-*.log"))) == len(addresses)
        # A terminal also sends the signal to the whole process group.
        os.killpg(process.pid, signal.SIGINT)
        assert process.wait(60) == 0
        assert not Path(logs).exists()
        ports = [int(address.rpartition(":")[2]) for address in addresses]
        ports += [int(port) for port in found(lines, r"endpoint=http://127.0.0.1:(\d+)")]
        assert not any(map(accepts, ports))


@pytest.mark.parametrize("arguments", [(), ("--brokers", "2", "--store", "moto")])
def test_brokers_serve_and_ctrl_c_ends_all_processes(arguments: tuple[str, ...]) -> None:
    serves_and_ends(2 if arguments else 1, *arguments)


def test_a_folder_keeps_its_records_and_sigterm_ends_the_stack(tmp_path: Path) -> None:
    # A name with characters that a URL escapes.
    folder = tmp_path / "flights #1 100%41"
    folder.mkdir()
    for store, expected in (((), [b"a"]), (("--store", "file"), [b"a", b"a"])):
        with started(*store, "--folder", str(folder)) as (process, lines):
            (bootstrap,) = found(lines, r"kafka (\S+)")
            with Producer(bootstrap) as producer:
                producer.send("topic", "a")
            with Consumer(bootstrap, "topic", auto_offset_reset="earliest") as consumer:
                assert [message.value for message in consumer.to_end()] == expected
            process.terminate()
            assert process.wait(60) == 0
            assert (folder / "bucket" / "cluster").is_dir()


def test_brokers_log_as_dev_is_told(tmp_path: Path) -> None:
    with started("--folder", str(tmp_path), "--log-format", "json", "--log-level", "debug") as (
        process,
        _,
    ):
        process.terminate()
        assert process.wait(60) == 0
    lines = (tmp_path / "broker-0.log").read_text().splitlines()
    assert lines
    assert all("message" in json.loads(line) for line in lines)


def test_brokers_end_politely(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    watched: list[BrokerProcess] = []

    def watch(running: list[BrokerProcess]) -> None:
        watched.extend(running)
        raise KeyboardInterrupt

    monkeypatch.setattr(dev_command, "_watch", watch)
    # The handlers are of the command's process, which is that of the tests here.
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    arguments = ["dev", "--port", "0", "--folder", str(tmp_path), "--brokers", "2"]
    assert CliRunner().invoke(cli, arguments).exit_code == 0
    assert [broker.process.returncode for broker in watched] == [0, 0]


def test_a_start_that_is_interrupted_leaves_no_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[subprocess.Popen[str]] = []

    def interrupted(process: subprocess.Popen[str], _: float) -> str:
        begun.append(process)
        raise KeyboardInterrupt

    monkeypatch.setattr(broker_process, "_first_line", interrupted)
    with pytest.raises(KeyboardInterrupt):
        BrokerProcess.start(f"file://{tmp_path / 'bucket'}", tmp_path / "log")
    ended = [process.returncode for process in begun]
    for process in begun:
        with process:
            process.kill()
    assert ended == [-signal.SIGKILL]


def test_a_broker_that_ends_by_itself_is_named() -> None:
    with started() as (process, lines):
        (pid,) = found(lines, r"process (\d+)")
        os.kill(int(pid), signal.SIGKILL)
        assert process.stdout is not None
        assert "broker 0 has ended with -9" in process.stdout.readline()
        process.terminate()
        assert process.wait(60) == 0


def test_the_console_has_the_sdk_and_ends_everything() -> None:
    command = [sys.executable, "-m", "tidelog.cli", "dev", "--port", "0", "--console"]
    program = 'admin.create_topic("flights", 3)\nprint("topics:", admin.topics())\n'
    done = subprocess.run(
        command, input=program, capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert "topics: {'flights': 3}" in done.stdout


def test_several_brokers_share_no_memory() -> None:
    command = [sys.executable, "-m", "tidelog.cli", "dev", "--brokers", "2", "--store", "memory"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "--store moto" in done.stderr
