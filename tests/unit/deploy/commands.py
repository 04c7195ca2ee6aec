"""Runs the commands of the deployment's files outside of containers."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
DEPLOY = ROOT / "deploy"


def environment_of(added: Mapping[str, str]) -> dict[str, str]:
    """This process's variables and others, with the command `tidelog` on the path."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return {**os.environ, "PATH": path, **added}


@contextmanager
def served(command: Sequence[str], added: Mapping[str, str]) -> Iterator[dict[str, str]]:
    """The facts of the ready line of a broker that a command starts."""
    process = subprocess.Popen(
        list(command), env=environment_of(added), stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith("ready "), f"{command} did not become ready: {line!r}"
        yield dict(word.split("=", 1) for word in line.split()[1:])
    finally:
        process.terminate()
        process.wait(60)
        assert process.stdout is not None
        process.stdout.close()
