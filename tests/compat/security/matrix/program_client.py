"""Clients in other languages: a program reads all attempts as JSON and prints a line for each."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from tests.compat.security.matrix.attempt import SECONDS_MAX, Attempt, Outcome
from tests.moves.program import franz_go_program
from tidelog.localstack.kafka import java_command

PROGRAMS = Path(__file__).parent / "programs"


class ProgramClient:
    """Runs a program once for all attempts."""

    def __init__(self, name: str, command: Sequence[str]) -> None:
        self.name = name
        self.mechanisms = frozenset({"PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"})
        self._command = command

    def run(self, attempts: Sequence[Attempt]) -> list[Outcome]:
        """Run all attempts. A line of JSON on the program's stdin is an attempt, and one on its
        stdout an outcome."""
        told = [asdict(each) | {"values": each.values} for each in attempts]
        done = subprocess.run(
            self._command,
            input="".join(f"{json.dumps(each)}\n" for each in told),
            capture_output=True,
            text=True,
            timeout=SECONDS_MAX * len(attempts),
            check=False,
        )
        assert done.returncode == 0, done.stderr[-4000:]
        found = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
        assert len(found) == len(attempts), done.stdout + done.stderr[-4000:]
        return [Outcome(tuple(each.get("consumed", ())), each.get("error", "")) for each in found]


def java_client(lib: Path) -> ProgramClient:
    """Apache Kafka's own client; its program runs from source."""
    return ProgramClient("Java", java_command(lib, str(PROGRAMS / "SecuredClient.java"), []))


def kafkajs_client(folder: Path) -> ProgramClient:
    """KafkaJS. Node looks for packages beside the program that loads them."""
    program = folder / "secured_client.cjs"
    shutil.copyfile(PROGRAMS / "secured_client.cjs", program)
    return ProgramClient("KafkaJS", ["node", str(program)])


def franz_go_client(go: str, cache: Path) -> ProgramClient:
    """franz-go."""
    return ProgramClient("franz-go", franz_go_program(go, cache, PROGRAMS / "franz_go"))
