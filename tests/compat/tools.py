"""Runs Apache Kafka's own command line tools."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tidelog.localstack.kafka import java_command


class Tools:
    """Runs the classes behind Kafka's shell scripts."""

    def __init__(self, lib: Path, bootstrap: str) -> None:
        self._lib = lib
        self._bootstrap = bootstrap

    def run(self, main: str, *arguments: str, text: str = "", fails: bool = False) -> str:
        command = java_command(self._lib, main, ["--bootstrap-server", self._bootstrap, *arguments])
        done = subprocess.run(
            command, input=text, capture_output=True, text=True, timeout=90, check=False
        )
        output = done.stdout + done.stderr
        assert (done.returncode != 0) == fails, output
        return output
