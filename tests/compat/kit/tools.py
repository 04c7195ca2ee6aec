"""Runs Apache Kafka's own command line tools."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

from tests.compat.kit.broker_view import partition_view
from tidelog.client.operations import IsolationLevel
from tidelog.localstack.kafka import java_command

CONSOLE = "org.apache.kafka.tools.consumer.ConsoleConsumer"
FORMATTERS = "org.apache.kafka.tools.consumer"
SECONDS_MAX = 120


class Tools:
    """Runs the classes behind Kafka's shell scripts."""

    def __init__(self, lib: Path, bootstrap: str, command_config: str | None = None) -> None:
        self._lib = lib
        self._bootstrap = bootstrap
        self._always = ["--bootstrap-server", bootstrap]
        if command_config is not None:
            self._always += ["--command-config", command_config]

    def run(self, main: str, *arguments: str, text: str = "", fails: bool = False) -> str:
        """The output of a tool. Fails unless the tool fails or succeeds as expected."""
        done = self._done(main, *arguments, text=text)
        output = done.stdout + done.stderr
        assert (done.returncode != 0) == fails, output
        return output

    def formatted(self, topic: str, partition: int, formatter: str) -> list[dict[str, Any]]:
        """All records of an internal topic's partition, by one of Kafka's formatters."""
        isolation = IsolationLevel.READ_UNCOMMITTED
        count = len(partition_view(self._bootstrap, topic, partition, isolation).records)
        place = ("--topic", topic, "--partition", str(partition), "--offset", "earliest")
        limits = ("--max-messages", str(count), "--timeout-ms", str(SECONDS_MAX * 1000))
        done = self._done(CONSOLE, *place, *limits, "--formatter", f"{FORMATTERS}.{formatter}")
        assert done.returncode == 0, done.stderr
        return _objects(done.stdout)

    def _done(self, main: str, *arguments: str, text: str = "") -> subprocess.CompletedProcess[str]:
        command = java_command(self._lib, main, [*self._always, *arguments])
        return subprocess.run(
            command, input=text, capture_output=True, text=True, timeout=SECONDS_MAX, check=False
        )


def _objects(text: str) -> list[dict[str, Any]]:
    """JSON objects that follow each other in a text."""
    decoder = json.JSONDecoder()
    found = []
    position = text.find("{")
    while position >= 0:
        value, end = decoder.raw_decode(text, position)
        found.append(value)
        position = text.find("{", end)
    return found
