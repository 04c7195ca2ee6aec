"""The example applications run against Apache Kafka too, and satisfy strict type checkers."""

from __future__ import annotations

import json
import subprocess
import sys
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.example_runs import EXAMPLES, late_flights_are_copied_once
from tidelog.localstack.kafka import ApacheKafka
from tidelog.localstack.made_once import made_once

pytestmark = [pytest.mark.compat, pytest.mark.timeout(600)]

ROOT = Path(__file__).parents[2]
CACHE = ROOT / ".cache"
PYRIGHT = "pyright@1.1.400"


@pytest.fixture
def pyright(require_tool: Callable[[str], str]) -> Path:
    """pyright from npm."""
    require_tool("npm")
    folder = CACHE / f"npm-{zlib.crc32(PYRIGHT.encode()):08x}"
    with made_once(folder) as to_do:
        if to_do:
            (folder / "package.json").write_text('{"private": true}')
            command = ["npm", "install", "--no-audit", "--no-fund", "--silent", PYRIGHT]
            subprocess.run(command, cwd=folder, check=True, capture_output=True)
    return folder.absolute() / "node_modules" / ".bin" / "pyright"


def test_the_examples_run_against_apache_kafka(
    require_tool: Callable[[str], str], tmp_path: Path
) -> None:
    require_tool("mvn")
    require_tool("java")
    with ApacheKafka.start(tmp_path / "kafka", CACHE) as kafka:
        late_flights_are_copied_once(kafka.bootstrap)


def test_pyright_finds_nothing_in_the_examples_in_strict_mode(
    pyright: Path, tmp_path: Path
) -> None:
    """Check with the path that pyproject.toml gives editors for a clone."""
    config = tmp_path / "pyrightconfig.json"
    settings = {
        "typeCheckingMode": "strict",
        "include": [str(EXAMPLES)],
        "extraPaths": [str(ROOT / "build" / "typing")],
    }
    config.write_text(json.dumps(settings))
    done = subprocess.run(
        [str(pyright), "--project", str(config), "--pythonpath", sys.executable],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout


def test_mypy_finds_nothing_in_the_examples_in_strict_mode(tmp_path: Path) -> None:
    # mypy reports no errors of imported modules, as for an installed package.
    options = ["--strict", "--follow-imports=silent", "--cache-dir", str(tmp_path)]
    done = subprocess.run(
        [sys.executable, "-m", "mypy", *options, str(EXAMPLES)],
        cwd=tmp_path,
        env={"MYPYPATH": str(ROOT / "build" / "typing"), "PATH": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
